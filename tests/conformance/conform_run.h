// Runs cases of the host program `conform` under the shim and compares what they state with the
// counters, and with the simulated driver's log of what it ran.
//
// FIBSHIM_TEST_REAL_DRIVER=1 in the environment: the machine's own driver is used. Then the log is
// not there, and the hosts tell what ran by marks that the kernels leave.
#pragma once

#include <gtest/gtest.h>

#include <nlohmann/json_fwd.hpp>

#include "tests/support/process.h"

namespace fibshim::conformance {

using Environment = std::map<std::string, std::string>;

// "hit" or "ran:curated_n1" -> how often.
using Tally = std::map<std::string, long>;

bool is_real_driver();

// A number from the environment.
long number_from(const char* name, long unset);

// The simulated GPUs of a random program. Where they are unlike, every launch depends on its
// device.
Environment devices_of(long seed);

// The same, and the faults that strike it: of each kind alone and together, rare and frequent, with
// strict errors and with lenient ones.
Environment faults_of(long seed);

// build/tests/conformance/<name>
std::string conform_path(const std::string& name);
std::string shim_path();

// One run of a host program, with a stats folder and a log of its own.
class HostRun {
 public:
  // `preload` is what LD_PRELOAD holds; `command` is a program of conform_path() and its arguments.
  HostRun(const std::vector<std::string>& command, const Environment& added = {},
          const std::string& preload = shim_path(), int timeout_s = 60);

  const ProcessResult& process() const { return process_; }
  // By pid, what each process stated. A process stated once.
  const std::map<int, Tally>& stated() const { return stated_; }
  // Sums over all processes of the run.
  Tally counted() const;
  Tally logged() const;
  // Of one process; an exec'ed program shares its pid with the one before.
  Tally counted(int pid) const;
  // Where faults strike: a graph of which nothing could be learnt is not counted. Pid 0: of all.
  Tally counted_without_nodes(int pid = 0) const;
  // "fibshim[...]" lines on stderr.
  std::vector<std::string> messages() const;
  const std::string& stats_dir() const { return stats_dir_; }

  // It ended well, and each process counted and ran what it stated, and nothing else did.
  void expect_holds() const;
  // The same, and the shim wrote so many lines.
  void expect_holds(int messages) const {
    expect_holds();
    EXPECT_EQ(this->messages().size(), static_cast<size_t>(messages)) << process_.err;
  }
  // The same of a random program that ran with faults_of(seed): every launch was counted, hits as
  // such, and where it failed because of the shim the log says why.
  void expect_holds_with_faults() const;
  // What ran was counted as executions, no more and no less.
  void expect_all_executed() const;
  bool was_skipped() const { return process_.exit_code == 77; }

 private:
  Tally read_stats(const std::vector<std::string>& more) const;
  long ran_in_bodies() const;
  void expect_replaced(const Tally& ran) const;
  void expect_ended_well() const;

  std::string stats_dir_;
  std::string log_;
  bool has_log_ = false;
  bool is_strict_ = true;
  ProcessResult process_;
  std::map<int, Tally> stated_;
};

// What `fibshim stats --json` says of that folder.
nlohmann::json stats_json(const std::string& stats_dir, const std::vector<std::string>& more = {});

// Folders that a process may move between, for the cases of swap_cases.cc; in swap_test.cc.
std::string make_swap_folders();

// The environment that a host needs to find driver, shim and configuration.
Environment host_environment(const std::string& preload, const std::string& stats_dir);

}  // namespace fibshim::conformance
