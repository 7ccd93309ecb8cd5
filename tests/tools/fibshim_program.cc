#include "tests/tools/fibshim_program.h"

#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <stdexcept>

#include <gtest/gtest.h>

namespace fibshim::test {
namespace {

bool is_kept(const std::string& variable) {
  return variable.rfind("FIBSHIM_", 0) != 0 && variable.rfind("LD_PRELOAD=", 0) != 0 &&
         variable.rfind("LD_LIBRARY_PATH=", 0) != 0;
}

}  // namespace

Arguments::Arguments(const std::vector<std::string>& command, const ProgramOptions& options)
    : command_(command), folder_(options.folder) {
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string text = *variable;
    if (is_kept(text) && options.environment.count(text.substr(0, text.find('='))) == 0) {
      environment_.push_back(text);
    }
  }
  for (const auto& [name, value] : options.environment) environment_.push_back(name + "=" + value);
  for (std::string& text : command_) argv_.push_back(text.data());
  for (std::string& text : environment_) envp_.push_back(text.data());
  argv_.push_back(nullptr);
  envp_.push_back(nullptr);
}

void Arguments::exec() const {
  if (!folder_.empty() && chdir(folder_.c_str()) != 0) _exit(120);
  execvpe(argv_[0], argv_.data(), envp_.data());
  _exit(121);
}

ProgramResult run_program(const std::vector<std::string>& command, const ProgramOptions& options) {
  const Arguments arguments(command, options);
  int out[2], err[2];
  if (pipe2(out, O_CLOEXEC) != 0 || pipe2(err, O_CLOEXEC) != 0) throw std::runtime_error("pipe");
  const pid_t child = fork();
  if (child < 0) throw std::runtime_error("fork");
  if (child == 0) {
    const int null = open("/dev/null", O_RDONLY);
    dup2(null, STDIN_FILENO);
    const int to = options.stdout_path.empty()
                       ? out[1]
                       : open(options.stdout_path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
    dup2(to, STDOUT_FILENO);
    dup2(err[1], STDERR_FILENO);
    arguments.exec();
  }
  close(out[1]);
  close(err[1]);
  ProgramResult result{0, "", ""};
  pollfd ends[2] = {{out[0], POLLIN, 0}, {err[0], POLLIN, 0}};
  std::string* texts[2] = {&result.out, &result.err};
  while (ends[0].fd >= 0 || ends[1].fd >= 0) {
    poll(ends, 2, -1);
    for (int i = 0; i < 2; ++i) {
      if (ends[i].fd < 0 || ends[i].revents == 0) continue;
      char buffer[4096];
      const ssize_t got = read(ends[i].fd, buffer, sizeof buffer);
      if (got > 0) {
        texts[i]->append(buffer, static_cast<size_t>(got));
      } else {
        close(ends[i].fd);
        ends[i].fd = -1;
      }
    }
  }
  int status = 0;
  waitpid(child, &status, 0);
  result.exit_code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  return result;
}

ProgramResult run_fibshim(std::vector<std::string> arguments, const ProgramOptions& options) {
  arguments.insert(arguments.begin(), build_path("bin/fibshim"));
  return run_program(arguments, options);
}

std::string build_path(const std::string& below) {
  const auto own = std::filesystem::read_symlink("/proc/self/exe");  // <build>/tests/tools_tests
  return (own.parent_path().parent_path() / below).string();
}

std::string source_path(const std::string& below) {
  return std::string(FIBSHIM_SOURCE_FOLDER) + "/" + below;
}

std::string read_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error("cannot read " + path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

void write_text(const std::string& path, const std::string& text) {
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  if (!file) throw std::runtime_error("cannot write " + path);
}

nlohmann::json parse_json(const std::string& text) {
  nlohmann::json json = nlohmann::json::parse(text, nullptr, false);
  EXPECT_FALSE(json.is_discarded()) << "not JSON: " << text;
  return json;
}

TemporaryFolder::TemporaryFolder() {
  const char* const base = getenv("TMPDIR");
  path_ = std::string(base == nullptr ? "/tmp" : base) + "/fibshim-tools-XXXXXX";
  if (mkdtemp(path_.data()) == nullptr) throw std::runtime_error("cannot make " + path_);
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code error;
  std::filesystem::remove_all(path_, error);
}

}  // namespace fibshim::test
