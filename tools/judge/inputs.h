// Makes the inputs of a case from its definition: the meaning of each tensor decides its values
// (weights around one, positions inside the cache, probabilities that sum to one). Deterministic: the
// same case and run give the same bytes anywhere.
//
// The runs of one case differ in values and in scale, so that a kernel that returns an earlier
// result or ignores eps is found. The scales are: normal; a thousandth of that, where eps weighs as
// much as the squares; and normal with outliers, as activations have them. Every run has a row of
// zeros if there are several rows. Tensors of fp8 fill its range in every run, and their scales are positive.
#pragma once

#include <functional>
#include <optional>

#include "loader/compile/definition.h"
#include "tools/judge/case_data.h"

namespace fibshim::judge {

inline constexpr int kInputProfiles = 3;

struct IntegerRange {
  int64_t low, high;  // from low to high - 1
};

struct InputRequest {
  const Definition& definition;
  std::string_view op;
  const AxisValues& axes;
  int run = 0;
  // The range that a "verify" block gives an integer input; empty if it gives none. May be null.
  std::function<Result<IntegerRange>(std::string_view name)> range_of;
  bool wants_tensors = true;  // else only the scalars
};

// Fills data->tensors and data->scalars. Entries that are there already (recorded inputs) stay.
Result<void> make_inputs(const InputRequest& request, CaseData* data);

// eps as the definition's reference states it ("EPS = 1e-6", "eps: float = 1e-5"), else 1e-6.
double eps_of(const Definition& definition);

// The definition's reference with this eps in place of the one that it states, and the text as it is if that is the same
// number of fp32. Nothing if it states none, or several that differ.
std::optional<std::string> reference_with_eps(const Definition& definition, double eps);

// Which of these numbers is eps; null: none.
const double* find_eps(const std::map<std::string, double>& scalars);

// Kernels take eps in fp32.
inline bool is_same_eps(double a, double b) {
  return static_cast<float>(a) == static_cast<float>(b);
}

}  // namespace fibshim::judge
