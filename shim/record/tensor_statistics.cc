#include "shim/record/tensor_statistics.h"

#include <string.h>

namespace fibshim {
namespace {

// Powers of two and square roots without libm, which nothing else here needs.
double power_of_two(int exponent) {
  double value = 1;
  for (; exponent > 0; --exponent) value *= 2;
  for (; exponent < 0; ++exponent) value /= 2;
  return value;
}

double square_root(double value) {
  if (!(value > 0)) return 0;
  double root = value > 1 ? value : 1;
  for (int i = 0; i < 2000; ++i) {
    const double next = (root + value / root) / 2;
    if (next >= root) break;
    root = next;
  }
  return root;
}

enum class Kind : uint8_t { number, nan, infinity };

Kind load(const TensorPlanTensor& tensor, uint64_t bits, double* out) {
  const uint32_t width = tensor.element_bytes * 8;
  if (tensor.exponent_bits == 0) {
    const bool is_negative = tensor.is_signed != 0 && (bits >> (width - 1) & 1) != 0;
    if (is_negative && width < 64) bits |= ~uint64_t{0} << width;
    *out =
        is_negative ? static_cast<double>(static_cast<int64_t>(bits)) : static_cast<double>(bits);
    return Kind::number;
  }
  const uint32_t mantissa_bits = tensor.mantissa_bits;
  const uint64_t mantissa = bits & ((uint64_t{1} << mantissa_bits) - 1);
  const uint64_t most = (uint64_t{1} << tensor.exponent_bits) - 1;
  const uint64_t exponent = bits >> mantissa_bits & most;
  const bool is_last_mantissa = mantissa == (uint64_t{1} << mantissa_bits) - 1;
  if (exponent == most && tensor.has_infinity != 0) {
    return mantissa == 0 ? Kind::infinity : Kind::nan;
  }
  if (exponent == most && is_last_mantissa) return Kind::nan;
  const int bias = static_cast<int>(most >> 1);
  const bool is_normal = exponent != 0;
  const double fraction =
      static_cast<double>(mantissa) / power_of_two(static_cast<int>(mantissa_bits)) +
      (is_normal ? 1 : 0);
  *out = fraction * power_of_two((is_normal ? static_cast<int>(exponent) : 1) - bias);
  if ((bits >> (width - 1) & 1) != 0) *out = -*out;
  return Kind::number;
}

}  // namespace

void add_statistics(const TensorPlanTensor& tensor, const void* data, uint64_t bytes,
                    KeptTensor* out) {
  const auto* const at = static_cast<const char*>(data);
  double mean = 0, squares = 0;
  uint64_t finite = 0;
  out->count = bytes / tensor.element_bytes;
  out->least = out->largest = 0;
  for (uint64_t i = 0; i < out->count; ++i) {
    uint64_t bits = 0;
    memcpy(&bits, at + i * tensor.element_bytes, tensor.element_bytes);
    double value = 0;
    const Kind kind = load(tensor, bits, &value);
    out->nan_count += kind == Kind::nan;
    out->infinity_count += kind == Kind::infinity;
    if (kind != Kind::number) continue;
    if (finite == 0 || value < out->least) out->least = value;
    if (finite == 0 || value > out->largest) out->largest = value;
    // Welford's algorithm, which avoids cancellation.
    const double before = value - mean;
    mean += before / static_cast<double>(++finite);
    squares += before * (value - mean);
  }
  out->mean = mean;
  out->deviation = finite == 0 ? 0 : square_root(squares / static_cast<double>(finite));
}

}  // namespace fibshim
