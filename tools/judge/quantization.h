// What the references of kernels that also quantise their output have in common.
#pragma once

#include <math.h>

#include <algorithm>
#include <vector>

#include "tools/judge/element_types.h"

namespace fibshim::judge {

constexpr double kLargestFp8 = 448;  // float8_e4m3fn

// The output once more in fp8 (e4m3), with one scale, or with one for each row (vLLM) or block of a row (SGLang).
struct Quantization {
  int quantized = -1;
  int scales = -1;  // -1: one scale for all
  double scale = 1, least = 0;
  size_t blocks = 1;                  // of a row
  const ElementType* type = nullptr;  // of what is quantised
  bool rounds_first = false;          // also what the output is computed from, as vLLM does

  void run(const double* row, size_t width, double* const* out) const {
    if (quantized < 0) return;
    const size_t size = width / blocks;
    for (size_t block = 0; block < blocks; ++block, row += size) {
      std::vector<double> values(row, row + size);
      double largest = 0;
      for (double& value : values) {
        value = rounded_to(*type, value);
        largest = std::max(largest, fabs(value));
      }
      const double divisor = scales < 0 ? scale : std::max(largest, least) / kLargestFp8;
      if (scales >= 0) out[scales][block] = divisor;
      for (size_t i = 0; i < size; ++i) {
        const double value = std::clamp(values[i] / divisor, -kLargestFp8, kLargestFp8);
        out[quantized][block * size + i] = value;
      }
    }
  }
};

}  // namespace fibshim::judge
