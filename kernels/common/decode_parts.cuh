// Merges the parts of decode attention, in the order and with the approximations of FlashAttention 3's combine kernel.
#pragma once

#include "vector.cuh"

namespace fibshim {

constexpr int kAhead = 16;  // parts of a row whose loads are in flight together

template <class T>
struct DecodeParts {
  const float* partial_output;  // [parts, heads, rows, kHeadDim]
  const float* partial_lse;     // [parts, heads, rows], natural logarithms
  const int* first_rows;        // [batch_size + 1] each sequence's first row
  const int* query_lengths;     // [batch_size] 0: nothing to do; null if sorted
  const int* split_counts;      // [batch_size]
  const int* order;             // [batch_size] whose split_counts are; null if not sorted
  T* output;                    // [rows, heads, kHeadDim]
  float* lse;                   // [heads, rows]
  int64_t output_stride;        // of a row, in elements
  int batch_size, rows, heads;
};

__device__ inline float exp_approximately(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x * 1.44269502f));
  return y;
}

__device__ inline float log2_approximately(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ inline float divide_one_approximately(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// A volatile load, which stays in order with those of load_once(): the value needed first is loaded
// first.
__device__ inline float load_lse(const float* from) {
  float lse;
  asm volatile("ld.global.f32 %0, [%1];" : "=f"(lse) : "l"(from));
  return lse;
}

template <class T>
struct MergedVector {
  float sums[4];
  float weights, largest;  // of the row's head
  __device__ uint2 packed() const {
    return {Pair<T>::pack({sums[0], sums[1]}), Pair<T>::pack({sums[2], sums[3]})};
  }
  __device__ float lse() const { return fmaf(log2_approximately(weights), 0.693147182f, largest); }
};

// Merges one head of a row, with one lane per vector of four elements. All lanes of the warp must
// call this, with the same number of parts.
template <int kHeadDim, class T>
__device__ MergedVector<T> merge(const DecodeParts<T>& call, int64_t row, int head, int parts,
                                 int lane) {
  constexpr int kLanes = kHeadDim / 4;
  const int64_t part_stride = int64_t{call.heads} * call.rows;
  const int64_t at = int64_t{head} * call.rows + row;
  const float* const lses = call.partial_lse + at;
  const float* const outputs = call.partial_output + at * kHeadDim + lane * 4;

  const auto lse_of = [&](int part) {
    return part < parts ? load_lse(lses + part * part_stride) : -INFINITY;
  };
  Vector loaded[kAhead];
  const auto load = [&](int first) {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (first + i < parts) {
        loaded[i] = load_once(outputs + (first + i) * part_stride * kHeadDim);
      }
    }
  };
  // A lane has the part of its number, and every kLanes-th part after that.
  const float own = lse_of(lane);
  load(0);

  float largest = own;
#pragma unroll 1
  for (int part = lane + kLanes; part < parts; part += kLanes) {
    largest = fmaxf(largest, lse_of(part));
  }
#pragma unroll
  for (int distance = kLanes / 2; distance > 0; distance /= 2) {
    largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, distance));
  }
  const float shift = largest == -INFINITY ? 0 : largest;
  float weight = exp_approximately(own - shift);
  float weights = weight;
#pragma unroll 1
  for (int part = lane + kLanes; part < parts; part += kLanes) {
    weights += exp_approximately(lse_of(part) - shift);
  }
#pragma unroll
  for (int distance = kLanes / 2; distance > 0; distance /= 2) {
    weights += __shfl_xor_sync(~0u, weights, distance);
  }
  const float one = weights == 0 || isnan(weights) ? 0 : divide_one_approximately(weights);
  weight *= one;

  float sums[4] = {};
  for (int first = 0;;) {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const float factor = __shfl_sync(~0u, weight, first % kLanes + i, kLanes);
      // A part without weight may never have been written. Indexes past the last part have no
      // weight either.
      if (factor > 0) {
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          sums[k] = fmaf(factor, __uint_as_float(loaded[i].pairs[k]), sums[k]);
        }
      }
    }
    first += kAhead;
    if (first >= parts) break;
    load(first);
    if (first % kLanes == 0) weight = exp_approximately(lse_of(first + lane) - shift) * one;
  }

  return {{sums[0], sums[1], sums[2], sums[3]}, weights, largest};
}

template <int kHeadDim, class T>
__device__ uint2* output_vector(const DecodeParts<T>& call, int64_t row, int head, int lane) {
  return reinterpret_cast<uint2*>(call.output + row * call.output_stride +
                                  int64_t{head} * kHeadDim + lane * 4);
}

// Lanes beyond the last head (`is_written` is false) compute another head and do not store it.
template <int kHeadDim, class T>
__device__ MergedVector<T> merge_and_store(const DecodeParts<T>& call, int64_t row, int head,
                                           int parts, int lane, bool is_written) {
  const MergedVector<T> merged = merge<kHeadDim>(call, row, head, parts, lane);
  if (is_written) {
    *output_vector<kHeadDim>(call, row, head, lane) = merged.packed();
    if (lane == 0) call.lse[int64_t{head} * call.rows + row] = merged.lse();
  }
  return merged;
}

}  // namespace fibshim
