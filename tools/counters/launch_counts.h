// Adds up what the counters files say: by every name, or by some of them; of all processes, or of
// those that are asked for. Shared by `stats`, `top` and the Prometheus text.
#pragma once

#include <map>
#include <tuple>

#include "tools/base/command_line.h"
#include "tools/counters/counters_files.h"

namespace fibshim::tools {

// What counts are added up under. `config` and `digest` are empty where there is no config.
struct LaunchKey {
  uint32_t outcome;
  std::string definition, solution, pattern, config, digest;
  int32_t device;

  auto tie() const {
    return std::tie(outcome, definition, solution, pattern, config, digest, device);
  }
  bool operator<(const LaunchKey& other) const { return tie() < other.tie(); }
};

struct LaunchRow {
  LaunchKey key;
  LaunchNumbers numbers;
};

// Which counts are wanted. An empty list wants all.
struct LaunchFilter {
  std::vector<uint64_t> pids;
  std::vector<std::string> definitions;  // globs, as in the shell
  std::vector<std::string> patterns;
  std::vector<int32_t> devices;

  bool wants_all() const {
    return pids.empty() && definitions.empty() && patterns.empty() && devices.empty();
  }
};

// --pid, --definition, --pattern and --device.
void add_filter_options(CommandLine* line, LaunchFilter* filter);

// By its names alone.
bool is_wanted(const LaunchFilter& filter, const std::string& definition,
               const std::string& pattern);

// Takes away what is not wanted, in place. Returns the pids that are wanted and not there, and adds
// to *unattributed the launches that --device leaves out only because their device is not known.
std::vector<uint64_t> apply_filter(const LaunchFilter& filter, CountersFolder* folder,
                                   uint64_t* unattributed);

// Hits first, then the other outcomes as the table has them; within one the biggest count first.
std::vector<LaunchRow> sorted_rows(const std::map<LaunchKey, LaunchNumbers>& counts);

std::map<LaunchKey, LaunchNumbers> counts_of(const ProcessCounters& process);
std::map<LaunchKey, LaunchNumbers> counts_of(const std::vector<ProcessCounters>& processes);

std::map<uint32_t, LaunchNumbers> totals_of(const std::vector<LaunchRow>& rows);

}  // namespace fibshim::tools
