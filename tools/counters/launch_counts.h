// Adds up the counts of the counters files, of all processes or of the chosen ones.
// Shared by `stats`, `top` and the Prometheus text.
#pragma once

#include <map>
#include <tuple>

#include "tools/base/command_line.h"
#include "tools/counters/counters_folder.h"

namespace fibshim::tools {

// Counts of equal keys are added up. `config` and `digest` are empty if there is no config.
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

// Which counts are wanted. An empty list means all.
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

// Compares the two names only.
bool is_wanted(const LaunchFilter& filter, const std::string& definition,
               const std::string& pattern);

// Removes the counts that are not wanted, in place. Returns the wanted pids that do not exist, and
// adds to *unattributed the launches that --device leaves out because their device is unknown.
std::vector<uint64_t> apply_filter(const LaunchFilter& filter, CountersFolder* folder,
                                   uint64_t* unattributed);

// Hits first, then the other outcomes in the table's order; within each the largest count first.
std::vector<LaunchRow> sorted_rows(const std::map<LaunchKey, LaunchNumbers>& counts);

std::map<LaunchKey, LaunchNumbers> counts_of(const ProcessCounters& process);
std::map<LaunchKey, LaunchNumbers> counts_of(const std::vector<ProcessCounters>& processes);

std::map<uint32_t, LaunchNumbers> totals_of(const std::vector<LaunchRow>& rows);

}  // namespace fibshim::tools
