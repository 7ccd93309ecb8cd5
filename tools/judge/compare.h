// Decides whether an output is right, by the rule of FlashInfer-Bench: with abs = |x - y| and rel =
// abs / (|y| + 1e-8), an element is bad if abs > atol and rel > rtol; an output passes if the share
// of good elements reaches required_matched_ratio. A single value that is not finite where the
// reference is finite fails the output, whatever the ratio. Because zeros pass that rule in place
// of tiny outputs (probabilities), an output of floats must also have a cosine of 0.999 with the
// reference.
#pragma once

#include <string>
#include <vector>

#include "tools/judge/element_types.h"

namespace fibshim::judge {

struct Tolerance {
  double atol, rtol;
  double required_matched_ratio = 1;
  double min_cosine = 0.999;
};

// FlashInfer's tolerances: float32 1e-5, float16 1e-3, bfloat16 1e-2, fp8 1e-1; integers are exact.
Tolerance default_tolerance(const ElementType& type);

// The errors of one output, in one run or in several together.
struct Comparison {
  int64_t count = 0;
  int64_t bad = 0;
  int64_t not_finite = 0;
  double max_absolute_error = 0;
  double max_relative_error = 0;
  double largest_distance = 0;     // the tolerance that every element is within, as atol and rtol
  int64_t first_bad = -1;          // index of the element
  double found = 0, expected = 0;  // the values of that element
  double dot = 0, found_square = 0, expected_square = 0;

  // Adds `values` elements, the first of which has index `first`.
  void add(const double* found_values, const double* expected_values, int64_t values, int64_t first,
           const Tolerance& tolerance);
  void merge(const Comparison& other);

  double matched_ratio() const {
    return count == 0 ? 1 : 1 - static_cast<double>(bad) / static_cast<double>(count);
  }
  double cosine() const;
  // Why the output does not pass; empty if it does.
  std::string fault(const Tolerance& tolerance) const;
};

// The rows of an output that are judged: all, or, of more elements than 2^24, the first, the last
// and every nth.
std::vector<int64_t> choose_rows(int64_t rows, int64_t width);

// ½ Σ |f - p| of the frequencies of `counts` against `probabilities`.
double total_variation_distance(const std::vector<int64_t>& counts,
                                const std::vector<double>& probabilities);

}  // namespace fibshim::judge
