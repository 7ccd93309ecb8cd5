// fibshim serve: it answers the requests that it must and no others, for well-behaved and for
// hostile clients.
#include <arpa/inet.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <regex>
#include <thread>

#include "tests/support/text.h"
#include "tests/tools/counters_file_builder.h"
#include "tests/tools/live_program.h"

namespace fibshim::test {
namespace {

class Client {
 public:
  explicit Client(uint16_t port) : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) close_now();
  }
  ~Client() { close_now(); }
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  bool is_connected() const { return fd_ >= 0; }

  void send(const std::string& text) { ::send(fd_, text.data(), text.size(), MSG_NOSIGNAL); }

  // Receives everything until the server closes the connection.
  std::string receive() {
    std::string out;
    char buffer[4096];
    for (ssize_t got; (got = recv(fd_, buffer, sizeof buffer, 0)) > 0;) {
      out.append(buffer, static_cast<size_t>(got));
    }
    return out;
  }

  void close_now() {
    if (fd_ >= 0) close(fd_);
    fd_ = -1;
  }

 private:
  int fd_;
};

class Serve : public testing::Test {
 protected:
  Serve() {
    CountersFileBuilder builder(4194399, 50);
    builder.add_config("/config", 1);
    builder.count(builder.add_series("p", "d"), Outcome::hit, 5);
    write_text(folder_ / builder.file_name(), builder.bytes());
  }

  std::vector<std::string> command(const std::string& address) {
    return {build_path("bin/fibshim"), "serve", "--dir", folder_.path(), "--listen", address};
  }

  // Starts the server on a free port.
  void start() {
    server_.emplace(command("127.0.0.1:0"));
    ASSERT_TRUE(server_->read_until("/metrics\n")) << server_->text();
    std::smatch match;
    const std::string text = server_->text();
    ASSERT_TRUE(std::regex_search(
        text, match,
        std::regex("^fibshim serve: listening on http://127\\.0\\.0\\.1:(\\d+)/metrics\n$")))
        << text;
    port_ = static_cast<uint16_t>(std::stoi(match[1]));
  }

  std::string ask(const std::string& request) {
    Client client(port_);
    client.send(request);
    return client.receive();
  }

  std::string get(const std::string& target) {
    return ask("GET " + target + " HTTP/1.1\r\nHost: x\r\n\r\n");
  }

  static std::string status_of(const std::string& response) {
    return response.substr(0, response.find("\r\n"));
  }
  static std::string body_of(const std::string& response) {
    const size_t at = response.find("\r\n\r\n");
    return at == std::string::npos ? "no end of the header" : response.substr(at + 4);
  }

  TemporaryFolder folder_;
  std::optional<LiveProgram> server_;
  uint16_t port_ = 0;
};

TEST_F(Serve, GivesTheSameMetricsAsStats) {
  start();
  const std::string response = get("/metrics");
  EXPECT_EQ(status_of(response), "HTTP/1.1 200 OK");
  EXPECT_CONTAINS(response, "\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n");
  const std::string body = body_of(response);
  EXPECT_EQ(body, run_fibshim({"stats", "--prometheus", "--dir", folder_.path()}).out);
  EXPECT_CONTAINS(response, "\r\nContent-Length: " + std::to_string(body.size()) + "\r\n");
  // The folder is read anew for each request.
  CountersFileBuilder more(4194399, 51);
  more.add_config("/config", 1);
  more.count(more.add_series("p", "d"), Outcome::hit, 6);
  write_text(folder_ / more.file_name(), more.bytes());
  EXPECT_CONTAINS(get("/metrics"), "start_time=\"51\"} 6\n");
}

TEST_F(Serve, AnswersWhatItMustAndNothingElse) {
  start();
  EXPECT_EQ(body_of(get("/healthz")), "ok\n");
  EXPECT_EQ(body_of(get("/")), "fibshim 0.1.0\n/metrics\n/healthz\n");
  EXPECT_EQ(status_of(get("/metrics?debug=1")), "HTTP/1.1 200 OK");
  EXPECT_EQ(status_of(get("/metrics/")), "HTTP/1.1 404 Not Found");
  EXPECT_EQ(status_of(get("/../etc/passwd")), "HTTP/1.1 404 Not Found");
  const std::string head = ask("HEAD /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_EQ(status_of(head), "HTTP/1.1 200 OK");
  EXPECT_EQ(body_of(head), "");
  EXPECT_FALSE(std::regex_search(head, std::regex("Content-Length: 0\r\n")));
  for (const char* method : {"POST", "PUT", "DELETE", "OPTIONS", "TRACE"}) {
    const std::string response =
        ask(std::string(method) + " /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc");
    EXPECT_EQ(status_of(response), "HTTP/1.1 405 Method Not Allowed") << method;
    EXPECT_CONTAINS(response, "\r\nAllow: GET, HEAD\r\n");
  }
}

TEST_F(Serve, RefusesWhatIsNotHttp) {
  start();
  EXPECT_EQ(status_of(ask("nonsense\r\n\r\n")), "HTTP/1.1 400 Bad Request");
  EXPECT_EQ(status_of(ask(std::string("\x16\x03\x01\x02\x00\x01\x00\x01", 8) + "\r\n\r\n")),
            "HTTP/1.1 400 Bad Request");
  EXPECT_EQ(status_of(ask("GET / HTTP/1.1\r\nX: " + std::string(9000, 'x') + "\r\n\r\n")),
            "HTTP/1.1 431 Request Header Fields Too Large");
  EXPECT_EQ(status_of(ask("GET /" + std::string(9000, 'x') + " HTTP/1.1\r\n\r\n")),
            "HTTP/1.1 431 Request Header Fields Too Large");
  EXPECT_EQ(body_of(get("/healthz")), "ok\n");
}

TEST_F(Serve, AnswersOneRequestOfAConnection) {
  start();
  const std::string get = "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n";
  const std::string response = ask(get + get + get);
  EXPECT_EQ(body_of(response), "ok\n");
  EXPECT_EQ(response.find("HTTP/1.1", 1), std::string::npos) << response;
  EXPECT_CONTAINS(response, "Connection: close");
  // A second request in the body of the first.
  const std::string post = ask(
      "POST /healthz HTTP/1.1\r\nContent-Length: " + std::to_string(get.size()) + "\r\n\r\n" + get);
  EXPECT_EQ(status_of(post), "HTTP/1.1 405 Method Not Allowed");
  EXPECT_EQ(post.find("HTTP/1.1", 1), std::string::npos) << post;
}

TEST_F(Serve, SaysNothingOfWhatWasAsked) {
  start();
  for (const std::string& request :
       {std::string("GET /secret<script> HTTP/1.1\r\nHost: evil.example\r\n\r\n"),
        std::string("GET http://evil.example/secret HTTP/1.1\r\n\r\n"),
        std::string("GET /metrics/../secret HTTP/1.1\r\nX: secret\r\n\r\n"),
        std::string("SECRET /metrics HTTP/1.1\r\n\r\n"),
        std::string("GET /secret HTTP/9.9\r\n\r\n"),
        std::string("GET /sec\0ret HTTP/1.1\r\n\r\n", 28),
        std::string("GET /x HTTP/1.1\r\nsecret\r\n\r\n")}) {
    const std::string response = ask(request);
    EXPECT_NE(status_of(response), "HTTP/1.1 200 OK") << request;
    for (const char* word : {"secret", "SECRET", "evil", "script"}) {
      EXPECT_LACKS(response, word);
    }
  }
  EXPECT_EQ(body_of(get("/healthz")), "ok\n");
}

TEST_F(Serve, ManyHeadersAreTooLong) {
  start();
  std::string request = "GET /healthz HTTP/1.1\r\n";
  for (int i = 0; i < 2000; ++i) request += "A: b\r\n";
  EXPECT_EQ(status_of(ask(request + "\r\n")), "HTTP/1.1 431 Request Header Fields Too Large");
}

// A client that sends a byte now and then cannot keep its place: the limit is for the connection.
TEST_F(Serve, SlowClientsAreShownTheDoorWhateverTheySend) {
  start();
  Client silent(port_);
  Client slow(port_);
  slow.send("GET /metrics HTTP/1.1\r\n");
  std::atomic<bool> is_over{false};
  std::thread sender([&] {
    while (!is_over) {
      slow.send("X");
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
    }
  });
  EXPECT_EQ(silent.receive(), "");  // returns when the server closes
  EXPECT_EQ(slow.receive(), "");
  is_over = true;
  sender.join();
  EXPECT_EQ(body_of(get("/healthz")), "ok\n");
}

TEST_F(Serve, ClientsThatLeaveEarlyDoNoHarm) {
  start();
  for (int i = 0; i < 100; ++i) {
    Client client(port_);
    client.send(i % 2 == 0 ? "GET /metrics HTTP/1.1\r\n\r\n" : "GET /met");
  }
  EXPECT_EQ(body_of(get("/healthz")), "ok\n");
}

TEST_F(Serve, HasAnsweredSoManyAtOnceAndTheNextWaits) {
  start();
  std::vector<std::unique_ptr<Client>> idle;
  for (int i = 0; i < 32; ++i) idle.push_back(std::make_unique<Client>(port_));
  for (const auto& client : idle) ASSERT_TRUE(client->is_connected());
  Client waiting(port_);
  waiting.send("GET /healthz HTTP/1.1\r\n\r\n");
  idle.front()->close_now();
  EXPECT_EQ(body_of(waiting.receive()), "ok\n");
}

TEST_F(Serve, EndsWellOnSignals) {
  for (const int signal : {SIGTERM, SIGINT}) {
    start();
    EXPECT_EQ(body_of(get("/healthz")), "ok\n");
    kill(server_->pid(), signal);
    EXPECT_EQ(server_->wait(), 0);
    EXPECT_FALSE(Client(port_).is_connected());
  }
}

TEST_F(Serve, SaysWhenThePortIsTaken) {
  start();
  const std::string address = "127.0.0.1:" + std::to_string(port_);
  const ProgramResult result = exits(1, run_program(command(address)));
  EXPECT_EQ(result.err,
            "fibshim serve: cannot listen on " + address + ": Address already in use\n");
}

TEST_F(Serve, SaysWhenItIsNotForThisMachineAlone) {
  LiveProgram server(command("0.0.0.0:0"));
  EXPECT_TRUE(server.read_until("no password and no encryption\n")) << server.text();
}

TEST_F(Serve, RefusesNonsenseOnTheCommandLine) {
  for (const char* address : {"", "9464", "localhost", "example.org:80", "127.0.0.1:",
                              "127.0.0.1:x", "127.0.0.1:65536", "127.0.0.1:-1", "[::1:80"}) {
    EXPECT_EQ(run_program(command(address)).exit_code, 2) << address;
  }
  EXPECT_EQ(run_fibshim({"serve", "--dir", ""}).exit_code, 2);
  EXPECT_CONTAINS(exits(1, run_fibshim({"serve", "--dir", folder_ / "nope"})).err,
                  "no such folder");
  EXPECT_EQ(run_fibshim({"serve", "extra"}).exit_code, 2);
}

TEST_F(Serve, AFolderThatCannotBeReadIsAnErrorWithoutDetails) {
  write_text(folder_ / "file", "");
  server_.emplace(std::vector<std::string>{build_path("bin/fibshim"), "serve", "--dir",
                                           folder_ / "file", "--listen", "127.0.0.1:0"});
  ASSERT_TRUE(server_->read_until("/metrics\n"));
  port_ = static_cast<uint16_t>(
      std::stoi(server_->text().substr(server_->text().find("127.0.0.1:") + 10)));
  const std::string response = get("/metrics");
  EXPECT_EQ(status_of(response), "HTTP/1.1 500 Internal Server Error");
  EXPECT_EQ(body_of(response), "the counters cannot be read\n");
  EXPECT_TRUE(server_->read_until("Not a directory\n"));
  // It serves on when nobody reads its messages.
  server_->close_output();
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(status_of(get("/metrics")), "HTTP/1.1 500 Internal Server Error");
  }
}

}  // namespace
}  // namespace fibshim::test
