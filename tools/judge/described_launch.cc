#include "tools/judge/described_launch.h"

#include <stdlib.h>

#include <algorithm>

#include <fmt/format.h>

#include "loader/compile/bind.h"
#include "shim/plan/fast_plan.h"

namespace fibshim::judge {

bool is_row_by_row(const PatternValue& tensor, const Scope& values) {
  int64_t expected = 1;
  for (auto axis = tensor.layout->rbegin(); axis != tensor.layout->rend(); ++axis) {
    const auto count = evaluate(axis->first.expression, values);
    const auto stride = evaluate(axis->second.expression, values);
    if (count && stride && *count != 1 && *stride != expected) return false;
    if (!count) return true;
    expected *= *count;
  }
  return true;
}

DescribedLaunch::DescribedLaunch(const PatternSpec& pattern, const RecordedLaunch* recorded) {
  std::vector<uint32_t> bytes(pattern.params.begin(), pattern.params.end());
  if (recorded != nullptr) {
    bytes.clear();
    for (const tools::ParamRecord& param : recorded->kernel->params) bytes.push_back(param.size);
  }
  for (const PatternValue& value : pattern.values) {
    const Source& source = value.source;
    if (!value.reads_param) continue;
    if (source.index >= bytes.size()) bytes.resize(source.index + 1u);
    bytes[source.index] = std::max(bytes[source.index], source.offset + size_of(source.type));
  }
  for (const uint32_t size : bytes) {
    sizes_.push_back({record_.params_bytes, size});
    record_.params_bytes += (size + 7) / 8 * 8;
  }
  block_.resize(record_.params_bytes / 8);
  for (const Param& param : sizes_) params_.push_back(block_.data() + param.offset / 8);
  std::fill_n(request_.view.geometry, uint32_t{kSharedMem}, 1);
  if (recorded == nullptr) return;
  std::ranges::copy(recorded->geometry, request_.view.geometry);
  for (size_t i = 0; i < recorded->values.size(); ++i) {
    memcpy(params_[i], &recorded->values[i], std::min<size_t>(sizes_[i].size, 8));
  }
}

Launch DescribedLaunch::original() const {
  Launch launch{};
  std::ranges::copy(request_.view.geometry, launch.geometry.begin());
  for (size_t i = 0; i < params_.size(); ++i) {
    memcpy(launch.params.emplace_back().data(), params_[i], std::min<size_t>(sizes_[i].size, 8));
  }
  return launch;
}

std::string DescribedLaunch::store(const PatternValue& value, double number) {
  const Source& source = value.source;
  const auto integer = static_cast<int64_t>(number);
  const auto narrow = static_cast<float>(number);
  std::string why;
  if (source.kind == Source::Kind::geometry) {
    if (!is_geometry_in_range(source.index, integer, &why))
      return "there is no such launch: " + why;
    request_.view.geometry[source.index] = static_cast<uint32_t>(integer);
  } else if (source.kind != Source::Kind::param) {
    return "";
  } else if (source.type == ValueType::float32) {
    memcpy(at(source), &narrow, sizeof narrow);
  } else if (source.type == ValueType::float64) {
    memcpy(at(source), &number, sizeof number);
  } else if (fits_in_bytes(integer, size_of(source.type))) {
    memcpy(at(source), &integer, size_of(source.type));
  } else {
    return fmt::format("there is no such launch: \"{}\" is {}, which the parameter does not hold",
                       value.name, integer);
  }
  return "";
}

void DescribedLaunch::store_address(const PatternValue& value, uint64_t address) {
  memcpy(at(value.source), &address, sizeof address);
}

void DescribedLaunch::add_capture(uint16_t index, const std::string& text) {
  match_.captures[index] = {static_cast<uint16_t>(symbol_.size()),
                            static_cast<uint16_t>(text.size()), strtoll(text.c_str(), nullptr, 10)};
  symbol_ += text;
}

Result<std::optional<Launch>> DescribedLaunch::plan(const Snapshot& snapshot,
                                                    const Variant& variant, std::string* reason) {
  const Binding* const bindings = snapshot.begin(snapshot.bindings);
  match_.pattern = bindings[variant.binding].pattern;
  fill_candidate(snapshot, match_, &candidate_);
  candidate_.record = &record_;
  record_.candidate_count = 1;
  record_.candidates = &candidate_;
  record_.param_count = static_cast<uint8_t>(sizes_.size());
  record_.params = sizes_.data();
  record_.has_params = true;
  record_.symbol = symbol_.data();
  request_.view.params = params_.data();

  LaunchPlan plan;
  Resolution resolution;
  const Binding* const own = &bindings[variant.binding];
  const auto decide = [&](const Candidate& candidate, const int64_t* key) -> const Decision& {
    const Decision& decision = plan_uncached(record_, candidate, key, &resolution, &plan.uncached);
    if (variant.ignores_when && resolution.kind == DecisionKind::choice) {
      for (const Decision& one : plan.uncached.chosen) {
        if (one.binding == own) return one;
      }
    }
    return decision;
  };
  plan_launch(record_, Mode::apply, &request_, &plan, decide);
  const Binding* const binding = plan.decision == nullptr ? nullptr : plan.decision->binding;
  if (binding != nullptr && binding != own) {
    const Solution& solution = snapshot.begin(snapshot.solutions)[binding->solution];
    if (resolution.kind == DecisionKind::choice && binding->solution != own->solution) {
      *reason = fmt::format("solution \"{}\" is for this size", snapshot.text(solution.name));
      return std::optional<Launch>();
    }
    return fail(ErrorCode::invalid_value,
                fmt::format("a launch as pattern \"{}\" describes it leads to solution \"{}\" of "
                            "definition \"{}\"",
                            variant.name, snapshot.text(solution.name), resolution.definition));
  }
  if (binding != nullptr && plan.decision->fast.way == FastWay::direct) {
    const bool is_choice = !variant.ignores_when && resolution.kind == DecisionKind::choice;
    const std::string difference = find_fast_difference(plan, is_choice);
    if (!difference.empty()) {
      return fail(ErrorCode::invalid_value,
                  fmt::format("internal error: the fast form of pattern \"{}\" {}", variant.name,
                              difference));
    }
  }
  if (plan.action != LaunchAction::redirect) {
    *reason = why_original(plan, resolution);
    return std::optional<Launch>();
  }
  Launch launch{};
  for (uint32_t i = 0; i < kGeometryCount; ++i) {
    std::string why;
    if (!is_geometry_in_range(i, plan.geometry[i], &why)) {
      return fail(ErrorCode::invalid_value, why);
    }
    launch.geometry[i] = plan.geometry[i];
  }
  for (uint32_t i = 0; i < binding->arguments.count; ++i) {
    const size_t size = snapshot.begin(binding->arguments)[i].size;
    memcpy(launch.params.emplace_back().data(), plan.params[i], size);
  }
  if (plan.workspace_bytes != 0) {
    launch.workspace_param = solution_of(*plan.decision).workspace - 1u;
    launch.workspace_bytes = plan.workspace_bytes;
  }
  return std::optional<Launch>(std::move(launch));
}

std::string DescribedLaunch::why_original(const LaunchPlan& plan,
                                          const Resolution& resolution) const {
  const LaunchView& view = request_.view;
  if (plan.decision == nullptr) return "a value in the definition's name cannot be computed";
  if (!pattern_holds(candidate_, view)) return "the pattern's \"where\" does not hold";
  if (plan.decision->kind == DecisionKind::choice) return "its \"when\" does not hold";
  if (plan.decision->kind == DecisionKind::no_solution) {
    return fmt::format("it leads to definition \"{}\", which nothing solves",
                       resolution.definition);
  }
  if (plan.decision->kind != DecisionKind::ready) {
    const bool is_stated = resolution.reason[0] != 0;
    return fmt::format("refused: {}",
                       is_stated ? resolution.reason : "it reads past the parameters");
  }
  return solution_holds(*plan.decision, view) ? "its grid is empty, or an argument has no value"
                                              : "its \"where\" does not hold";
}

std::string DescribedLaunch::find_fast_difference(const LaunchPlan& plan, bool is_choice) const {
  const LaunchView& view = request_.view;
  const Decision& decision = *plan.decision;
  const FastForm& form = decision.fast;
  if (candidate_.fast_key.kind != KeyKind::computed &&
      read_fast_key(candidate_.fast_key, view.params) != decision.first_key) {
    return "reads another key";
  }
  uint32_t plain[kPlainGeometryCount];
  void* room[kMaxFastArguments];
  void** arguments;
  auto** const params = const_cast<void**>(view.params);
  const auto geometry_of = [&](uint32_t i) { return view.geometry[i]; };
  const Choices& choices = plan.uncached.choices;
  if (is_choice && choices.is_fast &&
      choose_fast(choices, view.params, geometry_of) != plan.decision) {
    return "chooses another solution";
  }
  const bool holds = fast_checks_hold(form.checks, view.params) &&
                     compose_direct(form, params, geometry_of, plain, room, &arguments);
  if (holds != (plan.action == LaunchAction::redirect)) {
    return holds ? "launches what the plan does not" : "does not launch what the plan does";
  }
  if (!holds) return "";
  uint32_t geometry[kGeometryCount];
  widen_geometry(plain, geometry);
  for (uint32_t i = 0; i < kGeometryCount; ++i) {
    if (geometry[i] == plan.geometry[i]) continue;
    return fmt::format("makes {} {}, not {}", kGeometry[i].name, geometry[i], plan.geometry[i]);
  }
  const auto maps = decision.binding->arguments;
  for (uint32_t i = 0; i < maps.count; ++i) {
    const size_t size = decision.snapshot->begin(maps)[i].size;
    if (memcmp(arguments[i], plan.params[i], size) != 0) {
      return fmt::format("passes another argument {}", i);
    }
  }
  return "";
}

}  // namespace fibshim::judge
