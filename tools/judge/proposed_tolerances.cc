#include "tools/judge/proposed_tolerances.h"

#include <math.h>

#include <nlohmann/json.hpp>

#include "tools/base/files.h"
#include "tools/base/json_input.h"
#include "tools/base/terminal.h"

namespace fibshim::judge {
namespace {

using Json = nlohmann::ordered_json;

// How far two neighbouring values of a type lie apart, as a share of the smaller.
double step_of(std::string_view type) {
  static constexpr std::pair<std::string_view, int> kBits[] = {
      {"float64", 52}, {"float32", 23},      {"float16", 10},
      {"bfloat16", 7}, {"float8_e4m3fn", 3}, {"float8_e5m2", 2}};
  for (const auto& [name, bits] : kBits) {
    if (name == type) return ldexp(1, -bits);
  }
  return 0;
}

// To two digits, upward.
double rounded_up(double value) {
  const double unit = pow(10, floor(log10(value)) - 1);
  return strtod(fmt::format("{:.2g}", ceil(value / unit - 1e-6) * unit).c_str(), nullptr);
}

// "" or why not.
std::string write_block(const std::string& path, double tolerance) {
  const auto text = read_file(path, kMaxJsonBytes);
  if (!text) return text.error().message;
  Json document = tools::parse_json<Json>(*text);
  if (!document.is_object()) return path + ": no JSON object";
  document["verify"]["atol"] = tolerance;
  document["verify"]["rtol"] = tolerance;
  const std::string why = tools::write_file(path, tools::json_text(document));
  return why.empty() ? "" : path + ": " + why;
}

}  // namespace

void ProposedTolerances::add(uint32_t solution, const std::vector<CaseOutcome>& outcomes) {
  Proposal& proposal = proposals_[solution];
  for (const CaseOutcome& outcome : outcomes) {
    if (outcome.solution_distance >= 0) ++proposal.workloads;
    proposal.original_distance = std::max(proposal.original_distance, outcome.original_distance);
    proposal.solution_distance = std::max(proposal.solution_distance, outcome.solution_distance);
  }
}

void ProposedTolerances::propose(const FolderModel& model, bool writes) {
  std::map<std::string, double> off;  // the original, by definition
  for (auto& [index, proposal] : proposals_) {
    const SolutionSpec& solution = model.solutions[index];
    proposal.definition = solution.definition.name;
    proposal.solution = solution.name.name;
    double& most = off.emplace(proposal.definition, -1).first->second;
    most = std::max(most, proposal.original_distance);
  }
  for (auto& [index, proposal] : proposals_) {
    const SolutionSpec& solution = model.solutions[index];
    double step = 0;
    bool is_exact = false;
    for (const DefinitionArgument& argument : model.definition_of(solution)->arguments) {
      const ElementType& type = *element_type_of(argument.dtype);
      if (!argument.is_output) continue;
      step = std::max(step, step_of(type.name));
      is_exact = is_exact || !type.is_floating;
    }
    const double distance = off.at(proposal.definition);
    if (proposal.workloads == 0) {
      proposal.why = "no workload has outputs of the original that were recorded";
    } else if (distance < 0) {
      proposal.why = "nothing says how far the original is off: no reference is known (--python)";
    } else if (is_exact) {
      proposal.why =
          "it has integer outputs, which one tolerance for all would no longer hold exact";
    } else if (!std::isfinite(distance)) {
      proposal.why =
          "the original has put out values that are not finite where the reference's are";
    } else {
      proposal.tolerance = rounded_up(std::max(2 * distance, step));
      if (proposal.solution_distance > proposal.tolerance) {
        proposal.why = fmt::format(
            "the solution is off from the original by {:.2g}, more than the {:.2g} that the "
            "original allows",
            proposal.solution_distance, proposal.tolerance);
        proposal.tolerance = 0;
      }
    }
    if (!writes || proposal.tolerance == 0) continue;
    proposal.why =
        write_block(model.folders[solution.folder].shown(solution.relative), proposal.tolerance);
    proposal.is_written = proposal.why.empty();
  }
}

bool ProposedTolerances::has_any() const {
  return std::ranges::any_of(proposals_, [](const auto& entry) {
    return entry.second.tolerance != 0 && entry.second.why.empty();
  });
}

std::string ProposedTolerances::text() const {
  std::string out;
  for (const auto& [index, one] : proposals_) {
    const std::string name = tools::printable(one.solution);
    if (one.tolerance == 0) {
      out += fmt::format("{}: no tolerance: {}\n", name, tools::printable(one.why));
      continue;
    }
    out += fmt::format(
        "{}: atol = rtol = {:.2g}: in {} the original is off from the reference by {:.2g}, the "
        "solution from the original by {:.2g}{}\n",
        name, one.tolerance, tools::counted(one.workloads, "workload"), one.original_distance,
        one.solution_distance,
        one.is_written    ? "; written"
        : one.why.empty() ? ""
                          : "; not written: " + tools::printable(one.why));
  }
  return out;
}

Json ProposedTolerances::json() const {
  Json out = Json::array();
  const auto number = [](double value) { return value < 0 ? Json() : Json(value); };
  for (const auto& [index, one] : proposals_) {
    out.push_back({{"definition", one.definition},
                   {"solution", one.solution},
                   {"workloads", one.workloads},
                   {"original_distance", number(one.original_distance)},
                   {"solution_distance", number(one.solution_distance)},
                   {"tolerance", one.tolerance == 0 ? Json() : Json(one.tolerance)},
                   {"written", one.is_written},
                   {"why", one.why}});
  }
  return out;
}

}  // namespace fibshim::judge
