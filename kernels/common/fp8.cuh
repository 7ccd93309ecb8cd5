// Quantises elements to fp8 (e4m3) with a scale, as vLLM quantises the output of the kernel before.
#pragma once

#include <cuda_fp8.h>

#include "row.cuh"

namespace fibshim {

constexpr float kLargestFp8 = 448.0f;

// Rounds to nearest, with saturation. NaN stays NaN.
__device__ inline uint2 quantize(const float2 (&values)[kPairsPerVector]) {
  uint32_t words[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint32_t low = __nv_cvt_float2_to_fp8x2(values[2 * i], __NV_SATFINITE, __NV_E4M3);
    const uint32_t high = __nv_cvt_float2_to_fp8x2(values[2 * i + 1], __NV_SATFINITE, __NV_E4M3);
    words[i] = low | high << 16;
  }
  return {words[0], words[1]};
}

// NaN becomes the largest number, as in vLLM. A scale for all tokens is applied by multiplying with
// its reciprocal, a scale per token by dividing (kDivides).
template <class T, bool kDivides>
__device__ uint2 quantize_like_vllm(const Vector& vector, float factor) {
  const auto convert = [&](float x) {
    return fmaxf(-kLargestFp8, fminf(kDivides ? x / factor : x * factor, kLargestFp8));
  };
  float2 values[kPairsPerVector];
#pragma unroll
  for (int i = 0; i < kPairsPerVector; ++i) {
    const float2 pair = Pair<T>::unpack(vector.pairs[i]);
    values[i] = {convert(pair.x), convert(pair.y)};
  }
  return quantize(values);
}

// Returns the largest magnitude, ignoring NaN.
template <class T>
__device__ float largest_of(const Vector& vector) {
  float largest = 0;
#pragma unroll
  for (int i = 0; i < kPairsPerVector; ++i) {
    const float2 pair = Pair<T>::unpack(vector.pairs[i]);
    largest = fmaxf(largest, fmaxf(fabsf(pair.x), fabsf(pair.y)));
  }
  return largest;
}

__device__ inline float scale_of_token(float largest) {
  return fmaxf(largest / kLargestFp8, 1.0f / (kLargestFp8 * 512.0f));
}

// Returns the largest of one value per lane or thread. No value may be negative; NaN, without a sign, is the largest.
__device__ inline float largest_in_warp(float value) {
  return __uint_as_float(__reduce_max_sync(0xffffffffu, __float_as_uint(value)));
}
// Call it once in a kernel: no barrier follows it.
__device__ inline float largest_in_block(float value) {
  __shared__ float of_warps[32];
  value = largest_in_warp(value);
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = value;
  __syncthreads();
  return largest_in_warp(threadIdx.x % 32 < blockDim.x / 32 ? of_warps[threadIdx.x % 32] : 0.0f);
}

// What is done with a finished row besides storing it. begin() is called after the wait for the
// kernel before.
struct NotQuantized {
  __device__ void begin() {}
  template <class T, class Plan>
  __device__ void finish(const Place<Plan>&, const RowPart<Plan>&) {}
};

template <class T, bool kDivides, class Plan>
__device__ void store_quantized(uint8_t* out, const Place<Plan>& place, const RowPart<Plan>& row,
                                float factor) {
  uint2* const to = reinterpret_cast<uint2*>(out + int64_t{place.row} * Plan::kElements);
#pragma unroll
  for (int i = 0; i < Plan::kVectorsPerThread; ++i) {
    if (has_vector<Plan>(i, place.thread)) {
      to[i * Plan::kGroupThreads + place.thread] =
          quantize_like_vllm<T, kDivides>(row.vectors[i], factor);
    }
  }
}

struct QuantizedWithOneScale {
  const float* scale;
  uint8_t* out;
  float reciprocal;
  __device__ void begin() { reciprocal = 1.0f / *scale; }
  template <class T, class Plan>
  __device__ void finish(const Place<Plan>& place, const RowPart<Plan>& row) {
    store_quantized<T, false>(out, place, row, reciprocal);
  }
};

struct QuantizedPerToken {
  float* scales;
  uint8_t* out;
  __device__ void begin() {}
  template <class T, class Plan>
  __device__ void finish(const Place<Plan>& place, const RowPart<Plan>& row) {
    static_assert(Plan::kGroupThreads >= 32, "a row has whole warps");
    float largest = 0;
#pragma unroll
    for (const Vector& vector : row.vectors) largest = fmaxf(largest, largest_of<T>(vector));
    const float scale =
        scale_of_token(Plan::kIsWithinWarp ? largest_in_warp(largest) : largest_in_block(largest));
    if (place.thread == 0) scales[place.row] = scale;
    store_quantized<T, true>(out, place, row, scale);
  }
};

}  // namespace fibshim
