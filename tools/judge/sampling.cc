#include "tools/judge/sampling.h"

#include <algorithm>
#include <functional>
#include <initializer_list>

namespace fibshim::judge {
namespace {

// Kernels add up in float32: a value this close to the edge may fall on either side.
constexpr double kEdge = 1e-5;

double filter_of(const CaseData& data, std::initializer_list<const char*> names, int64_t row,
                 double otherwise) {
  for (const char* const name : names) {
    if (const auto tensor = data.tensors.find(name); tensor != data.tensors.end()) {
      return tensor->second.at(tensor->second.count() == 1 ? 0 : row);
    }
    if (const auto scalar = data.scalars.find(name); scalar != data.scalars.end()) {
      return scalar->second;
    }
  }
  return otherwise;
}

void normalize(std::vector<double>* values) {
  double sum = 0;
  for (const double value : *values) sum += value;
  for (double& value : *values) value = sum > 0 ? value / sum : 0;
}

// Keeps values of at least `least`. Allows those that are nearly as large.
void keep_from(double least, SampleLaw* law) {
  for (size_t i = 0; i < law->probabilities.size(); ++i) {
    double& value = law->probabilities[i];
    if (value < least - kEdge * std::max(least, 1e-3)) law->is_allowed[i] = false;
    if (value < least) value = 0;
  }
  normalize(&law->probabilities);
}

}  // namespace

SampleLaw sample_law(std::string_view op, const CaseData& data, int64_t row) {
  const Tensor& probs = data.tensors.at("probs");
  const int64_t width = probs.width();
  SampleLaw law{std::vector<double>(static_cast<size_t>(width)), {}};
  for (int64_t i = 0; i < width; ++i) {
    law.probabilities[static_cast<size_t>(i)] = probs.at(row * width + i);
  }
  normalize(&law.probabilities);
  for (const double value : law.probabilities) law.is_allowed.push_back(value > 0);
  const auto has = [&](std::string_view part) { return op.find(part) != std::string_view::npos; };
  const auto sorted = [&] {
    std::vector<double> values = law.probabilities;
    std::ranges::sort(values, std::greater<>());
    return values;
  };
  if (has("top_k")) {
    const auto k =
        static_cast<int64_t>(filter_of(data, {"top_k", "k"}, row, static_cast<double>(width)));
    if (k > 0 && k < width) keep_from(sorted()[static_cast<size_t>(k - 1)], &law);
  }
  if (has("top_p")) {
    const double p = filter_of(data, {"top_p", "p"}, row, 1);
    const std::vector<double> values = sorted();
    // Allows one more value than needed: the kernel's sum may have been just below p.
    double reached = 0, least = 0, least_allowed = 0;
    for (const double value : values) {
      if (value == 0 || reached >= p + kEdge) break;
      least_allowed = value;
      if (reached < p) least = value;
      reached += value;
    }
    for (size_t i = 0; i < law.probabilities.size(); ++i) {
      if (law.probabilities[i] < least_allowed) law.is_allowed[i] = false;
      if (law.probabilities[i] < least) law.probabilities[i] = 0;
    }
    normalize(&law.probabilities);
  }
  if (has("min_p")) {
    const double share = filter_of(data, {"min_p"}, row, 0);
    keep_from(share * *std::ranges::max_element(law.probabilities), &law);
  }
  return law;
}

}  // namespace fibshim::judge
