// Counts the instructions of one launch exactly: callgrind counts those of two runs of launch_loop,
// with N = kShortRun and with 2N launches; a launch takes the difference divided by N. For `make
// bench` and the test of the launch path.
#pragma once

#include <stdlib.h>

#include <fstream>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/support/process.h"

namespace fibshim::bench {

// Launches of the shorter run.
inline constexpr long kShortRun = 1000;
// How often count_instructions() launches each kernel: 8 times to warm up, and in both runs.
inline constexpr long kCountedLaunches = 8 + 3 * kShortRun;

// The instructions per launch, by kernel, of `launch_loop` in that environment. Throws
// std::runtime_error with the reason of a failure.
inline std::map<std::string, double> count_instructions(
    const std::vector<std::string>& kernels, std::map<std::string, std::string> environment) {
  const std::string out = make_temporary_dir() + "/callgrind.out";
  environment["LD_LIBRARY_PATH"] = build_dir() + "/sim";
  environment["SIMCUDA_FAST"] = "1";
  std::vector<std::string> command = {"valgrind",
                                      "--tool=callgrind",
                                      "--instr-atstart=no",
                                      "--callgrind-out-file=" + out,
                                      "--combine-dumps=yes",
                                      "--separate-threads=yes",
                                      build_dir() + "/bench/launch_loop",
                                      std::to_string(kShortRun)};
  command.insert(command.end(), kernels.begin(), kernels.end());
  const ProcessResult result = run_process(command, environment);
  if (result.exit_code != 0) {
    throw std::runtime_error("valgrind launch_loop exits with " + std::to_string(result.exit_code) +
                             ":\n" + result.err);
  }
  // Each dump: "thread: <number>", "desc: Trigger: Client Request: <kernel> <run>", later "totals:
  // <instructions>". The first thread launches; the shim's own thread may run meanwhile.
  std::map<std::string, double> totals;
  std::ifstream file(out);
  const std::string trigger = "desc: Trigger: Client Request: ";
  const std::string thread = "thread: ";
  const std::string total = "totals: ";
  std::string dump;
  bool is_first_thread = true;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(trigger)) dump = line.substr(trigger.size());
    if (line.starts_with(thread)) is_first_thread = line == thread + "1";
    if (line.starts_with("desc: Trigger: Program termination")) dump.clear();
    if (line.starts_with(total) && !dump.empty() && is_first_thread) {
      totals[dump] = strtod(line.c_str() + total.size(), nullptr);
    }
  }
  std::map<std::string, double> per_launch;
  for (const std::string& kernel : kernels) {
    const auto once = totals.find(kernel + " 1");
    const auto twice = totals.find(kernel + " 2");
    if (once == totals.end() || twice == totals.end()) {
      throw std::runtime_error("callgrind wrote no counts for " + kernel + ":\n" + result.err);
    }
    per_launch[kernel] = (twice->second - once->second) / kShortRun;
  }
  return per_launch;
}

}  // namespace fibshim::bench
