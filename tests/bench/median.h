// The median. All figures of the benchmarks are medians.
#pragma once

#include <algorithm>
#include <vector>

namespace fibshim::bench {

// 0 if there are no values.
inline double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

}  // namespace fibshim::bench
