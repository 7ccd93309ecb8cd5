// fibshim serve: the counters over HTTP, for Prometheus to scrape.
//
// It answers GET and HEAD of /metrics, /healthz and /, and nothing else. The bytes and the time of
// every connection and the number of connections are limited: a hostile client occupies a place for
// some seconds at most. One thread does all the work, so there are no locks.
#include <signal.h>

#include <chrono>
#include <charconv>

#include <utility>  // before Asio: that of Boost 1.74 forgets it

#include <boost/asio.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>

#include "tools/commands/commands.h"
#include "tools/counters/prometheus.h"
#include "tools/base/setting_values.h"
#include "tools/counters/ended_counters.h"

namespace fibshim::tools {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using Tcp = asio::ip::tcp;

constexpr size_t kMaxConnections = 32;
constexpr std::chrono::seconds kConnectionTime{10};  // from the first byte to the last
constexpr uint32_t kMaxHeaderBytes = 8192;
constexpr std::chrono::milliseconds kPauseAfterFailure{100};

struct ServeOptions {
  std::string folder;
  PrometheusOptions prometheus;
};

struct Answer {
  http::status status;
  const char* content_type;
  std::string body;
};

constexpr char kPlain[] = "text/plain; charset=utf-8";

Answer metrics(const ServeOptions& options) {
  delete_old_counters(options.folder);
  const auto folder = read_counters_folder(options.folder);
  if (!folder) {
    // The error may contain paths: it is for the operator, not for the client.
    print_message("serve", "{}: {}", printable(options.folder), folder.error());
    return {http::status::internal_server_error, kPlain, "the counters cannot be read\n"};
  }
  return {http::status::ok, "text/plain; version=0.0.4; charset=utf-8",
          prometheus_text(*folder, options.prometheus)};
}

Answer answer(const ServeOptions& options, http::verb method, std::string_view target) {
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

std::string_view view_of(beast::string_view text) { return {text.data(), text.size()}; }

// One connection with one request and one answer. It lives until both are done or its time is up.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(Tcp::socket socket, const ServeOptions& options, std::shared_ptr<void> place)
      : stream_(std::move(socket)), options_(options), place_(std::move(place)) {
    parser_.header_limit(kMaxHeaderBytes);
    // No body is ever read. (boost::none, for no limit, refuses all of them in Boost 1.74.)
    parser_.body_limit(UINT64_MAX);
    // Set once for the whole connection: a client that sends a byte now and then gets no more time.
    stream_.expires_after(kConnectionTime);
  }

  void start() {
    http::async_read_header(
        stream_, buffer_, parser_,
        [self = shared_from_this()](beast::error_code error, size_t) { self->on_request(error); });
  }

 private:
  void on_request(beast::error_code error) {
    if (!error) {
      const auto& request = parser_.get();
      respond(answer(options_, request.method(), view_of(request.target())),
              request.method() == http::verb::head, request.version());
    } else if (error == http::error::header_limit) {
      respond({http::status::request_header_fields_too_large, kPlain, "too long\n"}, false, 11);
    } else if (error.category() == http::make_error_code(http::error::bad_method).category() &&
               error != http::error::end_of_stream && error != http::error::partial_message) {
      respond({http::status::bad_request, kPlain, "not HTTP\n"}, false, 11);
    }
  }

  void respond(Answer answer, bool is_head, unsigned version) {
    response_.result(answer.status);
    response_.version(version);
    response_.set(http::field::server, fmt::format("fibshim/{}", kVersion));
    response_.set(http::field::content_type, answer.content_type);
    response_.set(http::field::cache_control, "no-store");
    if (answer.status == http::status::method_not_allowed) {
      response_.set(http::field::allow, "GET, HEAD");
    }
    response_.keep_alive(false);
    response_.content_length(answer.body.size());
    if (!is_head) response_.body() = std::move(answer.body);
    serializer_.emplace(response_);
    http::async_write(stream_, *serializer_,
                      [self = shared_from_this()](beast::error_code, size_t) { self->finish(); });
  }

  // Closes the sending side, then reads to the end. Closing the socket while bytes of the client
  // are unread would discard an answer that is still under way.
  void finish() {
    beast::error_code ignored;
    stream_.socket().shutdown(Tcp::socket::shutdown_send, ignored);
    drain();
  }

  void drain() {
    stream_.async_read_some(asio::buffer(rest_),
                            [self = shared_from_this()](beast::error_code error, size_t got) {
                              self->drained_ += got;
                              if (!error && self->drained_ < kMaxHeaderBytes) self->drain();
                            });
  }

  beast::tcp_stream stream_;
  beast::flat_buffer buffer_{2 * kMaxHeaderBytes};
  http::request_parser<http::buffer_body> parser_;
  http::response<http::string_body> response_;
  std::optional<http::response_serializer<http::string_body>> serializer_;
  char rest_[1024];
  size_t drained_ = 0;
  const ServeOptions& options_;
  std::shared_ptr<void> place_;  // released with the connection
};

class Server {
 public:
  Server(asio::io_context* context, const Tcp::endpoint& endpoint, const ServeOptions& options)
      : acceptor_(*context, endpoint, /*reuse_addr=*/true), retry_(*context), options_(options) {}

  Tcp::endpoint endpoint() const { return acceptor_.local_endpoint(); }

  void accept() {
    is_accepting_ = true;
    acceptor_.async_accept([this](beast::error_code error, Tcp::socket socket) {
      if (error == asio::error::operation_aborted) return;
      if (error) {
        // Usually the process is out of descriptors. Another try at once would spin.
        retry_.expires_after(kPauseAfterFailure);
        retry_.async_wait([this](beast::error_code stopped) {
          if (!stopped) accept();
        });
        return;
      }
      is_accepting_ = false;
      ++connections_;
      std::shared_ptr<void> place(nullptr, [this](void*) { on_place_free(); });
      std::make_shared<Connection>(std::move(socket), options_, std::move(place))->start();
      // Clients beyond the limit wait in the kernel's queue, which is limited, too.
      if (connections_ < kMaxConnections) accept();
    });
  }

  void stop() {
    is_stopped_ = true;
    beast::error_code ignored;
    acceptor_.close(ignored);
    retry_.cancel();
  }

 private:
  void on_place_free() {
    --connections_;
    if (!is_accepting_ && !is_stopped_ && connections_ + 1 == kMaxConnections) accept();
  }

  Tcp::acceptor acceptor_;
  asio::steady_timer retry_;
  const ServeOptions& options_;
  size_t connections_ = 0;
  bool is_accepting_ = false;
  bool is_stopped_ = false;
};

// Parses "HOST:PORT", "[::1]:PORT" or ":PORT" (all addresses). HOST must be a numeric address:
// names are not resolved.
std::optional<Tcp::endpoint> parse_address(const std::string& text) {
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos) return std::nullopt;
  std::string host = text.substr(0, colon);
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  if (host == "localhost") host = "127.0.0.1";
  if (host.empty()) host = "::";
  const std::string port_text = text.substr(colon + 1);
  uint16_t port = 0;
  const auto [end, port_error] =
      std::from_chars(port_text.data(), port_text.data() + port_text.size(), port);
  beast::error_code error;
  const asio::ip::address address = asio::ip::make_address(host, error);
  if (error || port_text.empty() || port_error != std::errc() ||
      end != port_text.data() + port_text.size()) {
    return std::nullopt;
  }
  return Tcp::endpoint(address, port);
}

int serve(const ServeOptions& options, const std::string& listen, const Tcp::endpoint& endpoint) {
  asio::io_context context(1);
  std::optional<Server> server;
  try {
    server.emplace(&context, endpoint, options);
  } catch (const boost::system::system_error& error) {
    print_message(
        "serve", fmt::format("cannot listen on {}: {}", printable(listen), error.code().message()));
    return kExitWrong;
  }
  asio::signal_set signals(context, SIGTERM, SIGINT);
  signals.async_wait([&](beast::error_code, int) {
    // Open connections still get their answers; they end within their time limit.
    server->stop();
  });
  const Tcp::endpoint bound = server->endpoint();
  const std::string host = bound.address().to_string();
  const bool is_six = bound.address().is_v6();
  print_message("serve", "listening on http://{}{}{}:{}/metrics", is_six ? "[" : "", host,
                is_six ? "]" : "", bound.port());
  if (!bound.address().is_loopback()) {
    print_message("serve",
                  "anyone who reaches this address sees the names of kernels and config folders: "
                  "there is no password and no encryption");
  }
  server->accept();
  context.run();
  return kExitFine;
}

}  // namespace

int serve_command(int argc, const char* const* argv) {
  signal(SIGPIPE, SIG_IGN);  // it serves on when nobody reads its messages any more
  ServeOptions options;
  CommandLine line("serve", "The counters over HTTP, for Prometheus to scrape", "[OPTIONS]",
                   "0 it was stopped; 1 it cannot listen there; 2 wrong usage.");
  std::string listen = "127.0.0.1:9464";
  std::optional<Tcp::endpoint> endpoint;
  line.option(
      "--listen", &listen, "HOST:PORT",
      "address and port (default 127.0.0.1:9464): a number or localhost, \"[::1]:9464\" for "
      "IPv6, \":9464\" for all addresses; port 0: a free one, which is said on stderr");
  line.number("--max-series", &options.prometheus.max_series, size_t{1}, size_t{1000000}, "N",
              kMaxSeriesHelp);
  line.stats_dir(&options.folder, "read this folder instead of FIBSHIM_STATS_DIR");
  line.check([&] {
    endpoint = parse_address(listen);
    return endpoint ? ""
                    : fmt::format("--listen: {}: not an address and a port, such as 127.0.0.1:9464",
                                  listen);
  });
  return line.parse(argc, argv) ? serve(options, listen, *endpoint) : line.exit_code();
}

}  // namespace fibshim::tools
