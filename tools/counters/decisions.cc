#include "tools/counters/decisions.h"

#include <algorithm>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <nlohmann/json.hpp>

#include "loader/read/file.h"
#include "shim/abi/outcomes.h"
#include "tools/base/json_input.h"
#include "tools/base/terminal.h"

namespace fibshim::tools {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMostNames = 4;  // in a line for people

Decisions all_of(const SideGroup& group) {
  Decisions all;
  for (const Side& side : group.sides) all.insert(side.decisions.begin(), side.decisions.end());
  return all;
}

// What some sides have and others lack, with the names of either.
struct Difference {
  const Decision* decision;
  std::vector<std::string> in, not_in;
};
std::vector<Difference> differences_in(const SideGroup& group, const Decisions& all) {
  std::vector<Difference> out;
  for (const Decision& decision : all) {
    Difference one{&decision, {}, {}};
    for (const Side& side : group.sides) {
      (side.decisions.count(decision) != 0 ? one.in : one.not_in).push_back(side.name);
    }
    if (!one.not_in.empty()) out.push_back(std::move(one));
  }
  return out;
}

// Fingerprint -> names.
std::map<std::string, std::vector<std::string>> fingerprints_of(const SideGroup& group) {
  std::map<std::string, std::vector<std::string>> out;
  for (const Side& side : group.sides) out[fingerprint(side.decisions)].push_back(side.name);
  return out;
}

std::string names_text(const std::vector<std::string>& names) {
  const size_t shown = std::min(names.size(), kMostNames);
  std::string text = fmt::format(
      "{}", fmt::join(names.begin(), names.begin() + static_cast<ptrdiff_t>(shown), ", "));
  return printable(
      names.size() == shown ? text : fmt::format("{} and {} more", text, names.size() - shown));
}

// A launch that was drawn for a shadow check would else be a hit.
std::string decided(const std::string& outcome) {
  return outcome == outcome_name(static_cast<uint32_t>(Outcome::shadowed))
             ? outcome_name(static_cast<uint32_t>(Outcome::hit))
             : outcome;
}

}  // namespace

Decisions decisions_of(const ProcessCounters& process) {
  Decisions out;
  for (const auto& [key, numbers] : counts_of(process)) {
    if (key.pattern.empty()) continue;
    out.insert({key.definition, key.solution, key.pattern, decided(outcome_name(key.outcome)),
                key.digest});
  }
  return out;
}

std::string fingerprint(const Decisions& decisions) {
  if (decisions.empty()) return "";
  std::string text;
  for (const Decision& one : decisions) {
    for (const std::string* part :
         {&one.definition, &one.solution, &one.pattern, &one.outcome, &one.digest}) {
      text += *part;
      text += '\0';
    }
  }
  return fmt::format("{:016x}", XXH3_64bits(text.data(), text.size()));
}

bool SideGroup::differs() const {
  return std::ranges::any_of(
      sides, [&](const Side& side) { return side.decisions != sides[0].decisions; });
}

std::vector<SideGroup> ranks_of(const std::vector<ProcessCounters>& processes) {
  std::map<std::string, std::vector<const ProcessCounters*>> by_job;
  for (const ProcessCounters& process : processes) by_job[process.folder.job].push_back(&process);
  std::vector<SideGroup> groups;
  for (const auto& [job, ranks] : by_job) {
    const bool is_running = std::ranges::any_of(ranks, &ProcessCounters::is_alive);
    SideGroup group{job, {}};
    for (const ProcessCounters* const rank : ranks) {
      Decisions decisions = decisions_of(*rank);
      if (decisions.empty() || (!job.empty() && is_running && !rank->is_alive)) continue;
      group.sides.push_back({fmt::format("pid {}", rank->pid), std::move(decisions)});
    }
    if (group.sides.size() > 1) groups.push_back(std::move(group));
  }
  return groups;
}

tl::expected<SideGroup, std::string> beside_earlier(const std::vector<ProcessCounters>& processes,
                                                    const LaunchFilter& filter,
                                                    const std::string& file) {
  SideGroup group{"", {{"now", {}}, {"earlier", {}}}};
  for (const ProcessCounters& process : processes) {
    group.sides[0].decisions.merge(decisions_of(process));
  }
  const auto text = read_file(file, kMaxImageBytes);
  if (!text) return tl::unexpected(text.error().message);
  const Json document = parse_json<Json>(*text);
  const Json* const counters = document.is_object() && number_at(document, "/version") == 1
                                   ? find_at(document, "/counters")
                                   : nullptr;
  if (counters == nullptr || !counters->is_array()) {
    return tl::unexpected(file + ": not what `fibshim stats --json` writes");
  }
  for (const Json& one : *counters) {
    Decision decision{text_at(one, "/definition"), text_at(one, "/solution"),
                      text_at(one, "/pattern"), decided(text_at(one, "/outcome")),
                      text_at(one, "/digest")};
    if (decision.pattern.empty() || !is_wanted(filter, decision.definition, decision.pattern)) {
      continue;
    }
    group.sides[1].decisions.insert(std::move(decision));
  }
  return group;
}

std::string differences_text(const std::vector<SideGroup>& groups) {
  std::string out;
  for (const SideGroup& group : groups) {
    const auto fingerprints = fingerprints_of(group);
    if (!out.empty()) out += "\n";
    out += fmt::format("{}{}\n", group.job.empty() ? "" : "job " + printable(group.job) + ": ",
                       fingerprints.size() > 1 ? "they decide differently" : "they decide alike");
    for (const auto& [print, names] : fingerprints) {
      out += fmt::format("  {}: {}\n", print.empty() ? "no decisions" : print, names_text(names));
    }
    if (fingerprints.size() < 2) continue;
    const Decisions all = all_of(group);
    std::vector<std::vector<std::string>> table = {
        {"DEFINITION", "SOLUTION", "PATTERN", "OUTCOME", "CONFIG", "IN", "NOT IN"}};
    for (const Difference& one : differences_in(group, all)) {
      const Decision& decision = *one.decision;
      const auto or_dash = [](const std::string& text) {
        return text.empty() ? "-" : printable(text);
      };
      table.push_back({or_dash(decision.definition), or_dash(decision.solution),
                       printable(decision.pattern), printable(decision.outcome),
                       or_dash(decision.digest.substr(0, 12)), names_text(one.in),
                       names_text(one.not_in)});
    }
    out += format_table(table);
  }
  return out;
}

Json differences_to_json(const std::vector<SideGroup>& groups) {
  Json out = {{"version", 1}, {"same", true}, {"groups", Json::array()}};
  for (const SideGroup& group : groups) {
    Json fingerprints = Json::array(), differences = Json::array();
    for (const auto& [print, names] : fingerprints_of(group)) {
      fingerprints.push_back({{"fingerprint", print}, {"sides", names}});
    }
    const Decisions all = all_of(group);
    for (const Difference& one : differences_in(group, all)) {
      differences.push_back({{"definition", one.decision->definition},
                             {"solution", one.decision->solution},
                             {"pattern", one.decision->pattern},
                             {"outcome", one.decision->outcome},
                             {"digest", one.decision->digest},
                             {"in", one.in},
                             {"not_in", one.not_in}});
    }
    if (!differences.empty()) out["same"] = false;
    out["groups"].push_back({{"job", group.job},
                             {"fingerprints", std::move(fingerprints)},
                             {"differences", std::move(differences)}});
  }
  return out;
}

}  // namespace fibshim::tools
