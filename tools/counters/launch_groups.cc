#include "tools/counters/launch_groups.h"

#include <functional>
#include <tuple>

#include <nlohmann/json.hpp>

#include "shim/abi/outcomes.h"
#include "tools/base/terminal.h"

namespace fibshim::tools {
namespace {

constexpr std::string_view kEnded = " (ended)";

std::string group_name(const ProcessCounters& process, const Count& count, GroupBy by) {
  switch (by) {
    case GroupBy::definition: return count.definition;
    case GroupBy::solution: return count.solution;
    case GroupBy::pattern: return count.pattern;
    case GroupBy::process: return fmt::format("{}{}", process.pid, process.is_alive ? "" : kEnded);
    case GroupBy::device:
      if (count.device < 0) return "";
      if (static_cast<size_t>(count.device) >= process.devices.size()) {
        return fmt::format("{}", count.device);
      }
      return fmt::format("{} {}", count.device,
                         process.devices[static_cast<size_t>(count.device)].name);
    case GroupBy::config:
      return !count.pattern.empty() && count.config < process.configs.size()
                 ? process.configs[count.config].path
                 : "";
    case GroupBy::outcome: return outcome_name(count.outcome);
  }
  return "";
}

// The name, detail and start time of a group.
using GroupKey = std::tuple<std::string, std::string, uint64_t>;

GroupKey key_of(const ProcessCounters& process, const Count& count, GroupBy by) {
  if (by != GroupBy::process) return {group_name(process, count, by), "", 0};
  return {group_name(process, count, by),
          process.command.empty() ? process.executable : process.command, process.start_time};
}

std::string whole_name(const LaunchGroup& group) {
  return group.detail.empty() ? group.name : group.name + " " + group.detail;
}

LaunchNumbers numbers_of(const LaunchGroup& group, Outcome outcome) {
  const auto at = group.outcomes.find(static_cast<uint32_t>(outcome));
  return at == group.outcomes.end() ? LaunchNumbers{} : at->second;
}

// True if the original ran, for whatever reason.
bool is_fallback(uint32_t outcome) {
  return outcome_name(outcome).starts_with("fallback_") ||
         outcome == static_cast<uint32_t>(Outcome::shadowed) ||
         outcome == static_cast<uint32_t>(Outcome::error_fallback);
}

// The most frequent outcome besides hits, absorbed launches and launches of unknown kernels.
std::string main_reason(const LaunchGroup& group) {
  uint64_t most = 0;
  std::string out = "-";
  for (const auto& [outcome, numbers] : group.outcomes) {
    const uint64_t count = std::max(numbers.launches, numbers.executions);
    if (outcome == static_cast<uint32_t>(Outcome::hit) ||
        outcome == static_cast<uint32_t>(Outcome::absorbed) ||
        outcome == static_cast<uint32_t>(Outcome::untracked) || count <= most) {
      continue;
    }
    most = count;
    out = outcome_name(outcome);
  }
  return out;
}

}  // namespace

bool is_error(uint32_t outcome) {
  return outcome == static_cast<uint32_t>(Outcome::error) ||
         outcome == static_cast<uint32_t>(Outcome::error_fallback);
}

uint64_t errors_of(const LaunchGroup& group) {
  uint64_t out = 0;
  for (const auto& [outcome, numbers] : group.outcomes) {
    if (is_error(outcome)) out = saturating_add(out, numbers.launches);
  }
  return out;
}

uint64_t served_by(const LaunchGroup& group) {
  return saturating_add(numbers_of(group, Outcome::hit).executions,
                        numbers_of(group, Outcome::absorbed).executions);
}

std::vector<std::string> group_by_names() {
  std::vector<std::string> out;
  for (const GroupByInfo& info : kGroupBys) out.emplace_back(info.name);
  return out;
}

GroupBy group_by_named(const std::string& name) {
  const GroupByInfo* const row = find_row(kGroupBys, &GroupByInfo::name, std::string_view(name));
  return row == nullptr ? GroupBy::definition : row->by;
}

bool LaunchGroup::has_failed() const { return errors_of(*this) > 0 || mismatches > 0; }

LaunchGroups group_launches(const std::vector<ProcessCounters>& processes, GroupBy by) {
  std::map<GroupKey, LaunchGroup> groups;
  for (const ProcessCounters& process : processes) {
    for (const Count& count : process.counts) {
      LaunchGroup& group = groups[key_of(process, count, by)];
      group.outcomes[count.outcome].add(count.numbers);
      group.numbers.add(count.numbers);
    }
    if (by == GroupBy::device || by == GroupBy::outcome) continue;
    for (const ShadowCount& shadow : process.shadow) {
      const Count count = {
          shadow.config, -1, shadow.pattern, shadow.definition, shadow.solution, 0, {}};
      const auto group = groups.find(key_of(process, count, by));
      if (group == groups.end()) continue;
      LaunchGroup& to = group->second;
      to.checks = saturating_add(to.checks, shadow.numbers.checks);
      to.mismatches = saturating_add(to.mismatches, shadow.numbers.mismatches);
    }
  }
  LaunchGroups out;
  for (auto& [key, group] : groups) {
    std::tie(group.name, group.detail, group.start_time) = key;
    out.push_back(std::move(group));
  }
  std::ranges::stable_sort(out, std::greater<>(),
                           [](const LaunchGroup& group) { return group.numbers.executions; });
  return out;
}

void add_rates(const LaunchGroups& earlier, std::chrono::duration<double> elapsed,
               LaunchGroups* groups) {
  // A process that has ended since then is the same one.
  const auto key = [](LaunchGroup group) {
    if (group.name.ends_with(kEnded)) group.name.resize(group.name.size() - kEnded.size());
    return std::pair(whole_name(group), group.start_time);
  };
  std::map<std::pair<std::string, uint64_t>, uint64_t> before;
  for (const LaunchGroup& group : earlier) before[key(group)] += group.numbers.executions;
  for (LaunchGroup& group : *groups) {
    const auto at = before.find(key(group));
    const uint64_t was = at == before.end() ? 0 : at->second;
    const uint64_t more = subtract_to_zero(group.numbers.executions, was);
    group.per_second = elapsed.count() > 0 ? static_cast<double>(more) / elapsed.count() : -1;
  }
  std::ranges::stable_sort(*groups, std::greater<>(), &LaunchGroup::per_second);
}

std::vector<std::vector<std::string>> group_rows(const LaunchGroups& groups, GroupBy by,
                                                 bool has_rates) {
  std::vector<std::string> heading = {kGroupBys[static_cast<size_t>(by)].heading};
  if (has_rates) heading.emplace_back(">PER S");
  heading.insert(heading.end(),
                 {">LAUNCHES", ">ERRORS", ">RUNS", ">HIT %", ">HITS", ">FALLBACKS", ">UNTRACKED"});
  const bool has_checks =
      std::ranges::any_of(groups, [](const LaunchGroup& group) { return group.checks != 0; });
  if (has_checks) heading.insert(heading.end(), {">CHECKS", ">MISMATCHES"});
  heading.emplace_back("MAIN REASON");
  if (by == GroupBy::process) heading.emplace_back("COMMAND");
  std::vector<std::vector<std::string>> rows = {std::move(heading)};
  for (const LaunchGroup& group : groups) {
    uint64_t fallbacks = 0;
    for (const auto& [outcome, numbers] : group.outcomes) {
      if (is_fallback(outcome)) fallbacks = saturating_add(fallbacks, numbers.executions);
    }
    const uint64_t executions = group.numbers.executions;
    const uint64_t hits = numbers_of(group, Outcome::hit).executions;
    std::vector<std::string> row = {group.name.empty() ? "-" : printable(group.name)};
    if (has_rates) row.push_back(rate_words(group.per_second));
    row.insert(
        row.end(),
        {fmt::format("{}", group.numbers.launches), fmt::format("{}", errors_of(group)),
         fmt::format("{}", executions),
         fmt::format("{:.1f}", executions == 0 ? 0.0
                                               : 100.0 * static_cast<double>(served_by(group)) /
                                                     static_cast<double>(executions)),
         fmt::format("{}", hits), fmt::format("{}", fallbacks),
         fmt::format("{}", numbers_of(group, Outcome::untracked).executions)});
    if (has_checks) {
      row.insert(row.end(), {fmt::format("{}", group.checks), fmt::format("{}", group.mismatches)});
    }
    row.push_back(main_reason(group));
    if (by == GroupBy::process) row.push_back(printable(group.detail));
    rows.push_back(std::move(row));
  }
  return rows;
}

nlohmann::ordered_json groups_to_json(const LaunchGroups& groups) {
  nlohmann::ordered_json out = nlohmann::ordered_json::array();
  for (const LaunchGroup& group : groups) {
    nlohmann::ordered_json item;
    item["name"] = whole_name(group);
    if (group.start_time != 0) item["start_time"] = group.start_time;
    item["launches"] = group.numbers.launches;
    item["executions"] = group.numbers.executions;
    item["body_nodes"] = group.numbers.body_nodes;
    item["per_second"] =
        group.per_second < 0 ? nlohmann::ordered_json() : nlohmann::ordered_json(group.per_second);
    item["outcomes"] = nlohmann::ordered_json::object();
    item["executed"] = nlohmann::ordered_json::object();
    for (const auto& [outcome, numbers] : group.outcomes) {
      item["outcomes"][outcome_name(outcome)] = numbers.launches;
      item["executed"][outcome_name(outcome)] = numbers.executions;
    }
    if (group.checks != 0) {
      item["shadow_checks"] = group.checks;
      item["shadow_mismatches"] = group.mismatches;
    }
    out.push_back(std::move(item));
  }
  return out;
}

std::string rate_words(double per_second) {
  if (per_second < 0) return "-";
  return per_second == 0 || per_second >= 100 ? fmt::format("{:.0f}", per_second)
         : per_second >= 1                    ? fmt::format("{:.1f}", per_second)
                                              : fmt::format("{:.2g}", per_second);
}

}  // namespace fibshim::tools
