#include "tools/judge/worker.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include <chrono>
#include <exception>

#include <nlohmann/json.hpp>

#include "tools/base/file_descriptor.h"
#include "tools/base/json_input.h"
#include "tools/base/terminal.h"

namespace fibshim::judge {
namespace {

using tools::FileDescriptor;
using Clock = std::chrono::steady_clock;

constexpr off_t kKeptOutput = 4096;

void write_line(int fd, std::string text) {
  text += '\n';
  for (size_t at = 0; at < text.size();) {
    const ssize_t written = write(fd, text.data() + at, text.size() - at);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) _exit(1);  // the parent has gone
    at += static_cast<size_t>(written);
  }
}

[[noreturn]] void be_worker(const std::function<void(const Tell&)>& body, int messages, int output,
                            pid_t parent) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(1);
  const FileDescriptor null(open("/dev/null", O_RDONLY));
  dup2(null.get(), STDIN_FILENO);
  dup2(output, STDOUT_FILENO);
  dup2(output, STDERR_FILENO);
  int code = 0;
  try {
    body([&](const nlohmann::ordered_json& message) {
      write_line(messages, tools::json_line(message));
    });
  } catch (const std::exception& error) {
    fprintf(stderr, "%s\n", error.what());
    code = 1;
  }
  fflush(stdout);
  fflush(stderr);
  _exit(code);  // runs no destructors: the driver may be in any state
}

}  // namespace

WorkerEnd run_worker(const std::function<void(const Tell& tell)>& body,
                     const std::function<void(const nlohmann::ordered_json&)>& on_message,
                     double timeout_s) {
  WorkerEnd end;
  int ends[2];
  const FileDescriptor output(memfd_create("fibshim-worker", MFD_CLOEXEC));
  if (!output || pipe2(ends, O_CLOEXEC) != 0) {
    end.words = strerror(errno);
    return end;
  }
  FileDescriptor read_end(ends[0]), write_end(ends[1]);
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child < 0) {
    end.words = strerror(errno);
    return end;
  }
  if (child == 0) be_worker(body, write_end.get(), output.get(), parent);
  setpgid(child, child);  // parent and child both call it, since either may run first
  write_end = FileDescriptor(-1);

  const auto patience =
      std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(timeout_s));
  auto deadline = Clock::now() + patience;
  std::string text;
  char buffer[1 << 16];
  for (;;) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    if (left <= 0) {
      end.is_timed_out = true;
      break;
    }
    pollfd wanted{read_end.get(), POLLIN, 0};
    const int ready = poll(&wanted, 1, static_cast<int>(std::min<int64_t>(left, 60000)));
    if (ready <= 0) continue;
    const ssize_t got = read(read_end.get(), buffer, sizeof buffer);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    text.append(buffer, static_cast<size_t>(got));
    for (size_t newline; (newline = text.find('\n')) != std::string::npos;) {
      const auto message = tools::parse_json<nlohmann::ordered_json>(text.substr(0, newline));
      text.erase(0, newline + 1);
      if (!message.is_discarded()) on_message(message);
      deadline = Clock::now() + patience;
    }
  }
  if (end.is_timed_out) kill(-child, SIGKILL);
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  kill(-child, SIGKILL);  // the processes that it started and left
  if (!end.is_timed_out && WIFEXITED(status)) end.exit_code = WEXITSTATUS(status);
  end.is_fine = end.exit_code == 0;
  if (end.is_timed_out) {
    end.words = fmt::format("no answer within {} s", timeout_s);
  } else if (WIFSIGNALED(status)) {
    end.words = fmt::format("it crashed with signal {} ({})", WTERMSIG(status),
                            strsignal(WTERMSIG(status)));
  } else if (!end.is_fine) {
    end.words = fmt::format("it exited with code {}", *end.exit_code);
  }
  const off_t bytes = lseek(output.get(), 0, SEEK_END);
  end.output.resize(static_cast<size_t>(std::clamp<off_t>(bytes, 0, kKeptOutput)));
  const ssize_t kept = pread(output.get(), end.output.data(), end.output.size(),
                             bytes - static_cast<off_t>(end.output.size()));
  end.output.resize(static_cast<size_t>(std::max<ssize_t>(kept, 0)));
  return end;
}

}  // namespace fibshim::judge
