// Adds up a matrix product's partial sums and applies the norm that follows, which replaces
// cuBLAS's splitKreduce_kernel and torch.compile's RMSNorm of a sum: c = the sum of partial_sums
// [splits, M, 4096], z = c + first [+ second], output = z / sqrt(mean(z^2) + eps) * w.
//
//   splitk_reduce4_add_rmsnorm_h4096_bf16       z = c + first; z is not kept
//   splitk_reduce4_add2_rmsnorm_h4096_bf16      z = c + (first + second); neither c nor z is kept
//   splitk_reduce4_add2_rmsnorm_sum_h4096_bf16  the same; c is kept, and z goes to `sum`
//
// Adds and rounds as splitk_reduce followed by sum_rmsnorm does: the results are bit-identical.
//
// A cluster shares a row: cluster = any number of blocks, block = 512 threads / that number, grid =
// rows * that number.
#include "cluster_row.cuh"

namespace fibshim {
namespace {

constexpr int kHidden = 4096;
constexpr int kThreads = kHidden / kElementsPerVector;  // per row
constexpr int kWarps = kThreads / 32;

using Type = __nv_bfloat16;

// Returns eight elements of c. Two lanes share 16 elements: each loads two of their four pieces of
// four elements, so that an access reads whole sectors, and then gives one piece to the other lane.
template <int kSplits>
__device__ Vector add_up(const float* partial_sums, int64_t count, int64_t row, int thread) {
  const bool is_odd = thread % 2 != 0;
  const float* const from =
      partial_sums + row * kHidden + thread / 2 * (2 * kElementsPerVector) + (is_odd ? 4 : 0);
  Vector parts[kSplits][2];
#pragma unroll
  for (int i = 0; i < kSplits; ++i) {
    parts[i][0] = load_once(from + i * count);
    parts[i][1] = load_once(from + i * count + kElementsPerVector);
  }
  uint2 pieces[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float sums[4] = {};
#pragma unroll
    for (int i = 0; i < kSplits; ++i) {
#pragma unroll
      for (int k = 0; k < 4; ++k) sums[k] += __uint_as_float(parts[i][half].pairs[k]);
    }
    pieces[half] = {Pair<Type>::pack({sums[0], sums[1]}), Pair<Type>::pack({sums[2], sums[3]})};
  }
  const uint2 others = is_odd ? pieces[0] : pieces[1];
  const uint2 own = {__shfl_xor_sync(0xffffffffu, others.x, 1),
                     __shfl_xor_sync(0xffffffffu, others.y, 1)};
  const uint2 low = is_odd ? own : pieces[0];
  const uint2 high = is_odd ? pieces[1] : own;
  return {{low.x, low.y, high.x, high.y}};
}

// second: null for a sum of two. c, sum: null if they are not kept.
template <int kSplits>
__device__ void reduce_and_normalize(const float* partial_sums, const Type* first,
                                     const Type* second, const Type* weight, Type* c, Type* output,
                                     Type* sum, float eps, int batch_size, int next_may_begin) {
  __shared__ WarpSums<kWarps> all;
  let_next_begin(next_may_begin);
  const uint32_t blocks = blocks_of_cluster();
  const int thread = static_cast<int>(rank_in_cluster() * blockDim.x + threadIdx.x);
  const int64_t row = blockIdx.x / blocks;
  const int64_t at = row * kHidden + thread * kElementsPerVector;
  if (blocks != 1) begin_sums(all);
  // These need not wait ("reads_before_wait").
  const Vector w = load_once(weight + thread * kElementsPerVector);
  const Vector a = load_once(first + at);
  Vector b = {};
  if (second != nullptr) b = load_once(second + at);
  if (blocks != 1) wait_for_cluster();
  wait_for_kernel_before();

  const Vector x = add_up<kSplits>(partial_sums, int64_t{batch_size} * kHidden, row, thread);
  if (c != nullptr) store(c + at, x);
  float2 z[kPairsPerVector];
  float squares = 0;
#pragma unroll
  for (int i = 0; i < kPairsPerVector; ++i) {
    const float2 p = Pair<Type>::unpack(a.pairs[i]);
    const float2 q = Pair<Type>::unpack(b.pairs[i]);
    const float2 r = Pair<Type>::unpack(x.pairs[i]);
    z[i] = {r.x + (p.x + q.x), r.y + (p.y + q.y)};
    squares = fmaf(z[i].x, z[i].x, squares);
    squares = fmaf(z[i].y, z[i].y, squares);
  }
  if (sum != nullptr) {
    Vector kept;
#pragma unroll
    for (int i = 0; i < kPairsPerVector; ++i) kept.pairs[i] = Pair<Type>::pack(z[i]);
    store(sum + at, kept);
  }
  const float rstd = rsqrtf(sum_over_row(all, thread, blocks, squares) * (1.0f / kHidden) + eps);
  Vector normal;
#pragma unroll
  for (int i = 0; i < kPairsPerVector; ++i) {
    const float2 scale = Pair<Type>::unpack(w.pairs[i]);
    normal.pairs[i] = Pair<Type>::pack({z[i].x * rstd * scale.x, z[i].y * rstd * scale.y});
  }
  store(output + at, normal);
}

}  // namespace
}  // namespace fibshim

#define FIBSHIM_KERNELS(splits)                                                                 \
  extern "C" __global__ void __launch_bounds__(fibshim::kThreads, 2)                            \
      splitk_reduce##splits##_add_rmsnorm_h4096_bf16(                                           \
          const float* partial_sums, const __nv_bfloat16* first, const __nv_bfloat16* weight,   \
          __nv_bfloat16* c, __nv_bfloat16* output, float eps, int batch_size,                   \
          int next_may_begin) {                                                                 \
    fibshim::reduce_and_normalize<splits>(partial_sums, first, nullptr, weight, c, output,      \
                                          nullptr, eps, batch_size, next_may_begin);            \
  }                                                                                             \
  extern "C" __global__ void __launch_bounds__(fibshim::kThreads, 2)                            \
      splitk_reduce##splits##_add2_rmsnorm_h4096_bf16(                                          \
          const float* partial_sums, const __nv_bfloat16* first, const __nv_bfloat16* second,   \
          const __nv_bfloat16* weight, __nv_bfloat16* output, float eps, int batch_size,        \
          int next_may_begin) {                                                                 \
    fibshim::reduce_and_normalize<splits>(partial_sums, first, second, weight, nullptr, output, \
                                          nullptr, eps, batch_size, next_may_begin);            \
  }                                                                                             \
  extern "C" __global__ void __launch_bounds__(fibshim::kThreads, 2)                            \
      splitk_reduce##splits##_add2_rmsnorm_sum_h4096_bf16(                                      \
          const float* partial_sums, const __nv_bfloat16* first, const __nv_bfloat16* second,   \
          const __nv_bfloat16* weight, __nv_bfloat16* c, __nv_bfloat16* output,                 \
          __nv_bfloat16* sum, float eps, int batch_size, int next_may_begin) {                  \
    fibshim::reduce_and_normalize<splits>(partial_sums, first, second, weight, c, output, sum,  \
                                          eps, batch_size, next_may_begin);                     \
  }

FIBSHIM_KERNELS(2)
FIBSHIM_KERNELS(3)
FIBSHIM_KERNELS(4)
