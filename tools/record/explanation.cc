#include "tools/record/explanation.h"

#include <string.h>

#include <algorithm>

#include <fmt/format.h>

#include "loader/compile/bind.h"
#include "shim/abi/program.h"
#include "shim/plan/plan.h"
#include "tools/record/pattern_fit.h"

namespace fibshim::tools {
namespace {

class Explainer {
 public:
  Explainer(const Snapshot& snapshot, const FolderModel& model, const KernelRecord& kernel)
      : snapshot_(snapshot), model_(model), kernel_(kernel), types_(kernel.param_types()) {
    std::vector<const SymbolMatch*> matches;
    fits_ = fit_patterns(snapshot, kernel);
    for (const PatternFit& fit : fits_) {
      if (fit.fits && !is_member(fit)) matches.push_back(&fit.match);
    }
    candidates_ = std::vector<Candidate>(matches.size());
    for (size_t i = 0; i < matches.size(); ++i) {
      fill_candidate(snapshot, *matches[i], &candidates_[i]);
      candidates_[i].record = &record_;
    }
    for (const ParamRecord& param : kernel.params) {
      sizes_.push_back({param.offset, param.size});
      record_.params_bytes = std::max(record_.params_bytes, param.offset + param.size);
      values_.emplace_back((param.size + 7) / 8);
      params_.push_back(values_.back().data());
      if (param.words.empty()) add_part(param, 0);
      for (const ParamRecord& word : param.words) add_part(word, word.offset);
    }
    for (const auto& parts : varied_) {
      for (const Part& part : parts) set(part, part.record->commonest_value().value_or(0));
    }
    symbol_ = kernel.symbol;
    record_.candidate_count = static_cast<uint8_t>(std::min<size_t>(candidates_.size(), UINT8_MAX));
    record_.candidates = candidates_.data();
    record_.param_count = static_cast<uint8_t>(sizes_.size());
    record_.params = sizes_.data();
    record_.has_params = kernel.has_params;
    record_.symbol = symbol_.data();
  }

  std::vector<ExplainedLaunch> run() {
    if (!can_be_planned()) {
      explain_misfits();
      return std::move(out_);
    }
    for (const auto& [geometry, counts] : kernel_.geometries) explain(geometry, "");
    for_each_value([&](const Geometry& usual, const std::string& varied, uint64_t /*count*/) {
      explain(usual, varied);
    });
    return std::move(out_);
  }

  FittingLaunches count_fitting(std::string_view label) {
    FittingLaunches out;
    uint64_t misfits = 0;
    for (const auto& [geometry, counts] : kernel_.geometries) {
      const uint64_t count = saturating_add(counts.launches, counts.nodes);
      out.launches = saturating_add(out.launches, count);
      if (!can_be_planned() || !fits(geometry, label)) misfits = saturating_add(misfits, count);
    }
    // Where the usual launch does not fit, no other value says more.
    const Geometry* const usual = kernel_.commonest_geometry();
    if (usual != nullptr && can_be_planned() && fits(*usual, label)) {
      for_each_value([&](const Geometry& geometry, const std::string&, uint64_t count) {
        if (!fits(geometry, label)) misfits = saturating_add(misfits, count);
      });
    }
    out.fitting = out.launches - std::min(misfits, out.launches);
    return out;
  }

 private:
  bool can_be_planned() const { return !candidates_.empty() && sizes_.size() <= kMaxParams; }

  // A parameter, or a word of one that is a struct.
  struct Part {
    size_t param;
    uint32_t offset;
    const ParamRecord* record;
  };

  // As often one value as the other, by size: so they are likely to have come together.
  static bool vary_alike(const ParamRecord& a, const ParamRecord& b) {
    const auto second = [](const auto& value) { return value.second; };
    return a.others == 0 && b.others == 0 &&
           std::ranges::equal(a.values, b.values, {}, second, second);
  }

  void add_part(const ParamRecord& record, uint32_t offset) {
    const Part part{params_.size() - 1, offset, &record};
    const auto alike = std::ranges::find_if(varied_, [&](const std::vector<Part>& parts) {
      return vary_alike(*parts[0].record, record);
    });
    if (alike == varied_.end()) {
      varied_.push_back({part});
    } else {
      alike->push_back(part);
    }
  }

  // Sets each recorded value but the commonest, in a launch of the commonest geometry; of parts that vary alike together.
  template <class Visit>
  void for_each_value(const Visit& visit) {
    const Geometry* const usual = kernel_.commonest_geometry();
    if (usual == nullptr) return;
    for (const std::vector<Part>& parts : varied_) {
      const ParamRecord& first = *parts[0].record;
      const uint64_t commonest = first.commonest_value().value_or(0);
      for (auto at = first.values.begin(); at != first.values.end(); ++at) {
        if (at->first == commonest) continue;
        std::string varied;
        for (const Part& part : parts) {
          const uint64_t value =
              std::next(part.record->values.begin(), std::distance(first.values.begin(), at))
                  ->first;
          set(part, value);
          varied += fmt::format(", {} is {}", name_of(part),
                                value_text(type_of(part), part.record->size, value));
        }
        visit(*usual, varied, at->second);
      }
      for (const Part& part : parts) set(part, part.record->commonest_value().value_or(0));
    }
  }

  std::string name_of(const Part& part) const {
    return kernel_.params[part.param].words.empty()
               ? fmt::format("parameter {}", part.param)
               : fmt::format("parameter {} at byte {}", part.param, part.offset);
  }

  ParamType type_of(const Part& part) const {
    return kernel_.params[part.param].words.empty() ? types_[part.param]
                                                    : type_of_word(*part.record);
  }

  void set(const Part& part, uint64_t value) {
    memcpy(reinterpret_cast<char*>(values_[part.param].data()) + part.offset, &value,
           std::min<size_t>(8, part.record->size));
  }

  bool is_member(const PatternFit& fit) const {
    return snapshot_.begin(snapshot_.patterns)[fit.match.pattern].kind == PatternKind::member;
  }

  void explain_misfits() {
    for (const PatternFit& fit : fits_) {
      out_.push_back({"every launch", fit.label, "untracked",
                      fit.fits
                          ? "it is replaced in a graph, together with the rewrite's other kernels"
                          : fit.why});
    }
    if (fits_.empty())
      out_.push_back({"every launch", "", "untracked", "no pattern has its symbol"});
  }

  // What the shim would do with a launch of this geometry and the parameters as they are set.
  void plan_one(const Geometry& geometry, LaunchRequest* request, LaunchPlan* plan) {
    request->view.params = params_.data();
    std::copy(geometry.begin(), geometry.end(), request->view.geometry);
    Resolution resolution{};
    plan_launch(record_, Mode::apply, request, plan,
                [&](const Candidate& candidate, const int64_t* key) -> const Decision& {
                  return plan_uncached(record_, candidate, key, &resolution, &plan->uncached);
                });
  }

  bool fits(const Geometry& geometry, std::string_view label) {
    LaunchRequest request{};
    LaunchPlan plan;
    plan_one(geometry, &request, &plan);
    if (plan.decision == nullptr) return false;
    request.view.captures = plan.candidate->captures;
    return snapshot_.text(plan.candidate->pattern->label) == label &&
           pattern_holds(*plan.candidate, request.view);
  }

  void explain(const Geometry& geometry, const std::string& varied) {
    LaunchRequest request{};
    LaunchPlan plan;
    plan_one(geometry, &request, &plan);
    const auto& g = geometry;
    ExplainedLaunch launch{
        fmt::format("grid {}x{}x{}, block {}x{}x{}{}", g[0], g[1], g[2], g[3], g[4], g[5], varied),
        "", kOutcomes[static_cast<size_t>(plan.outcome)].name, ""};
    if (plan.candidate != nullptr) {
      request.view.captures = plan.candidate->captures;
      launch.pattern = snapshot_.text(plan.candidate->pattern->label);
      launch.why = why(plan, request.view);
    }
    const bool is_known = std::ranges::any_of(out_, [&](const ExplainedLaunch& other) {
      return other.launch == launch.launch && other.why == launch.why;
    });
    if (!is_known) out_.push_back(std::move(launch));
  }

  std::string why(const LaunchPlan& plan, const LaunchView& view) const {
    const Candidate& candidate = *plan.candidate;
    const PatternSpec& pattern = *model_.patterns[candidate.match.pattern];
    if (std::string clause = broken_clause(pattern.where, pattern, view); !clause.empty()) {
      return clause;
    }
    int64_t key[kMaxKey];
    Resolution resolution{};
    if (!compute_key(candidate, view, key)) {
      return "a value in the definition's name cannot be computed";
    }
    resolve(record_, candidate, key, &resolution);
    if (resolution.kind == DecisionKind::no_solution) {
      return fmt::format("nothing solves definition \"{}\"", resolution.definition);
    }
    std::string others;  // solutions that were tried before and are not for this launch
    const uint32_t count = resolution.kind == DecisionKind::choice ? resolution.route->count : 0;
    const bool is_refused = plan.outcome == Outcome::fallback_refused;
    for (uint32_t i = 0; i < count; ++i) {
      resolve_choice(record_, candidate, i, &resolution);
      const BindingSpec& binding = model_.bindings[resolution.route->binding + i];
      const SolutionSpec& solution = model_.solutions[binding.solution];
      const BindingScope scope(pattern, *model_.definition_of(solution));
      const std::string clause = broken_clause(solution.when, scope, view);
      if (clause.empty() && (resolution.binding != nullptr || is_refused)) break;
      others += fmt::format("{}solution \"{}\": {}", others.empty() ? "" : "; ", solution.name.name,
                            clause.empty() ? resolution.reason : clause);
      if (i + 1 == count) return others;
    }
    if (resolution.binding == nullptr) return resolution.reason;
    const BindingSpec& binding = model_.bindings[static_cast<size_t>(
        resolution.binding - snapshot_.begin(snapshot_.bindings))];
    const SolutionSpec& solution = model_.solutions[binding.solution];
    const BindingScope scope(pattern, *model_.definition_of(solution));
    if (std::string clause = broken_clause(solution.where, scope, view); !clause.empty()) {
      return clause;
    }
    return fmt::format("{} \"{}\" of definition \"{}\"",
                       plan.outcome == Outcome::hit ? "solution" : "its grid is empty: solution",
                       solution.name.name, resolution.definition);
  }

  // The first clause that does not hold, with its place and its values; empty if all hold.
  std::string broken_clause(const std::vector<MarkedExpression>& where, const Scope& scope,
                            const LaunchView& view) const {
    for (const MarkedExpression& clause : where) {
      std::vector<Step> steps;
      if (!compile_where(clause.expression, scope, &steps)) continue;
      if (run_program(steps.data(), static_cast<uint32_t>(steps.size()), view, nullptr)) continue;
      std::string values;
      for (const std::string& name : clause.expression.names()) {
        const std::string value = value_of(name, scope, view);
        if (!value.empty()) values += fmt::format(", {} is {}", name, value);
      }
      return fmt::format("{}:{}:{}: \"{}\" does not hold{}", *clause.text.mark.file,
                         clause.text.mark.line, clause.text.mark.column, clause.text.text, values);
    }
    return "";
  }

  std::string value_of(const std::string& name, const Scope& scope, const LaunchView& view) const {
    const auto meaning = scope.find(name);
    if (!meaning) return "";
    if (meaning->expression == nullptr && meaning->source.kind == Source::Kind::param &&
        meaning->source.offset == 0 && meaning->source.index < types_.size() &&
        kernel_.params[meaning->source.index].words.empty()) {
      const uint32_t size = kernel_.params[meaning->source.index].size;
      uint64_t value = 0;
      memcpy(&value, view.params[meaning->source.index], std::min<size_t>(8, size));
      return value_text(types_[meaning->source.index], size, value);
    }
    CompiledValue compiled;
    if (meaning->expression == nullptr) {
      compiled = compile_source(meaning->source);
    } else if (auto made = compile_name(name, scope)) {
      compiled = std::move(*made);
    }
    int64_t value = 0;
    const bool has_value = !compiled.steps.empty() && !compiled.is_floating &&
                           run_program(compiled.steps.data(),
                                       static_cast<uint32_t>(compiled.steps.size()), view, &value);
    return has_value ? std::to_string(value) : "";
  }

  const Snapshot& snapshot_;
  const FolderModel& model_;
  const KernelRecord& kernel_;
  const std::vector<ParamType> types_;
  std::vector<PatternFit> fits_;
  std::vector<Candidate> candidates_;
  std::vector<Param> sizes_;
  std::vector<std::vector<uint64_t>> values_;
  std::vector<std::vector<Part>> varied_;  // together where they vary alike
  std::vector<void*> params_;
  std::string symbol_;
  Record record_{};
  std::vector<ExplainedLaunch> out_;
};

}  // namespace

std::vector<ExplainedLaunch> explain_launches(const Snapshot& snapshot, const FolderModel& model,
                                              const KernelRecord& kernel) {
  return Explainer(snapshot, model, kernel).run();
}

FittingLaunches count_fitting_launches(const Snapshot& snapshot, const FolderModel& model,
                                       const KernelRecord& kernel, std::string_view label) {
  return Explainer(snapshot, model, kernel).count_fitting(label);
}

}  // namespace fibshim::tools
