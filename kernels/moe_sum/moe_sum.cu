// Adds up a token's rows, one of each expert that it has chosen, and applies the norm that follows:
// c = the sum of expert_outputs [tokens, top, hidden] in fp32, in their order, rounded once, as vLLM's
// moe_sum and SGLang's moe_sum_reduce do. Of 8 experts:
//
//   moe_sum8_h2048_bf16                    c alone
//   moe_sum8_add2_rmsnorm_h2048_bf16       z = c + (first + second); neither c nor z is kept
//   moe_sum8_add2_rmsnorm_sum_h2048_bf16   the same; c is kept, and z goes to `sum`
//   moe_sum8_fused_add_rmsnorm_h2048_bf16  z = c + residual, which goes to `residual_output`; c is not
//                                          kept
//
// The norms are those of sum_rmsnorm, and FlashInfer's of fused_add_rmsnorm: the results are
// bit-identical with two kernels'.
//
// With a norm a cluster shares a row: cluster = any number of blocks, block = the norm's threads / that
// number, grid = rows * that number. Alone block = kThreadsAlone, grid = rows * hidden / 8 / block.
#include "cluster_row.cuh"
#include "row.cuh"

namespace fibshim {
namespace {

using Type = __nv_bfloat16;
template <int kHidden>
using PlanFor = SumPlan<kHidden>;

constexpr int kThreadsAlone = 64;

template <int kTop>
__device__ Vector add_up(const Vector (&parts)[kTop]) {
  Vector c;
#pragma unroll
  for (int j = 0; j < kPairsPerVector; ++j) {
    float2 sum = {};
#pragma unroll
    for (int k = 0; k < kTop; ++k) {
      const float2 part = Pair<Type>::unpack(parts[k].pairs[j]);
      sum = {sum.x + part.x, sum.y + part.y};
    }
    c.pairs[j] = Pair<Type>::pack(sum);
  }
  return c;
}

template <int kTop, class Plan>
__device__ RowPart<Plan> load_and_add_up(const Type* expert_outputs, int64_t row, int thread) {
  Vector parts[Plan::kVectorsPerThread][kTop];
#pragma unroll
  for (int k = 0; k < kTop; ++k) {
    const RowPart<Plan> part =
        load_row_once<Plan>(expert_outputs + (row * kTop + k) * Plan::kElements, thread);
#pragma unroll
    for (int i = 0; i < Plan::kVectorsPerThread; ++i) parts[i][k] = part.vectors[i];
  }
  RowPart<Plan> c;
#pragma unroll
  for (int i = 0; i < Plan::kVectorsPerThread; ++i) c.vectors[i] = add_up(parts[i]);
  return c;
}

template <int kTop, int kHidden>
__device__ void sum_alone(const Type* expert_outputs, Type* c, int next_may_begin) {
  constexpr int kVectors = kHidden / kElementsPerVector;
  let_next_begin(next_may_begin);
  wait_for_kernel_before();
  const int64_t vector = int64_t{blockIdx.x} * kThreadsAlone + threadIdx.x;
  const Type* const from =
      expert_outputs +
      (vector / kVectors * kTop * kVectors + vector % kVectors) * kElementsPerVector;
  Vector parts[kTop];
#pragma unroll
  for (int k = 0; k < kTop; ++k) parts[k] = load_once(from + k * kHidden);
  store(c + vector * kElementsPerVector, add_up(parts));
}

// second: null for a sum of two. c, sum: null if they are not kept. weight_bias: -0 for none.
template <int kTop, class Plan>
__device__ void sum_and_normalize(const Type* expert_outputs, const Type* first, const Type* second,
                                  const Type* weight, Type* c, Type* output, Type* sum, float eps,
                                  float weight_bias, int next_may_begin) {
  __shared__ WarpSums<Plan::kGroupThreads / 32> all;
  let_next_begin(next_may_begin);
  const uint32_t blocks = blocks_of_cluster();
  const int thread = static_cast<int>(rank_in_cluster() * blockDim.x + threadIdx.x);
  const int64_t row = blockIdx.x / blocks;
  const int64_t at = row * Plan::kElements;
  if (blocks != 1) begin_sums(all);
  // The weight need not wait ("reads_before_wait").
  const RowPart<Plan> w = load_row_once<Plan>(weight, thread);
  if (blocks != 1) wait_for_cluster();
  wait_for_kernel_before();

  const RowPart<Plan> a = load_row_once<Plan>(first + at, thread);
  RowPart<Plan> b = {};
  if (second != nullptr) b = load_row_once<Plan>(second + at, thread);
  const RowPart<Plan> x = load_and_add_up<kTop, Plan>(expert_outputs, row, thread);
  if (c != nullptr) store_row<Plan>(c + at, thread, x);
  const auto sum_of = [&](int i, int j) -> float2 {
    const float2 p = unpack<Type>(a, i, j);
    const float2 r = unpack<Type>(x, i, j);
    if (second == nullptr) return {r.x + p.x, r.y + p.y};
    const float2 q = unpack<Type>(b, i, j);
    return {r.x + (p.x + q.x), r.y + (p.y + q.y)};
  };
  float squares = 0;
  const RowPart<Plan> z = make_row<Type, Plan>([&](int i, int j) {
    const float2 value = sum_of(i, j);
    squares = fmaf(value.x, value.x, squares);
    squares = fmaf(value.y, value.y, squares);
    return value;
  });
  if (sum != nullptr) store_row<Plan>(sum + at, thread, z);
  const float rstd =
      reciprocal_root(sum_over_row(all, thread, blocks, squares) * (1.0f / Plan::kElements), eps);
  const RowPart<Plan> y = make_row<Type, Plan>([&](int i, int j) -> float2 {
    const float2 scale = unpack<Type>(w, i, j);
    const float2 value = sum_of(i, j);
    return {value.x * rstd * (weight_bias + scale.x), value.y * rstd * (weight_bias + scale.y)};
  });
  store_row<Plan>(output + at, thread, y);
}

}  // namespace
}  // namespace fibshim

#define FIBSHIM_SUM_BOUNDS(hidden)                           \
  __launch_bounds__(fibshim::PlanFor<hidden>::kGroupThreads, \
                    512 / fibshim::PlanFor<hidden>::kGroupThreads)
#define FIBSHIM_KERNELS(top, hidden)                                                            \
  extern "C" __global__ void __launch_bounds__(fibshim::kThreadsAlone)                          \
      moe_sum##top##_h##hidden##_bf16(const __nv_bfloat16* expert_outputs, __nv_bfloat16* c,    \
                                      int next_may_begin) {                                     \
    fibshim::sum_alone<top, hidden>(expert_outputs, c, next_may_begin);                         \
  }                                                                                             \
  extern "C" __global__ void FIBSHIM_SUM_BOUNDS(hidden)                                         \
      moe_sum##top##_add2_rmsnorm_h##hidden##_bf16(                                             \
          const __nv_bfloat16* expert_outputs, const __nv_bfloat16* first,                      \
          const __nv_bfloat16* second, const __nv_bfloat16* weight, __nv_bfloat16* output,      \
          float eps, int next_may_begin) {                                                      \
    fibshim::sum_and_normalize<top, fibshim::PlanFor<hidden>>(expert_outputs, first, second,    \
                                                              weight, nullptr, output, nullptr, \
                                                              eps, -0.0f, next_may_begin);      \
  }                                                                                             \
  extern "C" __global__ void FIBSHIM_SUM_BOUNDS(hidden)                                         \
      moe_sum##top##_add2_rmsnorm_sum_h##hidden##_bf16(                                         \
          const __nv_bfloat16* expert_outputs, const __nv_bfloat16* first,                      \
          const __nv_bfloat16* second, const __nv_bfloat16* weight, __nv_bfloat16* c,           \
          __nv_bfloat16* output, __nv_bfloat16* sum, float eps, int next_may_begin) {           \
    fibshim::sum_and_normalize<top, fibshim::PlanFor<hidden>>(                                  \
        expert_outputs, first, second, weight, c, output, sum, eps, -0.0f, next_may_begin);     \
  }
#define FIBSHIM_FUSED_ADD_KERNEL(top, hidden)                                                 \
  extern "C" __global__ void FIBSHIM_SUM_BOUNDS(hidden)                                       \
      moe_sum##top##_fused_add_rmsnorm_h##hidden##_bf16(                                      \
          const __nv_bfloat16* expert_outputs, const __nv_bfloat16* residual,                 \
          const __nv_bfloat16* weight, __nv_bfloat16* output, __nv_bfloat16* residual_output, \
          float eps, float weight_bias, int next_may_begin) {                                 \
    fibshim::sum_and_normalize<top, fibshim::PlanFor<hidden>>(                                \
        expert_outputs, residual, nullptr, weight, nullptr, output, residual_output, eps,     \
        weight_bias, next_may_begin);                                                         \
  }

FIBSHIM_KERNELS(8, 2048)
FIBSHIM_KERNELS(8, 4096)
FIBSHIM_KERNELS(2, 4096)

FIBSHIM_FUSED_ADD_KERNEL(8, 2048)
