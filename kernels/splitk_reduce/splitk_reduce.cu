// Adds up the partial sums of a split-K matrix product: C = the sum of partial_sums [splits, M, N],
// in fp32 and in order, as cuBLAS's splitKreduce_kernel does after the product's own kernel.
//
// One kernel per number of parts: splitk_reduce4_bf16, _fp16; with a bias [N] added to each row in
// fp32: splitk_reduce4_bias_bf16. A thread computes four elements.
// grid = count / 512, rounded up; block = 128 threads.
#include "vector.cuh"

namespace fibshim {
namespace {

constexpr int kThreads = 128;
constexpr int kElements = 4;  // per thread

// `count`: M * N. N is a multiple of 4. bias: null unless kHasBias.
template <class T, int kSplits, bool kHasBias>
__device__ void add_up(const float* partial_sums, const T* bias, T* c, int count, int n,
                       int next_may_begin) {
  let_next_begin(next_may_begin);
  const int at = (blockIdx.x * kThreads + threadIdx.x) * kElements;
  [[maybe_unused]] float2 more[2];
  if constexpr (kHasBias) {  // the bias need not wait ("reads_before_wait")
    more[0] = load_pair(bias + at % n);
    more[1] = load_pair(bias + at % n + 2);
  }
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
  if constexpr (kHasBias) {
    sums[0] += more[0].x, sums[1] += more[0].y;
    sums[2] += more[1].x, sums[3] += more[1].y;
  }
  *reinterpret_cast<uint2*>(c + at) = {Pair<T>::pack({sums[0], sums[1]}),
                                       Pair<T>::pack({sums[2], sums[3]})};
}

}  // namespace
}  // namespace fibshim

#define FIBSHIM_KERNELS(name, type, splits)                                                       \
  extern "C" __global__ void __launch_bounds__(fibshim::kThreads) splitk_reduce##splits##_##name( \
      const float* partial_sums, type* c, int count, int next_may_begin) {                        \
    fibshim::add_up<type, splits, false>(partial_sums, nullptr, c, count, 0, next_may_begin);     \
  }                                                                                               \
  extern "C" __global__ void __launch_bounds__(fibshim::kThreads)                                 \
      splitk_reduce##splits##_bias_##name(const float* partial_sums, const type* bias, type* c,   \
                                          int count, int n, int next_may_begin) {                 \
    fibshim::add_up<type, splits, true>(partial_sums, bias, c, count, n, next_may_begin);         \
  }

FIBSHIM_KERNELS(bf16, __nv_bfloat16, 2)
FIBSHIM_KERNELS(bf16, __nv_bfloat16, 3)
FIBSHIM_KERNELS(bf16, __nv_bfloat16, 4)
FIBSHIM_KERNELS(fp16, __half, 2)
FIBSHIM_KERNELS(fp16, __half, 3)
FIBSHIM_KERNELS(fp16, __half, 4)
