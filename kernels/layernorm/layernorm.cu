// LayerNorm, which replaces PyTorch's fused F.layer_norm kernel: y = (x - mean) * rstd * w + b with
// rstd = 1 / sqrt(mean((x - mean)^2) + eps). Also writes `mean` and `rstd` of every row, which the
// backward pass reads. A null `bias` stands for zeros.
//
// Accuracy: each thread computes the mean and squared deviations of its own elements, and Chan's
// formula merges them over the warp and the row, so nothing cancels, however large the mean. The
// arithmetic is fp32, and the root is computed as in RMSNorm.
#include "row.cuh"

namespace fibshim {
namespace {

// Count, mean and sum of squared deviations of some of a row's elements.
struct Moments {
  float count;
  float mean;
  float deviations;
};

// kAreEqual: both counts are known to be equal, since every thread has all of its vectors.
template <bool kAreEqual>
__device__ Moments merge(const Moments& a, const Moments& b) {
  const float delta = b.mean - a.mean;
  if (kAreEqual) {
    return {2 * a.count, 0.5f * (a.mean + b.mean),
            fmaf(0.5f * a.count * delta, delta, a.deviations + b.deviations)};
  }
  const float count = a.count + b.count;
  const float share = count > 0 ? b.count / count : 0;
  return {count, fmaf(delta, share, a.mean),
          fmaf(delta * a.count * share, delta, a.deviations + b.deviations)};
}

template <class T, class Plan>
__device__ Moments moments_of(const RowPart<Plan>& row, int thread) {
  float sum = 0;
  int vectors = 0;
#pragma unroll
  for (int i = 0; i < Plan::kVectorsPerThread; ++i) {
    vectors += has_vector<Plan>(i, thread);
#pragma unroll
    for (int j = 0; j < kPairsPerVector; ++j) {
      const float2 x = unpack<T>(row, i, j);  // zeros if there is no vector
      sum += x.x + x.y;
    }
  }
  const float count = static_cast<float>(vectors * kElementsPerVector);
  const float mean = sum * (Plan::kIsEven ? 1.0f / (Plan::kVectorsPerThread * kElementsPerVector)
                                          : 1.0f / fmaxf(count, 1.0f));
  float deviations = 0;
#pragma unroll
  for (int i = 0; i < Plan::kVectorsPerThread; ++i) {
    if (!has_vector<Plan>(i, thread)) continue;
#pragma unroll
    for (int j = 0; j < kPairsPerVector; ++j) {
      const float2 x = unpack<T>(row, i, j);
      deviations = fmaf(x.x - mean, x.x - mean, deviations);
      deviations = fmaf(x.y - mean, x.y - mean, deviations);
    }
  }
  return {count, mean, deviations};
}

// Returns how many of a row's elements the threads of a warp hold.
template <class Plan>
__device__ constexpr float elements_of_warp(int warp) {
  int vectors = 0;
  for (int i = 0; i < Plan::kVectorsPerThread; ++i) {
    const int left = Plan::kVectors - i * Plan::kGroupThreads - warp * 32;
    vectors += left < 0 ? 0 : left > 32 ? 32 : left;
  }
  return static_cast<float>(vectors * kElementsPerVector);
}

// Returns the row's moments, in each of its threads. Call it once in a kernel: no barrier follows
// it.
template <class Plan>
__device__ Moments merge_over_row(Moments own) {
#pragma unroll
  for (int distance = (Plan::kIsWithinWarp ? Plan::kGroupThreads : 32) / 2; distance > 0;
       distance /= 2) {
    Moments other;
    other.count = Plan::kIsEven ? own.count : __shfl_xor_sync(0xffffffffu, own.count, distance);
    other.mean = __shfl_xor_sync(0xffffffffu, own.mean, distance);
    other.deviations = __shfl_xor_sync(0xffffffffu, own.deviations, distance);
    own = merge<Plan::kIsEven>(own, other);
  }
  if constexpr (Plan::kIsWithinWarp) {
    return own;
  } else {
    constexpr int kWarps = Plan::kGroupThreads / 32;
    __shared__ float2 warps[kWarps];  // mean, deviations
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = {own.mean, own.deviations};
    __syncthreads();
    // First the mean over all warps, then their deviations from it: two short chains in place of one
    // long chain of merges.
    float means[2] = {};
#pragma unroll
    for (int i = 0; i < kWarps; ++i) {
      means[i % 2] =
          fmaf(warps[i].x, elements_of_warp<Plan>(i) * (1.0f / Plan::kElements), means[i % 2]);
    }
    const float mean = means[0] + means[1];
    float deviations[2] = {};
#pragma unroll
    for (int i = 0; i < kWarps; ++i) {
      const float2 warp = warps[i];
      const float delta = warp.x - mean;
      deviations[i % 2] += fmaf(elements_of_warp<Plan>(i) * delta, delta, warp.y);
    }
    return {Plan::kElements, mean, deviations[0] + deviations[1]};
  }
}

template <class T, class Plan>
__device__ void normalize(const T* hidden_states, const T* weight, const T* bias, T* output,
                          float* mean, float* rstd, float eps, int batch_size) {
  const Place<Plan> place(batch_size);
  const int64_t offset = int64_t{place.row} * Plan::kElements;
  wait_for_kernel_before();

  RowPart<Plan> x = {};
  if (place.is_row) x = load_row_once<Plan>(hidden_states + offset, place.thread);
  const Moments moments = merge_over_row<Plan>(moments_of<T>(x, place.thread));
  const double variance = static_cast<double>(moments.deviations) * (1.0 / Plan::kElements);
  const float row_rstd = reciprocal_root(variance, eps);
  if (!place.is_row) return;
  if (place.thread == 0) {
    mean[place.row] = moments.mean;
    rstd[place.row] = row_rstd;
  }
  // Weight and bias are loaded only now: if they were in registers from the start, too few rows
  // would fit to keep DRAM busy.
  const RowPart<Plan> w = load_weight<Plan>(weight, place.thread);
  RowPart<Plan> b = {};
  if (bias != nullptr) b = load_weight<Plan>(bias, place.thread);
  store_row_streaming<Plan>(output + offset, place.thread,
                            make_row<T, Plan>([&](int i, int j) -> float2 {
                              const float2 value = unpack<T>(x, i, j);
                              const float2 scale = unpack<T>(w, i, j);
                              const float2 shift = unpack<T>(b, i, j);
                              return {fmaf((value.x - moments.mean) * row_rstd, scale.x, shift.x),
                                      fmaf((value.y - moments.mean) * row_rstd, scale.y, shift.y)};
                            }));
}

// Every thread merges the moments of all warps: eight or nine warps cost less than sixteen.
constexpr int vectors_per_thread(int hidden) {
  return hidden == 12288 ? 6 : hidden >= 5120 ? 4 : best_vectors_per_thread(hidden);
}

template <int kHidden>
using PlanFor = BestPlan<kHidden, vectors_per_thread(kHidden),
                         vectors_per_thread(kHidden) <= 2      ? 1536
                         : kHidden <= 1024 || kHidden == 12288 ? 768
                                                               : 1024>;

}  // namespace
}  // namespace fibshim

#define FIBSHIM_KERNELS(hidden, dtype, T)                                                          \
  extern "C" __global__ void FIBSHIM_BOUNDS(hidden) layernorm_h##hidden##_##dtype(                 \
      const T* hidden_states, const T* weight, const T* bias, T* output, float* mean, float* rstd, \
      float eps, int batch_size) {                                                                 \
    fibshim::normalize<T, fibshim::PlanFor<hidden>>(hidden_states, weight, bias, output, mean,     \
                                                    rstd, eps, batch_size);                        \
  }

FIBSHIM_LAYERNORM_SIZES(FIBSHIM_BOTH_TYPES)
