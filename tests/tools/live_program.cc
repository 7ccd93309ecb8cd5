#include "tests/tools/live_program.h"

#include <errno.h>
#include <fcntl.h>
#include <pty.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include <utmp.h>

#include <filesystem>
#include <sstream>
#include <stdexcept>

namespace fibshim::test {

uint64_t start_time_of(pid_t pid) {
  const std::string stat = read_text("/proc/" + std::to_string(pid) + "/stat");
  std::istringstream fields(stat.substr(stat.rfind(')') + 2));
  std::string field;
  for (int i = 3; i <= 22; ++i) fields >> field;
  return std::stoull(field);
}

ProgramOptions under_shim(const std::string& config, const std::string& stats,
                          const std::map<std::string, std::string>& more) {
  ProgramOptions options;
  options.environment = more;
  options.environment.insert({{"LD_PRELOAD", build_path("lib/libfibshim.so")},
                              {"LD_LIBRARY_PATH", build_path("sim")},
                              {"FIBSHIM_CONFIG", config},
                              {"FIBSHIM_STATS_DIR", stats}});
  return options;
}

void copy_demo_folders(const std::string& folder) {
  namespace fs = std::filesystem;
  for (const char* name : {"a", "b", "bad"}) {
    fs::copy(build_path("config/demo"), fs::path(folder) / name, fs::copy_options::recursive);
  }
  for (const auto& entry : fs::recursive_directory_iterator(folder + "/bad/patterns")) {
    if (entry.is_regular_file()) write_text(entry.path(), "{\n  \"label\": nothing\n}\n");
  }
}

LiveProgram::LiveProgram(const std::vector<std::string>& command, const ProgramOptions& options) {
  const Command program(command, options.environment, options.folder);
  int in[2], out[2];
  if (pipe2(in, O_CLOEXEC) != 0 || pipe2(out, O_CLOEXEC) != 0) throw std::runtime_error("pipe");
  pid_ = fork();
  if (pid_ == 0) {
    dup2(in[0], STDIN_FILENO);
    dup2(out[1], STDOUT_FILENO);
    dup2(out[1], STDERR_FILENO);
    program.exec();
  }
  close(in[0]);
  close(out[1]);
  in_ = in[1];
  out_ = out[0];
}

LiveProgram::LiveProgram(const std::vector<std::string>& command, const ProgramOptions& options,
                         Terminal terminal) {
  const Command program(command, options.environment, options.folder);
  winsize size{};
  size.ws_row = terminal.rows;
  size.ws_col = terminal.columns;
  int master = -1;
  if (openpty(&master, &terminal_, nullptr, nullptr, &size) != 0) throw std::runtime_error("pty");
  fcntl(master, F_SETFD, FD_CLOEXEC);
  fcntl(terminal_, F_SETFD, FD_CLOEXEC);
  tcgetattr(terminal_, &settings_before_);
  pid_ = fork();
  if (pid_ == 0) {
    login_tty(dup(terminal_));
    program.exec();
  }
  in_ = master;
  out_ = dup(master);
}

LiveProgram::~LiveProgram() {
  if (pid_ > 0) {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  for (const int fd : {in_, out_, terminal_}) {
    if (fd >= 0) close(fd);
  }
}

bool LiveProgram::read_more() {
  char buffer[4096];
  ssize_t got;
  do {
    got = read(out_, buffer, sizeof buffer);
  } while (got < 0 && errno == EINTR);
  if (got > 0) text_.append(buffer, static_cast<size_t>(got));
  return got > 0;
}

bool LiveProgram::read_until(const std::string& wanted, size_t from) {
  while (text_.find(wanted, from) == std::string::npos) {
    if (!read_more()) return false;
  }
  return true;
}

void LiveProgram::write(const std::string& text) {
  if (::write(in_, text.data(), text.size()) != static_cast<ssize_t>(text.size())) {
    throw std::runtime_error("write");
  }
}

void LiveProgram::end_input() {
  close(in_);
  in_ = -1;
}

void LiveProgram::close_output() {
  close(out_);
  out_ = -1;
}

void LiveProgram::resize(Terminal terminal) {
  winsize size{};
  size.ws_row = terminal.rows;
  size.ws_col = terminal.columns;
  ioctl(in_, TIOCSWINSZ, &size);
}

termios LiveProgram::terminal_settings() const {
  termios out{};
  tcgetattr(terminal_, &out);
  return out;
}

bool LiveProgram::wait_until_stopped() {
  int status = 0;
  waitpid(pid_, &status, WUNTRACED);
  return WIFSTOPPED(status);
}

int LiveProgram::wait() {
  // This object keeps the program's side of a terminal open, so only the program's end ends the
  // wait.
  if (terminal_ < 0) {
    while (read_more()) {
    }
  }
  int status = 0;
  waitpid(pid_, &status, 0);
  pid_ = -1;
  if (terminal_ >= 0) {
    fcntl(out_, F_SETFL, O_NONBLOCK);
    while (read_more()) {
    }
  }
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

}  // namespace fibshim::test
