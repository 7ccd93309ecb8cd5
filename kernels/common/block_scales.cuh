// How engines bring rows to fp8 (e4m3) with a scale for each block of 128 elements, for products with 128 x 128 blocks of weights: what a
// block's scale is, and what its elements become.
#pragma once

#include "fp8.cuh"

namespace fibshim {

constexpr int kLanes =
    128 / kElementsPerVector;  // that hold a block of elements, where each has a vector

// The scale of a row's block is at row * row_stride + block * block_stride.
struct Scales {
  float* scales;
  int row_stride, block_stride;
  __device__ void store(uint32_t row, uint32_t block, float scale) const {
    scales[int64_t{row} * row_stride + int64_t{block} * block_stride] = scale;
  }
  __device__ float load(uint32_t row, uint32_t block) const {
    return scales[int64_t{row} * row_stride + int64_t{block} * block_stride];
  }
};

// Gives each of kCount adjacent lanes their largest value. The warp calls it.
template <int kCount>
__device__ float largest_in_lanes(float largest) {
#pragma unroll
  for (int distance = kCount / 2; distance > 0; distance /= 2) {
    largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, distance));
  }
  return largest;
}

__device__ inline float approximate_reciprocal(float x) {
  float reciprocal;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(reciprocal) : "f"(x));
  return reciprocal;
}

// 1 / x of x >= 2^-126, correctly rounded, or 0 if that is less than 2^-126.
__device__ inline float reciprocal(float x) {
  const float estimate = approximate_reciprocal(x);
  const float excess = fmaf(fminf(x, 0x1p126f), estimate, -1.0f);
  return fmaf(estimate, -excess, estimate);
}

// The rules. `least`: what the largest magnitude of a block counts as at least.

// vLLM's: x * (1 / scale), each rounded; NaN becomes the lowest number.
template <bool kIsPowerOfTwo>
struct MultipliedOrLowest {
  float scale, factor;
  __device__ MultipliedOrLowest(float largest, float least) {
    scale = fmaxf(largest, least) / kLargestFp8;
    if (kIsPowerOfTwo) scale = exp2f(ceilf(log2f(fmaxf(scale, 1e-10f))));
    factor = reciprocal(scale);
  }
  __device__ float operator()(float x) const { return fmaxf(x * factor, -kLargestFp8); }
};

// FlashInfer's: x * (448 / the largest magnitude), by an approximate reciprocal; 1 for a block of zeros.
struct Unbounded {
  float scale, factor;
  __device__ Unbounded(float largest, float) {
    factor = largest == 0 ? 1.0f : kLargestFp8 * approximate_reciprocal(largest);
    scale = approximate_reciprocal(factor);
  }
  __device__ float operator()(float x) const { return x * factor; }
};

// SGLang's, by an approximate reciprocal. hides_nan: NaN becomes the largest number, as before 0.5.23.
struct Floored {
  float scale, factor;
  bool hides_nan;
  __device__ Floored(float largest, float least, bool hides_nan) : hides_nan(hides_nan) {
    largest = fmaxf(largest, least);
    factor = kLargestFp8 * approximate_reciprocal(largest);
    scale = largest * (1.0f / kLargestFp8);
  }
  __device__ float operator()(float x) const {
    return hides_nan ? fminf(x * factor, kLargestFp8) : x * factor;
  }
};

}  // namespace fibshim
