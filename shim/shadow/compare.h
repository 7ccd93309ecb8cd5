// Compares two tensors element by element, by the rule of the judge (tools/judge/compare.h). Runs
// in the kernel of compare.cu; the simulated driver runs the same code on the host.
#pragma once

#include <math.h>
#include <string.h>

#include "shim/abi/shadow_api.h"

#ifdef __CUDACC__
#define FIBSHIM_EVERYWHERE __host__ __device__ inline
#else
#define FIBSHIM_EVERYWHERE inline
#endif

namespace fibshim {

// The result. The host reads it once `done` equals CompareJob::number.
struct CompareAnswer {
  uint32_t done;
  uint32_t reserved;
  ShadowTotals totals[kMaxShadowOutputs];
};

// The kernel's only parameter.
struct CompareJob {
  ShadowOutput outputs[kMaxShadowOutputs];
  ShadowTotals* totals;  // of this check; zero before and after the kernel
  uint32_t* blocks_done;
  CompareAnswer* answer;
  uint32_t output_count;
  uint32_t number;
};

inline constexpr char kCompareKernel[] = "fibshim_shadow_compare";
inline constexpr uint32_t kCompareThreads = 256;
inline constexpr uint32_t kCompareElementsOfThread = 8;
inline constexpr uint32_t kMostCompareBlocks = 264;

FIBSHIM_EVERYWHERE uint64_t element_count(const ShadowOutput& output) {
  uint64_t count = 1;
  for (uint32_t i = 0; i < kMaxShadowAxes; ++i) count *= output.count[i];
  return count;
}

// Returns the offset of the `index`th element from the first, in elements.
FIBSHIM_EVERYWHERE uint64_t offset_of(const ShadowOutput& output, uint64_t index) {
  uint64_t offset = 0;
  for (uint32_t i = kMaxShadowAxes; i-- > 0;) {
    if (output.count[i] == 1) continue;
    offset += index % output.count[i] * output.stride[i];
    index /= output.count[i];
  }
  return offset;
}

// Decodes a float of one sign bit, `exponent_bits` and `fraction_bits`. `has_infinity`: the highest
// exponent means infinity or NaN; otherwise only the value of all ones is NaN.
FIBSHIM_EVERYWHERE double decode_float(uint32_t bits, uint32_t exponent_bits,
                                       uint32_t fraction_bits, bool has_infinity) {
  const uint32_t highest = (1u << exponent_bits) - 1;
  const uint32_t exponent = bits >> fraction_bits & highest;
  const uint32_t fraction = bits & ((1u << fraction_bits) - 1);
  const int bias = static_cast<int>(highest >> 1);
  const double sign = (bits >> (exponent_bits + fraction_bits) & 1) != 0 ? -1.0 : 1.0;
  if (exponent == highest && has_infinity) {
    return fraction != 0 ? static_cast<double>(NAN) : sign * static_cast<double>(INFINITY);
  }
  if (exponent == highest && fraction == (1u << fraction_bits) - 1) return static_cast<double>(NAN);
  const uint32_t whole = exponent == 0 ? fraction : fraction | 1u << fraction_bits;
  const int power =
      static_cast<int>(exponent == 0 ? 1 : exponent) - bias - static_cast<int>(fraction_bits);
  return sign * ldexp(static_cast<double>(whole), power);
}

template <class T>
FIBSHIM_EVERYWHERE T element_at(uint64_t address, uint64_t index) {
  return reinterpret_cast<const T*>(address)[index];
}

FIBSHIM_EVERYWHERE double load_element(ElementKind kind, uint64_t address, uint64_t index) {
  switch (kind) {
    case ElementKind::float64: return element_at<double>(address, index);
    case ElementKind::float32: return element_at<float>(address, index);
    case ElementKind::float16:
      return decode_float(element_at<uint16_t>(address, index), 5, 10, true);
    case ElementKind::bfloat16: {
      const uint32_t bits = uint32_t{element_at<uint16_t>(address, index)} << 16;
      float value;
      memcpy(&value, &bits, sizeof value);
      return value;
    }
    case ElementKind::float8_e4m3fn:
      return decode_float(element_at<uint8_t>(address, index), 4, 3, false);
    case ElementKind::float8_e5m2:
      return decode_float(element_at<uint8_t>(address, index), 5, 2, true);
    case ElementKind::int64: return static_cast<double>(element_at<int64_t>(address, index));
    case ElementKind::int32: return element_at<int32_t>(address, index);
    case ElementKind::int16: return element_at<int16_t>(address, index);
    case ElementKind::int8: return element_at<int8_t>(address, index);
    case ElementKind::uint64: return static_cast<double>(element_at<uint64_t>(address, index));
    case ElementKind::uint32: return element_at<uint32_t>(address, index);
    case ElementKind::uint16: return element_at<uint16_t>(address, index);
    case ElementKind::uint8: return element_at<uint8_t>(address, index);
    case ElementKind::unknown: break;
  }
  return 0;
}

FIBSHIM_EVERYWHERE bool is_eight_byte_integer(ElementKind kind) {
  return kind == ElementKind::int64 || kind == ElementKind::uint64;
}

FIBSHIM_EVERYWHERE double larger(double a, double b) { return a > b ? a : b; }
FIBSHIM_EVERYWHERE double smaller(double a, double b) { return a < b ? a : b; }

// Compares one element and adds the result.
FIBSHIM_EVERYWHERE void compare_element(const ShadowOutput& output, uint64_t index,
                                        ShadowTotals* totals) {
  const uint64_t offset = offset_of(output, index);
  const double found = load_element(output.element, output.found, offset);
  const double expected = load_element(output.element, output.expected, offset);
  ++totals->elements;
  if (isnan(found)) ++totals->nans;
  if (isinf(found)) ++totals->infinities;
  if (!isfinite(found) || !isfinite(expected)) {
    // An infinity matches only the same infinity, and NaN only NaN.
    if (found == expected || (isnan(found) && isnan(expected))) return;
    ++totals->wrong;
    ++totals->not_finite;
    totals->worst = static_cast<double>(INFINITY);
    return;
  }
  double difference = fabs(found - expected);
  // Beyond 2^53 different integers may convert to the same double.
  if (difference == 0 && is_eight_byte_integer(output.element) &&
      element_at<uint64_t>(output.found, offset) != element_at<uint64_t>(output.expected, offset)) {
    difference = 1;
  }
  const double relative = difference / (fabs(expected) + kRelativeFloor);
  if (difference > output.atol && relative > output.rtol) ++totals->wrong;
  if (difference != 0) {
    totals->worst =
        larger(totals->worst, smaller(difference / output.atol, relative / output.rtol));
  }
  totals->largest_difference = larger(totals->largest_difference, difference);
  totals->sum_of_differences += difference;
  totals->dot += found * expected;
  totals->found_square += found * found;
  totals->expected_square += expected * expected;
}

}  // namespace fibshim
