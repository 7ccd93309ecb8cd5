#include "tools/judge/compare.h"

#include <math.h>

#include <algorithm>
#include <limits>
#include <numeric>

#include <fmt/format.h>

#include "shim/abi/element.h"

namespace fibshim::judge {

namespace {

constexpr int64_t kMostElements = int64_t{1} << 24;

}  // namespace

std::vector<int64_t> choose_rows(int64_t rows, int64_t width) {
  const int64_t most = std::max<int64_t>(64, kMostElements / std::max<int64_t>(width, 1));
  std::vector<int64_t> chosen;
  if (rows <= most) {
    chosen.resize(static_cast<size_t>(rows));
    std::iota(chosen.begin(), chosen.end(), 0);
    return chosen;
  }
  // An odd step meets every lane and tile of a block sooner or later.
  const int64_t step = (rows / (most - 32)) | 1;
  for (int64_t row = 0; row < rows; row += step) chosen.push_back(row);
  for (int64_t row = rows - 16; row < rows; ++row) {
    if (row % step != 0) chosen.push_back(row);
  }
  return chosen;
}

Tolerance default_tolerance(const ElementType& type) {
  for (const ElementInfo& element : kElements) {
    if (std::string_view(type.name) == element.dtype) return {element.tolerance, element.tolerance};
  }
  if (!type.is_floating) return {0, 0};
  const double limit = type.bytes == 1 ? 1e-1 : 1e-5;
  return {limit, limit};
}

void Comparison::add(const double* found_values, const double* expected_values, int64_t values,
                     int64_t first, const Tolerance& tolerance) {
  count += values;
  for (int64_t i = 0; i < values; ++i) {
    const double x = found_values[i], y = expected_values[i];
    bool is_bad = false;
    if (!std::isfinite(x) || !std::isfinite(y)) {
      // An infinity agrees only with the same infinity, NaN only with NaN.
      is_bad = !(x == y || (std::isnan(x) && std::isnan(y)));
      if (is_bad) {
        ++not_finite;
        max_absolute_error = max_relative_error = largest_distance =
            std::numeric_limits<double>::infinity();
      }
    } else {
      const double absolute = fabs(x - y);
      const double relative = absolute / (fabs(y) + kRelativeFloor);
      max_absolute_error = std::max(max_absolute_error, absolute);
      max_relative_error = std::max(max_relative_error, relative);
      largest_distance = std::max(largest_distance, std::min(absolute, relative));
      is_bad = absolute > tolerance.atol && relative > tolerance.rtol;
      dot += x * y;
      found_square += x * x;
      expected_square += y * y;
    }
    if (!is_bad) continue;
    ++bad;
    if (first_bad >= 0 && first_bad < first + i) continue;
    first_bad = first + i;
    found = x;
    expected = y;
  }
}

void Comparison::merge(const Comparison& other) {
  count += other.count;
  bad += other.bad;
  not_finite += other.not_finite;
  max_absolute_error = std::max(max_absolute_error, other.max_absolute_error);
  max_relative_error = std::max(max_relative_error, other.max_relative_error);
  largest_distance = std::max(largest_distance, other.largest_distance);
  dot += other.dot;
  found_square += other.found_square;
  expected_square += other.expected_square;
  if (other.first_bad < 0 || (first_bad >= 0 && first_bad <= other.first_bad)) return;
  first_bad = other.first_bad;
  found = other.found;
  expected = other.expected;
}

double Comparison::cosine() const {
  if (expected_square == 0) return 1;  // a vector of zeros has no direction
  if (found_square == 0) return 0;
  return dot / sqrt(found_square) / sqrt(expected_square);
}

std::string Comparison::fault(const Tolerance& tolerance) const {
  const auto where = [&] {
    // Prints a NaN without its sign, which means nothing.
    return fmt::format("element {} is {}, not {:.6g}", first_bad,
                       std::isnan(found) ? "nan" : fmt::format("{:.6g}", found), expected);
  };
  if (not_finite > 0) {
    return fmt::format("{} of {} values are not finite where they should be, or the reverse: {}",
                       not_finite, count, where());
  }
  if (matched_ratio() < tolerance.required_matched_ratio) {
    return fmt::format("{} of {} values are wrong: {}", bad, count, where());
  }
  if (cosine() < tolerance.min_cosine) {
    return fmt::format("the output differs too much in direction: cosine {:.6f}", cosine());
  }
  return "";
}

double total_variation_distance(const std::vector<int64_t>& counts,
                                const std::vector<double>& probabilities) {
  const auto total = static_cast<double>(std::accumulate(counts.begin(), counts.end(), int64_t{0}));
  double distance = 0;
  for (size_t i = 0; i < counts.size(); ++i) {
    const double frequency = total == 0 ? 0 : static_cast<double>(counts[i]) / total;
    distance += fabs(frequency - probabilities[i]);
  }
  return distance / 2;
}

}  // namespace fibshim::judge
