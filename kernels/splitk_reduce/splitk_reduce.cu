// The sum over the parts of K of a matrix product: C = the sum of partial_sums [splits, M, N], in fp32 and in order, as
// cuBLAS's splitKreduce_kernel makes it of what the kernel before has left.
//
// A kernel for each number of parts: splitk_reduce4_bf16. A thread makes four elements.
// grid = count / 512, rounded up; block = 128 threads.
#include "vector.cuh"

namespace fibshim {
namespace {

constexpr int kThreads = 128;
constexpr int kElements = 4;  // of a thread

// `count`: M * N, a multiple of 4.
template <int kSplits>
__device__ void add_up(const float* partial_sums, __nv_bfloat16* c, int count, int next_may_begin) {
  let_next_begin(next_may_begin);
  const int at = (blockIdx.x * kThreads + threadIdx.x) * kElements;
  wait_for_kernel_before();
  if (at >= count) return;
  Vector parts[kSplits];
#pragma unroll
  for (int i = 0; i < kSplits; ++i) parts[i] = load_once(partial_sums + int64_t{i} * count + at);
  float sums[kElements] = {};
#pragma unroll
  for (const Vector& part : parts) {
#pragma unroll
    for (int k = 0; k < kElements; ++k) sums[k] += __uint_as_float(part.pairs[k]);
  }
  *reinterpret_cast<uint2*>(c + at) = {Pair<__nv_bfloat16>::pack({sums[0], sums[1]}),
                                       Pair<__nv_bfloat16>::pack({sums[2], sums[3]})};
}

}  // namespace
}  // namespace fibshim

#define FIBSHIM_KERNEL(splits)                                                                  \
  extern "C" __global__ void __launch_bounds__(fibshim::kThreads) splitk_reduce##splits##_bf16( \
      const float* partial_sums, __nv_bfloat16* c, int count, int next_may_begin) {             \
    fibshim::add_up<splits>(partial_sums, c, count, next_may_begin);                            \
  }

FIBSHIM_KERNEL(2)
FIBSHIM_KERNEL(3)
FIBSHIM_KERNEL(4)
