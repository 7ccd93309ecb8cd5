// fibshim serve: the counters over HTTP, for Prometheus to scrape.
//
// It answers GET and HEAD of /metrics, /healthz and /, and nothing else. A few threads take one connection
// after the other; each has few bytes and little time: a client that does not behave takes a thread for some
// seconds and no more. Beyond that clients wait in the kernel's queue, which is bounded, too.
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>

#include <atomic>
#include <charconv>
#include <chrono>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>

#include <boost/beast/http/empty_body.hpp>
#include <boost/beast/http/parser.hpp>

#include "tools/base/file_descriptor.h"
#include "tools/commands/commands.h"
#include "tools/counters/prometheus.h"
#include "tools/base/setting_values.h"
#include "tools/counters/ended_counters.h"

namespace fibshim::tools {
namespace {

namespace http = boost::beast::http;
using Clock = std::chrono::steady_clock;

constexpr size_t kMaxConnections = 32;
constexpr std::chrono::seconds kConnectionTime{10};  // from the first byte to the last
constexpr uint32_t kMaxHeaderBytes = 8192;
constexpr std::chrono::milliseconds kPauseAfterFailure{100};

struct Options {
  std::string folder;
  PrometheusOptions prometheus;
};

struct Answer {
  http::status status;
  const char* content_type;
  std::string body;
};

constexpr char kPlain[] = "text/plain; charset=utf-8";

Answer metrics(const Options& options) {
  static std::mutex one_at_a_time;
  const std::lock_guard guard(one_at_a_time);
  delete_old_counters(options.folder);
  const auto folder = read_counters_folder(options.folder);
  if (!folder) {
    // Its words may name paths: they are for the operator, not for whoever asks.
    print_message("serve", "{}: {}", printable(options.folder), folder.error());
    return {http::status::internal_server_error, kPlain, "the counters cannot be read\n"};
  }
  return {http::status::ok, "text/plain; version=0.0.4; charset=utf-8",
          prometheus_text(*folder, options.prometheus)};
}

Answer answer(const Options& options, http::verb method, std::string_view target) {
  const std::string_view path = target.substr(0, target.find('?'));
  const bool is_known = path == "/metrics" || path == "/healthz" || path == "/";
  if (!is_known) return {http::status::not_found, kPlain, "not found\n"};
  if (method != http::verb::get && method != http::verb::head) {
    return {http::status::method_not_allowed, kPlain, "GET or HEAD\n"};
  }
  if (path == "/metrics") return metrics(options);
  if (path == "/healthz") return {http::status::ok, kPlain, "ok\n"};
  return {http::status::ok, kPlain, fmt::format("fibshim {}\n/metrics\n/healthz\n", kVersion)};
}

std::string_view view_of(boost::beast::string_view text) { return {text.data(), text.size()}; }

// One connection: one request, one answer.
class Connection {
 public:
  Connection(int socket, const Options& options) : socket_(socket), options_(options) {
    parser_.header_limit(kMaxHeaderBytes);
    // No body is ever read. (boost::none, for no limit, refuses all of them in Boost 1.74.)
    parser_.body_limit(UINT64_MAX);
  }

  void run() {
    const std::string response = read_request();
    if (response.empty()) return;
    for (size_t at = 0; at < response.size();) {
      if (!is_ready(POLLOUT)) return;
      const ssize_t sent =
          send(socket_, response.data() + at, response.size() - at, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (sent < 0 && errno != EAGAIN && errno != EINTR) return;
      at += static_cast<size_t>(std::max<ssize_t>(sent, 0));
    }
    // Half closed, then read to the end: closing while bytes of the client are unread would throw
    // away the answer on its way.
    shutdown(socket_, SHUT_WR);
    for (size_t drained = 0; drained < kMaxHeaderBytes;) {
      const std::string_view got = receive();
      if (got.empty()) return;
      drained += got.size();
    }
  }

 private:
  // Until the time of the whole connection is up: a client that sends a byte now and then gains nothing.
  bool is_ready(short events) const {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(end_ - Clock::now()).count();
    pollfd wanted{socket_, events, 0};
    return left > 0 && poll(&wanted, 1, static_cast<int>(left)) > 0;
  }

  // Nothing: the client has closed, or time is up.
  std::string_view receive() {
    if (!is_ready(POLLIN)) return {};
    const ssize_t got = recv(socket_, bytes_, sizeof bytes_, 0);
    return {bytes_, static_cast<size_t>(std::max<ssize_t>(got, 0))};
  }

  // The whole response; empty: there is nobody to give it to.
  std::string read_request() {
    std::string unread;
    while (!parser_.is_header_done()) {
      const std::string_view got = receive();
      if (got.empty()) return "";
      unread += got;
      boost::beast::error_code error;
      unread.erase(0, parser_.put(boost::asio::buffer(unread), error));
      if (error == http::error::header_limit) {
        return respond({http::status::request_header_fields_too_large, kPlain, "too long\n"});
      }
      if (error && error != http::error::need_more) {
        return respond({http::status::bad_request, kPlain, "not HTTP\n"});
      }
    }
    const auto& request = parser_.get();
    return respond(answer(options_, request.method(), view_of(request.target())),
                   request.method() == http::verb::head, request.version());
  }

  static std::string respond(const Answer& answer, bool is_head = false, unsigned version = 11) {
    const bool is_refused = answer.status == http::status::method_not_allowed;
    return fmt::format(
        "HTTP/{}.{} {} {}\r\nServer: fibshim/{}\r\nContent-Type: {}\r\nCache-Control: no-store\r\n"
        "{}Connection: close\r\nContent-Length: {}\r\n\r\n{}",
        version / 10, version % 10, static_cast<unsigned>(answer.status),
        view_of(http::obsolete_reason(answer.status)), kVersion, answer.content_type,
        is_refused ? "Allow: GET, HEAD\r\n" : "", answer.body.size(), is_head ? "" : answer.body);
  }

  const int socket_;
  const Options& options_;
  const Clock::time_point end_ = Clock::now() + kConnectionTime;
  http::request_parser<http::empty_body> parser_;
  char bytes_[1024];
};

using Address = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

// "HOST:PORT", "[::1]:PORT" or ":PORT" (all addresses). Only numbers: nothing is looked up. Null: it is none.
Address parse_address(const std::string& text) {
  Address none(nullptr, freeaddrinfo);
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos) return none;
  std::string host = text.substr(0, colon);
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  if (host == "localhost") host = "127.0.0.1";
  if (host.empty()) host = "::";
  const char* const port = text.data() + colon + 1;
  const char* const end = text.data() + text.size();
  uint16_t number = 0;
  const auto [at, error] = std::from_chars(port, end, number);
  addrinfo wanted{}, *found = nullptr;
  wanted.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  wanted.ai_socktype = SOCK_STREAM;
  if (error != std::errc() || at != end || getaddrinfo(host.c_str(), port, &wanted, &found) != 0) {
    return none;
  }
  return {found, freeaddrinfo};
}

bool is_loopback(const sockaddr_storage& address) {
  if (address.ss_family == AF_INET6) {
    return IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6&>(address).sin6_addr);
  }
  return ntohl(reinterpret_cast<const sockaddr_in&>(address).sin_addr.s_addr) >> 24 ==
         IN_LOOPBACKNET;
}

void accept_connections(int listener, const Options& options, const std::atomic<bool>& is_stopped) {
  while (!is_stopped) {
    const FileDescriptor client(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC));
    if (client) {
      Connection(client.get(), options).run();
    } else if (!is_stopped) {
      // Out of descriptors, mostly. Trying again at once would spin.
      std::this_thread::sleep_for(kPauseAfterFailure);
    }
  }
}

int serve(const Options& options, const std::string& listen_words, const addrinfo& address) {
  const FileDescriptor listener(socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int yes = 1;
  if (!listener || setsockopt(listener.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes) != 0 ||
      bind(listener.get(), address.ai_addr, address.ai_addrlen) != 0 ||
      listen(listener.get(), SOMAXCONN) != 0) {
    print_message("serve", "cannot listen on {}: {}", printable(listen_words), strerror(errno));
    return kExitWrong;
  }
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);

  sockaddr_storage bound{};
  socklen_t size = sizeof bound;
  char host[NI_MAXHOST] = "", port[NI_MAXSERV] = "";
  getsockname(listener.get(), reinterpret_cast<sockaddr*>(&bound), &size);
  getnameinfo(reinterpret_cast<sockaddr*>(&bound), size, host, sizeof host, port, sizeof port,
              NI_NUMERICHOST | NI_NUMERICSERV);
  const bool is_six = bound.ss_family == AF_INET6;
  print_message("serve", "listening on http://{}{}{}:{}/metrics", is_six ? "[" : "", host,
                is_six ? "]" : "", port);
  if (!is_loopback(bound)) {
    print_message("serve",
                  "anyone who reaches this address sees the names of kernels and config folders: "
                  "there is no password and no encryption");
  }
  std::atomic<bool> is_stopped{false};
  std::vector<std::jthread> threads;
  try {
    while (threads.size() < kMaxConnections) {
      threads.emplace_back([&] { accept_connections(listener.get(), options, is_stopped); });
    }
  } catch (const std::system_error& error) {
    // Fewer are served at once.
    if (threads.empty()) {
      print_message("serve", error.what());
      return kExitWrong;
    }
  }
  int signal = 0;
  sigwait(&signals, &signal);
  // Connections that are under way get their answer: they end within their time.
  is_stopped = true;
  shutdown(listener.get(), SHUT_RDWR);
  return kExitFine;
}

}  // namespace

int serve_command(int argc, const char* const* argv) {
  Options options;
  CommandLine line("serve", "The counters over HTTP, for Prometheus to scrape", "[OPTIONS]",
                   "0 it was stopped; 1 it cannot listen there; 2 wrong usage.");
  std::string listen = "127.0.0.1:9464";
  Address address(nullptr, freeaddrinfo);
  line.option(
      "--listen", &listen, "HOST:PORT",
      "address and port (default 127.0.0.1:9464): a number or localhost, \"[::1]:9464\" for "
      "IPv6, \":9464\" for all addresses; port 0: a free one, which is said on stderr");
  line.number("--max-series", &options.prometheus.max_series, size_t{1}, size_t{1000000}, "N",
              kMaxSeriesHelp);
  line.stats_dir(&options.folder, "read this folder instead of FIBSHIM_STATS_DIR");
  line.check([&] {
    address = parse_address(listen);
    return address ? ""
                   : fmt::format("--listen: {}: not an address and a port, such as 127.0.0.1:9464",
                                 listen);
  });
  return line.parse(argc, argv) ? serve(options, listen, *address) : line.exit_code();
}

}  // namespace fibshim::tools
