// Makes the inputs of a case from its definition: what each tensor means decides what goes into it
// (weights around one, positions inside the cache, probabilities that sum to one). Deterministic: the
// same case and run give the same bytes anywhere.
//
// Runs of one case differ in values and in scale, so that a kernel that returns what it computed
// before, or that ignores eps, is seen: normal, a thousandth of that (eps then weighs as much as the
// squares), and with outliers as activations have them. Every run has a row of zeros where there are
// several rows.
#pragma once

#include <functional>

#include "loader/compile/definition.h"
#include "tools/judge/case_data.h"

namespace fibshim::judge {

inline constexpr int kInputProfiles = 3;

struct IntegerRange {
  int64_t low, high;  // high is not reached
};

struct InputRequest {
  const Definition& definition;
  std::string_view op;
  const AxisValues& axes;
  int run = 0;
  // The range that a "verify" block gives an integer input; nothing when it gives none.
  std::function<Result<IntegerRange>(std::string_view name)> range_of;
};

// Fills data->tensors and data->scalars; what is in there already (recorded inputs) stays.
Result<void> make_inputs(const InputRequest& request, CaseData* data);

// eps as the definition's reference states it ("EPS = 1e-6", "eps: float = 1e-5"), else 1e-6.
double eps_of(const Definition& definition);

}  // namespace fibshim::judge
