#include "tests/shim/preloaded_engine.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <sstream>

namespace fibshim {

namespace fs = std::filesystem;

long EngineRun::launches_with(int code) const {
  return report.contains("codes") ? report["codes"].value(std::to_string(code), 0L) : 0;
}

long EngineRun::ran_original() const { return report.value("ran_original", -1L); }
long EngineRun::ran_curated() const { return report.value("ran_curated", -1L); }
long EngineRun::driver_errors() const { return report.value("driver_errors", -1L); }

long EngineRun::outcome(const std::string& name) const {
  const auto found = counts.find(name);
  return found == counts.end() ? 0 : found->second;
}

std::vector<std::string> EngineRun::messages() const {
  std::vector<std::string> lines;
  std::istringstream in(process.err);
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with("fibshim[")) lines.push_back(line);
  }
  return lines;
}

PreloadedEngine::PreloadedEngine() : stats_dir_(make_temporary_dir()) {}

Environment PreloadedEngine::environment(const std::string& config) const {
  Environment all = {{"LD_LIBRARY_PATH", build_dir() + "/sim"},
                     {"LD_PRELOAD", build_dir() + "/lib/libfibshim.so"},
                     {"FIBSHIM_STATS_DIR", stats_dir_}};
  if (!config.empty()) all["FIBSHIM_CONFIG"] = config;
  return all;
}

nlohmann::json PreloadedEngine::stats() const {
  const ProcessResult result = run_process({build_dir() + "/bin/fibshim", "stats", "--json"},
                                           {{"FIBSHIM_STATS_DIR", stats_dir_}});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  return nlohmann::json::parse(result.out, nullptr, false);
}

EngineRun PreloadedEngine::run(const std::vector<std::string>& arguments, const std::string& config,
                               const Environment& added, const std::string& host) const {
  Environment all = environment(config);
  for (const auto& [name, value] : added) all[name] = value;
  std::vector<std::string> command = {build_dir() + "/tests/hosts/" + host};
  command.insert(command.end(), arguments.begin(), arguments.end());
  EngineRun run;
  run.process = run_process(command, all);
  EXPECT_FALSE(run.process.timed_out);
  run.report = nlohmann::json::parse(run.process.out, nullptr, false);
  if (run.report.is_discarded()) run.report = nullptr;
  const nlohmann::json all_counters = stats();
  for (const auto& counter : all_counters["counters"]) {
    const auto text = [&](const char* key) {
      return counter[key].is_string() ? counter[key].get<std::string>() : std::string();
    };
    const long count = counter["count"].get<long>();
    run.counts[text("outcome")] += count;
    run.counts[text("pattern") + " " + text("definition") + " " + text("outcome")] += count;
  }
  return run;
}

long PreloadedEngine::bare_driver_errors(const std::vector<std::string>& arguments,
                                         const Environment& added, const std::string& host) {
  Environment all = {{"LD_LIBRARY_PATH", build_dir() + "/sim"}};
  for (const auto& [name, value] : added) all[name] = value;
  std::vector<std::string> command = {build_dir() + "/tests/hosts/" + host};
  command.insert(command.end(), arguments.begin(), arguments.end());
  const ProcessResult result = run_process(command, all);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  return nlohmann::json::parse(result.out).value("driver_errors", -1L);
}

PausedEngine::PausedEngine(const Environment& environment,
                           const std::vector<std::string>& arguments) {
  int in[2], out[2];
  if (pipe2(in, O_CLOEXEC) != 0 || pipe2(out, O_CLOEXEC) != 0) abort();
  std::vector<std::string> words = {build_dir() + "/tests/hosts/engine", "--threads=3",
                                    "--launches=100", "--pause-after=40"};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  pid_ = fork();
  if (pid_ == 0) {
    dup2(in[0], STDIN_FILENO);
    dup2(out[1], STDOUT_FILENO);
    for (const auto& [name, value] : environment) setenv(name.c_str(), value.c_str(), 1);
    execv(argv[0], argv.data());
    _exit(127);
  }
  close(in[0]);
  close(out[1]);
  in_ = in[1];
  out_ = out[0];
  std::string said;
  for (char byte; !said.ends_with("paused\n") && read(out_, &byte, 1) == 1;) said += byte;
}

std::string PausedEngine::resume() {
  EXPECT_EQ(write(in_, "\n", 1), 1);
  std::string said;
  for (char byte; read(out_, &byte, 1) == 1;) said += byte;
  int status = 0;
  EXPECT_EQ(waitpid(pid_, &status, 0), pid_);
  EXPECT_EQ(status, 0) << said;
  pid_ = 0;
  kill();
  return said;
}

void PausedEngine::kill() {
  if (pid_ > 0) {
    ::kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  pid_ = 0;
  for (int* end : {&in_, &out_}) {
    if (*end >= 0) close(*end);
    *end = -1;
  }
}

std::string pytorch_config() { return build_dir() + "/config/pytorch"; }

std::string copy_of_pytorch_config() {
  const std::string copy = make_temporary_dir() + "/config";
  fs::copy(pytorch_config(), copy, fs::copy_options::recursive);
  return copy;
}

fs::path find_file(const std::string& folder, const std::string& name) {
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.path().filename() == name) return entry.path();
  }
  ADD_FAILURE() << folder << " holds no " << name;
  return {};
}

void edit_file(const fs::path& path, const std::string& from, const std::string& to) {
  std::ifstream in(path);
  std::stringstream text;
  text << in.rdbuf();
  std::string content = text.str();
  const size_t at = content.find(from);
  ASSERT_NE(at, std::string::npos) << path << " does not hold " << from;
  content.replace(at, from.size(), to);
  std::ofstream(path, std::ios::trunc) << content;
}

}  // namespace fibshim
