// Launches by one thing only (definition, process, ...), with a line for each: how many, how often they ran, in
// all and a second, the share of hits, and what mostly kept the others. For `stats --by` and `top`.
#pragma once

#include <chrono>
#include <map>

#include <nlohmann/json_fwd.hpp>

#include "tools/counters/counters_files.h"

namespace fibshim::tools {

enum class GroupBy : uint8_t { definition, solution, pattern, process, device, config, outcome };

struct GroupByInfo {
  GroupBy by;
  const char* name;
  const char* heading;
  char key;  // that chooses it in `top`
};
inline constexpr GroupByInfo kGroupBys[] = {
    {GroupBy::definition, "definition", "DEFINITION", 'd'},
    {GroupBy::solution, "solution", "SOLUTION", 's'},
    {GroupBy::pattern, "pattern", "PATTERN", 'p'},
    {GroupBy::process, "process", "PROCESS", 'r'},
    {GroupBy::device, "device", "DEVICE", 'g'},
    {GroupBy::config, "config", "CONFIG", 'c'},
    {GroupBy::outcome, "outcome", "OUTCOME", 'o'},
};

std::vector<std::string> group_by_names();
GroupBy group_by_named(const std::string& name);  // one of them

struct LaunchGroup {
  std::string name;    // empty: launches that no pattern knows, or an unknown device
  std::string detail;  // of a process its command line; empty of others
  std::map<uint32_t, LaunchNumbers> outcomes;
  LaunchNumbers numbers;
  double per_second = -1;  // of executions; -1: not known
  // Shadow checks; of devices and outcomes they are not told.
  uint64_t checks = 0, mismatches = 0;

  bool has_failed() const;
};

using LaunchGroups = std::vector<LaunchGroup>;

// Launches whose solution failed, whoever went on with what.
bool is_error(uint32_t outcome);
uint64_t errors_of(const LaunchGroup& group);

// By falling number of executions, then name.
LaunchGroups group_launches(const std::vector<ProcessCounters>& processes, GroupBy by);

// Fills in `per_second` from an earlier reading, and sorts by it first. A group that is new since
// began with none; one whose count fell (it was cleared) is at rest.
void add_rates(const LaunchGroups& earlier, std::chrono::duration<double> elapsed,
               LaunchGroups* groups);

// Rows for format_table, the heading first. The columns stand by falling importance, but for a process's
// command line, which comes last. Rates only where some are known.
std::vector<std::vector<std::string>> group_rows(const LaunchGroups& groups, GroupBy by,
                                                 bool has_rates);

nlohmann::ordered_json groups_to_json(const LaunchGroups& groups);

// "1234.5", "0.02": what a person reads at a glance.
std::string rate_words(double per_second);

}  // namespace fibshim::tools
