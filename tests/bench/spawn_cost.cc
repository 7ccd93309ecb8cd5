#include "tests/bench/spawn_cost.h"

#include <fcntl.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <stdexcept>
#include <vector>

#include "tests/bench/measure.h"

namespace fibshim::bench {
namespace {

std::vector<std::string> make_environment(const std::string& preload, const std::string& config) {
  std::vector<std::string> entries;
  for (char** at = environ; *at != nullptr; ++at) {
    const std::string entry = *at;
    if (!entry.starts_with("LD_") && !entry.starts_with("FIBSHIM_")) entries.push_back(entry);
  }
  if (!preload.empty()) {
    entries.push_back("LD_PRELOAD=" + preload);
    entries.push_back("FIBSHIM_CONFIG=" + config);
  }
  return entries;
}

pid_t spawn(const char* program, const posix_spawn_file_actions_t* actions,
            std::vector<std::string> environment) {
  std::vector<char*> pointers;
  for (std::string& entry : environment) pointers.push_back(entry.data());
  pointers.push_back(nullptr);
  char* const arguments[] = {const_cast<char*>(program), nullptr};
  pid_t child = 0;
  const int error = posix_spawn(&child, program, actions, nullptr, arguments, pointers.data());
  if (error != 0) throw std::runtime_error(std::string(program) + ": " + strerror(error));
  return child;
}

void wait_for(pid_t child) {
  int status = 0;
  if (waitpid(child, &status, 0) != child || status != 0) {
    throw std::runtime_error("a spawned program failed");
  }
}

double spawn_us(const std::vector<std::string>& environment) {
  const auto begin = std::chrono::steady_clock::now();
  wait_for(spawn("/bin/true", nullptr, environment));
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin)
      .count();
}

struct Memory {
  double pss_kib = 0;
  double private_kib = 0;
};

// The memory of a `cat` that has answered once, so that it has started, and waits for more.
Memory memory_of(const std::vector<std::string>& environment) {
  int in[2];
  int out[2];
  if (pipe2(in, O_CLOEXEC) != 0 || pipe2(out, O_CLOEXEC) != 0) throw std::runtime_error("pipe2");
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, in[0], STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO);
  const pid_t child = spawn("/bin/cat", &actions, environment);
  posix_spawn_file_actions_destroy(&actions);
  close(in[0]);
  close(out[1]);
  char byte = 'x';
  const bool has_answered = write(in[1], &byte, 1) == 1 && read(out[0], &byte, 1) == 1;
  Memory memory;
  std::ifstream rollup("/proc/" + std::to_string(child) + "/smaps_rollup");
  for (std::string line; std::getline(rollup, line);) {
    const double kib = strtod(line.c_str() + line.find(':') + 1, nullptr);
    if (line.starts_with("Pss:")) memory.pss_kib = kib;
    if (line.starts_with("Private_")) memory.private_kib += kib;
  }
  close(in[1]);
  close(out[0]);
  wait_for(child);
  if (!has_answered || memory.pss_kib == 0) throw std::runtime_error("/bin/cat does not answer");
  return memory;
}

}  // namespace

SpawnCost measure_spawn_cost(const std::string& preload, const std::string& config, int rounds) {
  const std::vector<std::string> plain = make_environment("", "");
  const std::vector<std::string> preloaded = make_environment(preload, config);
  std::vector<double> plain_us, preloaded_us, plain_pss, preloaded_pss, plain_own, preloaded_own;
  for (int i = 0; i < rounds; ++i) {
    plain_us.push_back(spawn_us(plain));
    preloaded_us.push_back(spawn_us(preloaded));
    if (i % 20 != 0) continue;
    const Memory without = memory_of(plain);
    const Memory with = memory_of(preloaded);
    plain_pss.push_back(without.pss_kib);
    preloaded_pss.push_back(with.pss_kib);
    plain_own.push_back(without.private_kib);
    preloaded_own.push_back(with.private_kib);
  }
  return {median(plain_us),      median(preloaded_us), median(plain_pss),
          median(preloaded_pss), median(plain_own),    median(preloaded_own)};
}

}  // namespace fibshim::bench
