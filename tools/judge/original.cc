#include "tools/judge/original.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tools/judge/described_launch.h"
#include "tools/judge/usual_values.h"
#include "tools/judge/variants.h"
#include "tools/judge/workloads.h"
#include "tools/record/kept_image.h"
#include "tools/record/pattern_fit.h"

namespace fibshim::judge {
namespace {

using tools::Geometry;
using tools::GeometryCounts;
using tools::KernelRecord;
using tools::ParamRecord;

constexpr size_t kMostGeometries = 16;
constexpr size_t kMostOriginalCases = 24;
constexpr int64_t kMostBytes = int64_t{512} << 20;  // of one case's tensors
// Used if no address was recorded. It is aligned, so that patterns that require alignment fit.
constexpr uint64_t kSomeAddress = kLowestAddress * 2;

bool has_value(uint32_t size) { return size == 1 || size == 2 || size == 4 || size == 8; }

// True if all launches had the same value, and it means the same in another process.
bool is_constant(const ParamRecord& param) {
  return has_value(param.size) && param.others == 0 && param.values.size() == 1 &&
         !(param.size == 8 && is_like_address(param.values.begin()->first));
}

// The pattern's value that is the whole parameter; null if there is none.
const PatternValue* value_of_param(const PatternSpec& pattern, size_t index, uint32_t size) {
  for (const PatternValue& value : pattern.values) {
    const Source& source = value.source;
    const bool reads_param = !value.expression && source.kind == Source::Kind::param;
    if (reads_param && source.index == index && source.offset == 0 &&
        (value.is_pointer ? 8 : size_of(source.type)) == size) {
      return &value;
    }
  }
  return nullptr;
}

// One recorded kernel that a pattern fits, and that pattern's binding to the solution.
class RecordedOriginal {
 public:
  RecordedOriginal(const OriginalRequest& request, const KernelRecord& kernel,
                   const SymbolMatch& match, uint32_t binding)
      : request_(request),
        kernel_(kernel),
        match_(match),
        binding_(binding),
        pattern_(*request.model.patterns[request.model.bindings[binding].pattern]) {}

  // Why the kernel cannot be launched again; empty if it can.
  std::string find_fault() const {
    if (kernel_.geometries.empty()) return "no launch of it was kept";
    for (size_t i = 0; i < kernel_.params.size(); ++i) {
      const ParamRecord& param = kernel_.params[i];
      if (!has_value(param.size)) {
        return fmt::format(
            "parameter {} is a structure of {} bytes, which a recording does not keep", i,
            param.size);
      }
      if (value_of_param(pattern_, i, param.size) != nullptr || is_constant(param)) continue;
      return fmt::format(
          "parameter {} ({}) is explained by no argument of pattern \"{}\"", i,
          kernel_.param_types()[i].is_pointer() ? "an address" : "with several values",
          pattern_.label);
    }
    const auto image = tools::read_kept_image(request_.recording, kernel_);
    return image ? "" : image.error().message;
  }

  // Adds a case for each launch that the shim would give to the solution.
  void add_cases(std::vector<Workload>* cases, std::set<std::string>* known,
                 std::string* why) const {
    std::vector<std::pair<Geometry, uint64_t>> geometries;
    for (const auto& [geometry, counts] : kernel_.geometries) {
      geometries.emplace_back(geometry, counts.launches + counts.nodes);
    }
    std::ranges::stable_sort(geometries, std::greater<>(),
                             [](const auto& one) { return one.second; });
    if (geometries.size() > kMostGeometries) geometries.resize(kMostGeometries);
    for (const auto& [geometry, launches] : geometries) {
      RecordedLaunch launch{&kernel_, geometry, {}};
      for (size_t i = 0; i < kernel_.params.size(); ++i) {
        launch.values.push_back(likely_value(i, geometries, launches));
      }
      add_case(launch, geometries, cases, known, why);
      for (size_t i = 0; i < kernel_.params.size(); ++i) {
        const PatternValue* const value = value_of_param(pattern_, i, kernel_.params[i].size);
        if (value == nullptr || value->is_pointer) continue;
        const uint64_t before = launch.values[i];
        for (const auto& [other, count] : kernel_.params[i].values) {
          const bool is_elsewhere = belongs_to_one(i, count, geometries) && count != launches;
          if (other == before || is_elsewhere) continue;
          launch.values[i] = other;
          add_case(launch, geometries, cases, known, why);
        }
        launch.values[i] = before;
      }
    }
  }

 private:
  using Geometries = std::vector<std::pair<Geometry, uint64_t>>;

  // True if exactly one geometry and exactly one value of the parameter were counted `count` times.
  bool belongs_to_one(size_t param, uint64_t count, const Geometries& geometries) const {
    const auto same = std::ranges::count_if(
        geometries, [&](const auto& geometry) { return geometry.second == count; });
    const auto values = std::ranges::count_if(
        kernel_.params[param].values, [&](const auto& value) { return value.second == count; });
    return same == 1 && values == 1;
  }

  uint64_t likely_value(size_t param, const Geometries& geometries, uint64_t launches) const {
    const ParamRecord& record = kernel_.params[param];
    const PatternValue* const value = value_of_param(pattern_, param, record.size);
    if (value != nullptr && value->is_pointer) {
      return record.commonest_value().value_or(kSomeAddress);
    }
    for (const auto& [one, count] : record.values) {
      if (count == launches && belongs_to_one(param, count, geometries)) return one;
    }
    return record.commonest_value().value_or(0);
  }

  bool is_certain(const RecordedLaunch& launch, const Geometries& geometries) const {
    for (size_t i = 0; i < kernel_.params.size(); ++i) {
      const ParamRecord& param = kernel_.params[i];
      const PatternValue* const value = value_of_param(pattern_, i, param.size);
      if (value != nullptr && value->is_pointer) continue;
      const auto at = param.values.find(launch.values[i]);
      const bool is_one_value = param.values.size() == 1 && param.others == 0;
      if (is_one_value || (geometries.size() == 1 && kernel_.geometries.size() == 1)) continue;
      if (at == param.values.end() || !belongs_to_one(i, at->second, geometries)) return false;
    }
    return true;
  }

  void add_case(const RecordedLaunch& launch, const Geometries& geometries,
                std::vector<Workload>* cases, std::set<std::string>* known,
                std::string* why) const {
    if (cases->size() == kMostOriginalCases) return;
    DescribedLaunch described(pattern_, &launch);
    described.set_symbol(kernel_.symbol, match_);
    std::string reason;
    const Variant variant{pattern_.label, &pattern_, binding_, {}, {}};
    const auto planned = described.plan(request_.snapshot, variant, &reason);
    if (!planned || !*planned) {
      *why =
          "none of its recorded launches is one that the solution takes (fibshim explain says "
          "which clause is in the way)";
      return;
    }
    add_read(launch, described.view(), is_certain(launch, geometries), cases, known, why);
  }

  void add_read(const RecordedLaunch& launch, const LaunchView& view, bool is_certain,
                std::vector<Workload>* cases, std::set<std::string>* known,
                std::string* why) const {
    const SolutionSpec& solution =
        request_.model.solutions[request_.model.bindings[binding_].solution];
    const Definition& definition = *request_.model.definition_of(solution);
    OriginalCase made{pattern_.label, launch, {}, is_certain};
    AxisValues axes;
    for (const PatternValue& value : pattern_.values) {
      if (value.is_pointer) continue;
      CompiledValue compiled;
      if (!value.expression) {
        compiled = compile_source(value.source);
      } else if (auto steps = compile_value(value.expression->expression, pattern_)) {
        compiled = std::move(*steps);
      }
      int64_t found = 0;
      if (compiled.steps.empty() ||
          !run_program(compiled.steps.data(), static_cast<uint32_t>(compiled.steps.size()), view,
                       &found)) {
        continue;
      }
      const DefinitionAxis* const axis = definition.find_axis(value.name);
      if (axis == nullptr) {
        made.scalars[value.name] =
            compiled.is_floating ? program_detail::bits_double(found) : static_cast<double>(found);
      } else if (!axis->is_const) {
        axes[value.name] = found;
      }
    }
    for (const DefinitionAxis& axis : definition.axes) {
      if (axis.is_const || axes.count(axis.name) != 0) continue;
      *why = fmt::format("pattern \"{}\" does not say where the axis \"{}\" is in a launch",
                         pattern_.label, axis.name);
      return;
    }
    AxisValues all = axes;
    for (const DefinitionAxis& axis : definition.axes) {
      if (axis.is_const) all[axis.name] = axis.value;
    }
    if (bytes_of(definition, all) > kMostBytes) {
      *why = "its recorded launches work on more memory than verify takes for a case";
      return;
    }
    Workload workload = made_workload(definition, axes);
    // Different launches on the same axes are different cases.
    std::string key =
        fmt::format("{}/{}/{}", workload.uuid, kernel_.symbol, geometry_words(launch.geometry));
    for (const auto& [name, value] : made.scalars) key += fmt::format("/{}={}", name, value);
    if (!known->insert(key).second) return;
    workload.uuid = uuid_of(key);
    workload.original = std::make_shared<const OriginalCase>(std::move(made));
    cases->push_back(std::move(workload));
  }

  const OriginalRequest& request_;
  const KernelRecord& kernel_;
  const SymbolMatch match_;
  const uint32_t binding_;
  const PatternSpec& pattern_;
};

}  // namespace

std::string geometry_words(const Geometry& geometry) {
  const auto& g = geometry;
  return fmt::format("grid {}x{}x{}, block {}x{}x{}", g[0], g[1], g[2], g[3], g[4], g[5]);
}

std::vector<Workload> original_cases(const OriginalRequest& request, uint32_t solution,
                                     std::string* why) {
  std::vector<Workload> cases;
  std::set<std::string> known, reasons;
  for (uint32_t i = 0; i < request.model.bindings.size(); ++i) {
    const BindingSpec& binding = request.model.bindings[i];
    if (binding.solution != solution || binding.state != BindingState::ready) continue;
    const std::string& label = request.model.patterns[binding.pattern]->label;
    for (const KernelRecord& kernel : request.kernels) {
      for (const tools::PatternFit& fit : tools::fit_patterns(request.snapshot, kernel)) {
        if (!fit.fits || fit.label != label) continue;
        const RecordedOriginal original(request, kernel, fit.match, i);
        std::string reason = original.find_fault();
        if (reason.empty()) original.add_cases(&cases, &known, &reason);
        if (!reason.empty()) reasons.insert(fmt::format("{}: {}", kernel.symbol, reason));
      }
    }
  }
  if (cases.empty()) {
    *why = reasons.empty() ? "no pattern that leads to it fits a recorded kernel"
                           : fmt::format("{}", fmt::join(reasons, "; "));
  }
  return cases;
}

}  // namespace fibshim::judge
