// The kernel that compares the outputs of a solution and of the original (compare.h). The last
// block to finish passes on the results of all blocks.
#include "shim/shadow/compare.h"

namespace fibshim {
namespace {

// Members by their places in ShadowTotals.
constexpr uint32_t kCounts = 5;
constexpr uint32_t kValues = sizeof(ShadowTotals) / 8;

__device__ bool is_maximum(uint32_t place) {
  return place == offsetof(ShadowTotals, largest_difference) / 8 ||
         place == offsetof(ShadowTotals, worst) / 8;
}

__device__ uint64_t join(uint32_t place, uint64_t a, uint64_t b) {
  if (place < kCounts) return a + b;
  const double x = __longlong_as_double(static_cast<long long>(a));
  const double y = __longlong_as_double(static_cast<long long>(b));
  return static_cast<uint64_t>(__double_as_longlong(is_maximum(place) ? larger(x, y) : x + y));
}

// The maxima are not negative, so their bits compare like their values.
__device__ void add_to(ShadowTotals* totals, uint32_t place, uint64_t value) {
  auto* const at = reinterpret_cast<unsigned long long*>(totals) + place;
  if (place < kCounts) {
    atomicAdd(at, value);
  } else if (is_maximum(place)) {
    atomicMax(at, value);
  } else {
    atomicAdd(reinterpret_cast<double*>(at), __longlong_as_double(static_cast<long long>(value)));
  }
}

}  // namespace
}  // namespace fibshim

extern "C" __global__ void __launch_bounds__(fibshim::kCompareThreads)
    fibshim_shadow_compare(const __grid_constant__ fibshim::CompareJob job) {
  using namespace fibshim;
  constexpr uint32_t kWarps = kCompareThreads / 32;
  __shared__ uint64_t of_warps[kWarps][kValues];
  const uint64_t first = uint64_t{blockIdx.x} * kCompareThreads + threadIdx.x;
  const uint64_t step = uint64_t{gridDim.x} * kCompareThreads;
  for (uint32_t i = 0; i < job.output_count; ++i) {
    const ShadowOutput& output = job.outputs[i];
    ShadowTotals own = {};
    const uint64_t count = element_count(output);
    for (uint64_t at = first; at < count; at += step) compare_element(output, at, &own);
    uint64_t values[kValues];
    memcpy(values, &own, sizeof own);
#pragma unroll
    for (uint32_t place = 0; place < kValues; ++place) {
      for (uint32_t distance = 16; distance != 0; distance /= 2) {
        values[place] = join(place, values[place], __shfl_xor_sync(~0u, values[place], distance));
      }
      if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32][place] = values[place];
    }
    __syncthreads();
    if (threadIdx.x < kValues) {
      uint64_t value = of_warps[0][threadIdx.x];
      for (uint32_t warp = 1; warp < kWarps; ++warp) {
        value = join(threadIdx.x, value, of_warps[warp][threadIdx.x]);
      }
      if (value != 0) add_to(&job.totals[i], threadIdx.x, value);
    }
    __syncthreads();
  }
  __threadfence();
  __shared__ bool is_last;
  __syncthreads();
  if (threadIdx.x == 0) is_last = atomicAdd(job.blocks_done, 1) == gridDim.x - 1;
  __syncthreads();
  if (!is_last) return;
  __threadfence();
  for (uint32_t at = threadIdx.x; at < job.output_count * kValues; at += kCompareThreads) {
    auto* const value = reinterpret_cast<volatile uint64_t*>(job.totals) + at;
    reinterpret_cast<volatile uint64_t*>(job.answer->totals)[at] = *value;
    *value = 0;
  }
  __threadfence_system();
  __syncthreads();
  if (threadIdx.x != 0) return;
  *job.blocks_done = 0;
  __threadfence_system();
  *reinterpret_cast<volatile uint32_t*>(&job.answer->done) = job.number;
}
