// Groups launches by one property (definition, process, ...), with a line for each group: launches,
// executions in all and per second, the share of hits, and the main reason of the others. For
// `stats --by` and `top`.
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
  char key;  // chooses it in `top`
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
GroupBy group_by_named(const std::string& name);  // `name` must be one of them

struct LaunchGroup {
  std::string name;         // empty: launches that no pattern fits, or an unknown device
  std::string detail;       // a process's command line; empty for other groups
  uint64_t start_time = 0;  // a process's; with the pid it tells processes apart
  std::map<uint32_t, LaunchNumbers> outcomes;
  LaunchNumbers numbers;
  double per_second = -1;  // executions per second; -1: not known
  // Shadow checks. Groups by device or outcome have none.
  uint64_t checks = 0, mismatches = 0;

  bool has_failed() const;
};

using LaunchGroups = std::vector<LaunchGroup>;

// True for launches whose solution failed, whether the original ran then or not.
bool is_error(uint32_t outcome);
uint64_t errors_of(const LaunchGroup& group);
// Executions that a solution served: hits, and what a rewrite's hit did the work of.
uint64_t served_by(const LaunchGroup& group);

// Sorted by falling number of executions, then by name.
LaunchGroups group_launches(const std::vector<ProcessCounters>& processes, GroupBy by);

// Computes `per_second` from an earlier reading, and sorts by it first. A group that is new since
// then counts from 0; one whose count fell (it was cleared) gets the rate 0.
void add_rates(const LaunchGroups& earlier, std::chrono::duration<double> elapsed,
               LaunchGroups* groups);

// Rows for format_table(), the heading first. The columns are sorted by falling importance, except
// for a process's command line, which comes last. With a column of rates if has_rates.
std::vector<std::vector<std::string>> group_rows(const LaunchGroups& groups, GroupBy by,
                                                 bool has_rates);

nlohmann::ordered_json groups_to_json(const LaunchGroups& groups);

// "1234.5", "0.02": rounded for people.
std::string rate_words(double per_second);

}  // namespace fibshim::tools
