#include "tests/support/process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <stdexcept>

namespace fibshim {
namespace {

std::vector<std::string> make_environment(const std::map<std::string, std::string>& added) {
  std::vector<std::string> entries;
  for (char** at = environ; *at != nullptr; ++at) {
    const std::string entry = *at;
    const std::string name = entry.substr(0, entry.find('='));
    const bool is_ours = name.starts_with("FIBSHIM_") || name.starts_with("SIMCUDA_") ||
                         name == "LD_PRELOAD" || name == "LD_LIBRARY_PATH";
    if (!is_ours && !added.contains(name)) entries.push_back(entry);
  }
  for (const auto& [name, value] : added) {
    if (!value.empty()) entries.push_back(name + "=" + value);
  }
  return entries;
}

std::vector<char*> as_pointers(std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  for (std::string& text : strings) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

int64_t now_ms() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

struct TemporaryDirs {
  std::vector<std::string> paths;
  ~TemporaryDirs() {
    std::error_code ignored;
    for (const std::string& path : paths) std::filesystem::remove_all(path, ignored);
  }
};

}  // namespace

std::string build_dir() {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path().parent_path().string();
}

Command::Command(const std::vector<std::string>& words,
                 const std::map<std::string, std::string>& environment,
                 const std::string& working_directory)
    : words_(words),
      entries_(make_environment(environment)),
      working_directory_(working_directory),
      argv_(as_pointers(words_)),
      envp_(as_pointers(entries_)) {}

void Command::exec() const {
  if (!working_directory_.empty() && chdir(working_directory_.c_str()) != 0) _exit(126);
  execvpe(argv_[0], argv_.data(), envp_.data());
  dprintf(STDERR_FILENO, "%s: %s\n", argv_[0], strerror(errno));
  _exit(127);
}

ProcessResult run_process(const std::vector<std::string>& words,
                          const std::map<std::string, std::string>& environment, int timeout_s,
                          const std::string& working_directory) {
  const Command command(words, environment, working_directory);
  int out_pipe[2];
  int err_pipe[2];
  if (pipe2(out_pipe, O_CLOEXEC) != 0 || pipe2(err_pipe, O_CLOEXEC) != 0) {
    throw std::runtime_error(std::string("pipe2: ") + strerror(errno));
  }
  const pid_t child = fork();
  if (child < 0) throw std::runtime_error(std::string("fork: ") + strerror(errno));
  if (child == 0) {
    setpgid(0, 0);
    dup2(out_pipe[1], STDOUT_FILENO);
    dup2(err_pipe[1], STDERR_FILENO);
    const int null = open("/dev/null", O_RDONLY);
    if (null >= 0) dup2(null, STDIN_FILENO);
    command.exec();
  }
  close(out_pipe[1]);
  close(err_pipe[1]);
  ProcessResult result;
  pollfd polled[2] = {{out_pipe[0], POLLIN, 0}, {err_pipe[0], POLLIN, 0}};
  std::string* texts[2] = {&result.out, &result.err};
  const int64_t deadline_ms = now_ms() + int64_t{timeout_s} * 1000;
  int open_count = 2;
  while (open_count > 0) {
    const int64_t left_ms = deadline_ms - now_ms();
    if (left_ms <= 0) {
      result.timed_out = true;
      kill(-child, SIGKILL);
      break;
    }
    if (poll(polled, 2, static_cast<int>(left_ms)) < 0 && errno != EINTR) break;
    for (int i = 0; i < 2; ++i) {
      if (polled[i].fd < 0 || polled[i].revents == 0) continue;
      char buffer[65536];
      const ssize_t count = read(polled[i].fd, buffer, sizeof buffer);
      if (count > 0) {
        texts[i]->append(buffer, static_cast<size_t>(count));
      } else if (count == 0 || errno != EINTR) {
        polled[i].fd = -1;
        --open_count;
      }
    }
  }
  close(out_pipe[0]);
  close(err_pipe[0]);
  int status = 0;
  waitpid(child, &status, 0);
  result.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return result;
}

ProcessResult run_shell(const std::string& command,
                        const std::map<std::string, std::string>& environment) {
  return run_process({"/bin/sh", "-c", command}, environment);
}

std::string make_temporary_dir() {
  static TemporaryDirs dirs;
  std::string path = (std::filesystem::temp_directory_path() / "fibshim-test-XXXXXX").string();
  if (mkdtemp(path.data()) == nullptr) throw std::runtime_error("mkdtemp failed");
  dirs.paths.push_back(path);
  return path;
}

}  // namespace fibshim
