// Makes the cases in which a definition is judged: see cases.h.
#include <algorithm>

#include <fmt/format.h>

#include "tools/judge/inputs.h"
#include "tools/judge/cases.h"
#include "tools/judge/workloads.h"

namespace fibshim::judge {
namespace {

// Contains one and odd sizes: there vectors, tiles and blocks do not divide the work evenly.
const std::vector<int64_t> kVerifySizes = {1, 3, 17, 64, 257};
const std::vector<int64_t> kBenchSizes = {1, 8, 64, 512, 1024, 4096, 16384};
const std::vector<int64_t> kVerifyHeads = {1, 8, 3, 32, 5};
const std::vector<int64_t> kVerifyLengths = {512, 4096, 33, 1024, 1};
constexpr int64_t kBenchLength = 4096;
constexpr int64_t kBenchQueryHeads = 32, kBenchKeyHeads = 8;
constexpr size_t kMostCases = 4096;
constexpr int64_t kVerifyBytes = int64_t{512} << 20, kBenchBytes = int64_t{8} << 30;

bool holds(const std::string& text, const char* part) {
  return text.find(part) != std::string::npos;
}

// For an axis named A_x_B, the value of the constant axis B, of which all sizes are multiples; 1
// for other axes.
int64_t unit_of(const Definition& definition, const std::string& axis) {
  const size_t at = axis.rfind("_x_");
  if (at == std::string::npos) return 1;
  const DefinitionAxis* const unit = definition.find_axis(std::string_view(axis).substr(at + 3));
  return unit != nullptr && unit->is_const ? unit->value : 1;
}

std::vector<int64_t> usual_sizes(const Definition& definition, const std::string& axis,
                                 bool is_first, bool is_bench) {
  const int64_t unit = unit_of(definition, axis);
  const bool is_heads = holds(axis, "head");
  const bool is_length = holds(axis, "max_") || holds(axis, "len");
  std::vector<int64_t> sizes = is_heads ? kVerifyHeads : is_length ? kVerifyLengths : kVerifySizes;
  if (is_bench) {
    const bool is_key = holds(axis, "_k_") || holds(axis, "kv");
    if (is_heads) {
      sizes = {is_key ? kBenchKeyHeads : kBenchQueryHeads};
    } else if (is_length || !is_first) {
      sizes = {kBenchLength};
    } else {
      sizes = kBenchSizes;
    }
  }
  for (int64_t& size : sizes) size *= unit;
  return sizes;
}

}  // namespace

void add_bounds(const SolutionSpec& solution, const std::string& axis,
                std::vector<int64_t>* sizes) {
  for (const MarkedExpression& clause : solution.when) {
    const auto& names = clause.expression.names();
    if (std::ranges::find(names, axis) == names.end()) continue;
    for (const int64_t bound : clause.expression.integers()) {
      for (const int64_t size : {bound - 1, bound, bound + 1}) {
        const bool is_known = std::ranges::find(*sizes, size) != sizes->end();
        if (size >= 1 && !is_known) sizes->push_back(size);
      }
    }
  }
}

std::vector<Workload> make_cases(const Subject& subject, const JudgeOptions& options,
                                 const std::vector<Workload>& recorded, std::string* why_none) {
  const Definition& definition = *subject.definition;
  const bool is_bench = options.trial.is_bench;
  std::vector<std::pair<std::string, std::vector<int64_t>>> stated, usual;
  std::vector<std::pair<std::string, Expression>> implied;
  AxisValues constants;
  for (const DefinitionAxis& axis : definition.axes) {
    if (axis.is_const) {
      constants[axis.name] = axis.value;
      continue;
    }
    const auto& told = subject.verify->axes;
    const auto in_block =
        std::ranges::find_if(told, [&](const auto& one) { return one.first == axis.name; });
    if (const auto given = options.axes.find(axis.name); given != options.axes.end()) {
      stated.emplace_back(*given);
    } else if (in_block != told.end()) {
      stated.push_back(*in_block);
    } else if (auto size = implied_size(definition, axis.name)) {
      implied.emplace_back(axis.name, std::move(*size));
    } else {
      const bool is_first = stated.empty() && usual.empty();
      usual.emplace_back(axis.name, usual_sizes(definition, axis.name, is_first, is_bench));
      add_bounds(*subject.solution, axis.name, &usual.back().second);
    }
  }
  if (is_bench && stated.empty() && !recorded.empty()) return recorded;

  size_t combinations = 1, most_sizes = 1;
  for (const auto& [name, sizes] : stated) {
    combinations = std::min(kMostCases, combinations * std::max<size_t>(sizes.size(), 1));
  }
  for (const auto& [name, sizes] : usual) most_sizes = std::max(most_sizes, sizes.size());
  const int64_t most_bytes = is_bench ? kBenchBytes : kVerifyBytes;
  int64_t least_bytes = INT64_MAX;
  std::vector<Workload> cases;
  for (size_t i = 0; i < std::max(combinations, most_sizes); ++i) {
    AxisValues axes;
    size_t rest = i % combinations;
    for (const auto& [name, sizes] : stated) {
      axes[name] = sizes[rest % sizes.size()];
      rest /= sizes.size();
    }
    // The axes step through their sizes together, each shifted by one: not all are one, or odd, at
    // once.
    size_t shift = 0;
    for (const auto& [name, sizes] : usual) axes[name] = sizes[(i + shift++) % sizes.size()];
    AxisValues all = axes;
    all.insert(constants.begin(), constants.end());
    for (const auto& [name, size] : implied) {
      const auto value = evaluate(size, all);
      if (value) axes[name] = all[name] = *value;
    }
    if (!meets_constraints(definition, all)) continue;
    const int64_t bytes = bytes_of(definition, all);
    least_bytes = std::min(least_bytes, bytes);
    if (stated.empty() && bytes > most_bytes) continue;
    cases.push_back(made_workload(definition, axes));
  }
  if (!is_bench) cases.insert(cases.end(), recorded.begin(), recorded.end());
  if (cases.empty() && why_none != nullptr) {
    constexpr char kWhatToDo[] =
        "give --axis, or the solution a \"verify\": {\"axes\": {\"AXIS\": [...]}}";
    *why_none = least_bytes == INT64_MAX
                    ? fmt::format("no sizes that were tried meet the definition's constraints: {}",
                                  kWhatToDo)
                    : fmt::format(
                          "its tensors take {} MiB or more, of at most {} that are made "
                          "unasked: {}",
                          least_bytes >> 20, most_bytes >> 20, kWhatToDo);
  }
  return cases;
}

}  // namespace fibshim::judge
