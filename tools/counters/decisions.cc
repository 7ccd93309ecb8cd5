#include "tools/counters/decisions.h"

#include <algorithm>
#include <charconv>

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

constexpr size_t kMostShownNames = 4;  // in a line for people

// Adds the shapes of a decision to those that are there.
void add_decision(const Decision& decision, const Shapes& shapes, Decisions* out) {
  Shapes& all = (*out)[decision];
  for (uint32_t i = 0; i < kShapeWords; ++i) all[i] |= shapes[i];
}

void add_decisions(const Decisions& more, Decisions* out) {
  for (const auto& [decision, shapes] : more) add_decision(decision, shapes, out);
}

Decisions all_of(const SideGroup& group) {
  Decisions all;
  for (const Side& side : group.sides) add_decisions(side.decisions, &all);
  return all;
}

// What some sides have and others lack. There may be thousands of sides, and of these.
struct Difference {
  const Decision* decision;
  std::vector<size_t> in;  // numbers of sides, rising
};
std::vector<Difference> differences_in(const SideGroup& group, const Decisions& all) {
  std::map<const Decision*, std::vector<size_t>> in;
  for (size_t i = 0; i < group.sides.size(); ++i) {
    for (const auto& [decision, shapes] : group.sides[i].decisions) {
      in[&all.find(decision)->first].push_back(i);
    }
  }
  std::vector<Difference> out;
  for (const auto& [decision, shapes] : all) {
    std::vector<size_t>& sides = in[&decision];
    if (sides.size() < group.sides.size()) out.push_back({&decision, std::move(sides)});
  }
  return out;
}

// The names of the sides that have it, or of those that lack it: at most so many.
std::vector<std::string> names_of(const SideGroup& group, const Difference& one, bool have_it,
                                  size_t most = SIZE_MAX) {
  std::vector<std::string> out;
  auto next = one.in.begin();
  for (size_t i = 0; i < group.sides.size() && out.size() < most; ++i) {
    const bool has_it = next != one.in.end() && *next == i;
    if (has_it) ++next;
    if (has_it == have_it) out.push_back(group.sides[i].name);
  }
  return out;
}

// 16 hexadecimal digits for each word.
std::string text_of(const Shapes& shapes) {
  std::string text;
  for (const uint64_t word : shapes) text += fmt::format("{:016x}", word);
  return text;
}
Shapes shapes_of(const std::string& text) {
  Shapes shapes{};
  for (size_t i = 0; i < shapes.size() && text.size() == 16 * shapes.size(); ++i) {
    (void)std::from_chars(&text[16 * i], &text[16 * i] + 16, shapes[i], 16);
  }
  return shapes;
}

Json to_json(const Decision& decision) {
  return {{"definition", decision.definition}, {"solution", decision.solution},
          {"pattern", decision.pattern},       {"outcome", decision.outcome},
          {"digest", decision.digest},         {"image", decision.image}};
}

// What several sides decided alike, but met in other shapes: the sides, by these.
struct ShapeDifference {
  const Decision* decision;
  std::map<Shapes, std::vector<std::string>> sides;
};
std::vector<ShapeDifference> shape_differences_in(const SideGroup& group, const Decisions& all) {
  std::map<const Decision*, std::map<Shapes, std::vector<std::string>>> met;
  for (const Side& side : group.sides) {
    for (const auto& [decision, shapes] : side.decisions) {
      met[&all.find(decision)->first][shapes].push_back(side.name);
    }
  }
  std::vector<ShapeDifference> out;
  for (const auto& [decision, shapes] : all) {
    auto& sides = met[&decision];
    if (sides.size() > 1) out.push_back({&decision, std::move(sides)});
  }
  return out;
}

// Fingerprint -> names.
std::map<std::string, std::vector<std::string>> fingerprints_of(const SideGroup& group) {
  std::map<std::string, std::vector<std::string>> out;
  for (const Side& side : group.sides) out[fingerprint(side.decisions)].push_back(side.name);
  return out;
}

// The first of `count` names; there may be more in the list than are shown.
std::string names_text(const std::vector<std::string>& names, size_t count) {
  const size_t shown = std::min(names.size(), kMostShownNames);
  std::string text = fmt::format(
      "{}", fmt::join(names.begin(), names.begin() + static_cast<ptrdiff_t>(shown), ", "));
  return printable(count == shown ? text : fmt::format("{} and {} more", text, count - shown));
}
std::string names_text(const std::vector<std::string>& names) {
  return names_text(names, names.size());
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
  for (const Count& count : process.counts) {
    if (count.pattern.empty()) continue;
    add_decision(
        {count.definition, count.solution, count.pattern, decided(outcome_name(count.outcome)),
         count.config < process.configs.size() ? process.configs[count.config].digest : "",
         count.image == 0 ? "" : fmt::format("{:016x}", count.image)},
        count.shapes, &out);
  }
  return out;
}

Json decisions_to_json(const std::vector<ProcessCounters>& processes) {
  Decisions all;
  for (const ProcessCounters& process : processes) add_decisions(decisions_of(process), &all);
  Json out = Json::array();
  for (const auto& [decision, shapes] : all) {
    out.push_back(to_json(decision));
    out.back()["shapes"] = text_of(shapes);
  }
  return out;
}

std::string fingerprint(const Decisions& decisions) {
  if (decisions.empty()) return "";
  std::string text;
  for (const auto& [one, shapes] : decisions) {
    for (const std::string* part :
         {&one.definition, &one.solution, &one.pattern, &one.outcome, &one.digest, &one.image}) {
      text += *part;
      text += '\0';
    }
  }
  return fmt::format("{:016x}", XXH3_64bits(text.data(), text.size()));
}

bool SideGroup::differs() const {
  const std::string first = fingerprint(sides[0].decisions);
  return std::ranges::any_of(
      sides, [&](const Side& side) { return fingerprint(side.decisions) != first; });
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

tl::expected<SideGroup, std::string> compare_with_earlier(
    const std::vector<ProcessCounters>& processes, const LaunchFilter& filter,
    const std::string& file) {
  SideGroup group{"", {{"now", {}}, {"earlier", {}}}};
  for (const ProcessCounters& process : processes) {
    add_decisions(decisions_of(process), &group.sides[0].decisions);
  }
  const auto text = read_file(file, kMaxImageBytes);
  if (!text) return tl::unexpected(text.error().message);
  const Json document = parse_json<Json>(*text);
  const Json* const listed = document.is_object() && number_at(document, "/version") == 1
                                 ? find_at(document, "/decisions")
                                 : nullptr;
  if (listed == nullptr || !listed->is_array()) {
    return tl::unexpected(file + ": not what `fibshim stats --json` writes");
  }
  for (const Json& one : *listed) {
    Decision decision{text_at(one, "/definition"), text_at(one, "/solution"),
                      text_at(one, "/pattern"),    text_at(one, "/outcome"),
                      text_at(one, "/digest"),     text_at(one, "/image")};
    if (decision.pattern.empty() || !is_wanted(filter, decision.definition, decision.pattern)) {
      continue;
    }
    add_decision(decision, shapes_of(text_at(one, "/shapes")), &group.sides[1].decisions);
  }
  if (group.sides[0].decisions.empty() && group.sides[1].decisions.empty()) {
    return tl::unexpected("nothing to compare: no decisions, neither now nor in " + file);
  }
  return group;
}

namespace {

std::string or_dash(const std::string& text) { return text.empty() ? "-" : printable(text); }

std::string kernels_table(const SideGroup& group, const Decisions& all) {
  std::vector<std::vector<std::string>> table = {
      {"DEFINITION", "SOLUTION", "PATTERN", "OUTCOME", "CONFIG", "IMAGE", "IN", "NOT IN"}};
  for (const Difference& one : differences_in(group, all)) {
    const Decision& decision = *one.decision;
    table.push_back({or_dash(decision.definition), or_dash(decision.solution),
                     printable(decision.pattern), printable(decision.outcome),
                     or_dash(decision.digest.substr(0, 12)), or_dash(decision.image.substr(0, 12)),
                     names_text(names_of(group, one, true, kMostShownNames), one.in.size()),
                     names_text(names_of(group, one, false, kMostShownNames),
                                group.sides.size() - one.in.size())});
  }
  return table.size() == 1 ? "" : format_table(table);
}

std::string shapes_table(const SideGroup& group, const Decisions& all) {
  std::vector<std::vector<std::string>> table = {
      {"DEFINITION", "SOLUTION", "PATTERN", "OUTCOME", "SAME SHAPES IN"}};
  for (const ShapeDifference& one : shape_differences_in(group, all)) {
    const Decision& decision = *one.decision;
    std::string sides;
    for (const auto& [shapes, names] : one.sides) {
      sides += (sides.empty() ? "" : " | ") + names_text(names);
    }
    table.push_back({or_dash(decision.definition), or_dash(decision.solution),
                     printable(decision.pattern), printable(decision.outcome), sides});
  }
  return table.size() == 1 ? ""
                           : "they met the same decisions in other shapes\n" + format_table(table);
}

}  // namespace

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
    const Decisions all = all_of(group);
    out += kernels_table(group, all);
    out += shapes_table(group, all);
  }
  return out;
}

Json differences_to_json(const std::vector<SideGroup>& groups) {
  Json out = {{"version", 1}, {"same", true}, {"same_shapes", true}, {"groups", Json::array()}};
  for (const SideGroup& group : groups) {
    Json fingerprints = Json::array(), differences = Json::array(), shapes = Json::array();
    for (const auto& [print, names] : fingerprints_of(group)) {
      fingerprints.push_back({{"fingerprint", print}, {"sides", names}});
    }
    const Decisions all = all_of(group);
    for (const Difference& one : differences_in(group, all)) {
      Json& added = differences.emplace_back(to_json(*one.decision));
      added["in"] = names_of(group, one, true);
      added["not_in"] = names_of(group, one, false);
    }
    for (const ShapeDifference& one : shape_differences_in(group, all)) {
      Json& added = shapes.emplace_back(to_json(*one.decision));
      for (const auto& [of, names] : one.sides) added["sides"].push_back(names);
    }
    if (!differences.empty()) out["same"] = false;
    if (!shapes.empty()) out["same_shapes"] = false;
    out["groups"].push_back({{"job", group.job},
                             {"fingerprints", std::move(fingerprints)},
                             {"differences", std::move(differences)},
                             {"shapes", std::move(shapes)}});
  }
  return out;
}

}  // namespace fibshim::tools
