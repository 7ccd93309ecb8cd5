// Gemma's norms before and behind a residual addition, as torch.compile fuses them:
// z = norm(x, inner_weight) + residual, output = norm(z, weight), where
// norm(x, w) = x / sqrt(mean(x^2) + eps) * (1 + w). All in fp32; each output is rounded once.
//
//   gemma_norm_add_rmsnorm_h3840_bf16       `squares` gets the sum of x^2; z is not kept
//   gemma_norm_add2_rmsnorm_h3840_bf16      z = norm(x, inner_weight) + (norm(earlier,
//                                           earlier_weight) + residual), where `squares` has the
//                                           sum of earlier^2; z goes to `total`, in fp32
//   gemma_norm_add2_rmsnorm_sum_h3840_bf16  the same, and z goes to `sum`, too
#include "row.cuh"

namespace fibshim {
namespace {

// A thread holds one vector of each of up to six rows: inputs and weights.
template <int kHidden>
using PlanFor = RowPlan<kHidden, 1, 1, 1024>;

using Type = __nv_bfloat16;

struct Norm {
  const Type* rows;
  const Type* weight;
};

// earlier: {} for a sum of two. total, sum: null if not wanted. squares: of x, or of `earlier`.
template <class Plan>
__device__ void normalize_twice(const Norm& inner, const Norm& earlier, const Type* residual,
                                const Type* weight, Type* output, float* squares, float* total,
                                Type* sum, float eps, int batch_size, int next_may_begin) {
  static_assert(Plan::kIsEven);
  let_next_begin(next_may_begin);
  const Place<Plan> place(batch_size);
  const int64_t offset = int64_t{place.row} * Plan::kElements;
  const bool has_earlier = earlier.rows != nullptr;
  // The weights need not wait ("reads_before_wait").
  const RowPart<Plan> inner_w = load_weight<Plan>(inner.weight, place.thread);
  const RowPart<Plan> w = load_weight<Plan>(weight, place.thread);
  RowPart<Plan> earlier_w = {};
  if (has_earlier) earlier_w = load_weight<Plan>(earlier.weight, place.thread);
  wait_for_kernel_before();

  RowPart<Plan> x = load_row_once<Plan>(inner.rows + offset, place.thread);
  const RowPart<Plan> a = load_row_once<Plan>(residual + offset, place.thread);
  RowPart<Plan> b = {};
  float earlier_squares = 0;
  if (has_earlier) {
    b = load_row_once<Plan>(earlier.rows + offset, place.thread);
    earlier_squares = squares[place.row];
  }
  arrive_together(x, a, zero_of(batch_size));
  arrive_together(x, b, zero_of(batch_size));

  constexpr float kShare = 1.0f / Plan::kElements;
  const float x_squares = sum_over_row<Plan, float, 0>(sum_of_squares<Type>(x));
  const float x_rstd = reciprocal_root(x_squares * kShare, eps);
  const float earlier_rstd = reciprocal_root(earlier_squares * kShare, eps);
  const auto normed = [](const RowPart<Plan>& row, const RowPart<Plan>& weights, float rstd,
                         int j) -> float2 {
    const float2 value = unpack<Type>(row, 0, j);
    const float2 scale = unpack<Type>(weights, 0, j);
    return {value.x * rstd * (1 + scale.x), value.y * rstd * (1 + scale.y)};
  };
  float2 z[kPairsPerVector];
  float z_squares = 0;
#pragma unroll
  for (int j = 0; j < kPairsPerVector; ++j) {
    const float2 p = normed(x, inner_w, x_rstd, j);
    float2 q = unpack<Type>(a, 0, j);
    if (has_earlier) {
      const float2 r = normed(b, earlier_w, earlier_rstd, j);
      q = {r.x + q.x, r.y + q.y};
    }
    z[j] = {p.x + q.x, p.y + q.y};
    z_squares = fmaf(z[j].x, z[j].x, z_squares);
    z_squares = fmaf(z[j].y, z[j].y, z_squares);
  }
  if (total != nullptr) {
    float4* const to = reinterpret_cast<float4*>(total + offset) + 2 * place.thread;
    to[0] = {z[0].x, z[0].y, z[1].x, z[1].y};
    to[1] = {z[2].x, z[2].y, z[3].x, z[3].y};
  }
  if (sum != nullptr) {
    store_row<Plan>(sum + offset, place.thread,
                    make_row<Type, Plan>([&](int, int j) { return z[j]; }));
  }
  const float rstd = reciprocal_root(sum_over_row<Plan, float, 1>(z_squares) * kShare, eps);
  store_row<Plan>(output + offset, place.thread, make_row<Type, Plan>([&](int, int j) -> float2 {
                    const float2 scale = unpack<Type>(w, 0, j);
                    return {z[j].x * rstd * (1 + scale.x), z[j].y * rstd * (1 + scale.y)};
                  }));
  if (!has_earlier && threadIdx.x == 0) squares[place.row] = x_squares;
}

}  // namespace
}  // namespace fibshim

#define FIBSHIM_KERNELS(hidden)                                                                    \
  FIBSHIM_COMPARE_WITH_TABLES(hidden)                                                              \
  extern "C" __global__ void FIBSHIM_BOUNDS(hidden) gemma_norm_add_rmsnorm_h##hidden##_bf16(       \
      const __nv_bfloat16* hidden_states, const __nv_bfloat16* inner_weight,                       \
      const __nv_bfloat16* residual, const __nv_bfloat16* weight, __nv_bfloat16* output,           \
      float* squares, float eps, int batch_size, int next_may_begin) {                             \
    fibshim::normalize_twice<fibshim::PlanFor<hidden>>({hidden_states, inner_weight}, {},          \
                                                       residual, weight, output, squares, nullptr, \
                                                       nullptr, eps, batch_size, next_may_begin);  \
  }                                                                                                \
  extern "C" __global__ void FIBSHIM_BOUNDS(hidden) gemma_norm_add2_rmsnorm_h##hidden##_bf16(      \
      const __nv_bfloat16* hidden_states, const __nv_bfloat16* inner_weight,                       \
      const __nv_bfloat16* earlier, float* squares, const __nv_bfloat16* earlier_weight,           \
      const __nv_bfloat16* residual, const __nv_bfloat16* weight, __nv_bfloat16* output,           \
      float* total, float eps, int batch_size, int next_may_begin) {                               \
    fibshim::normalize_twice<fibshim::PlanFor<hidden>>(                                            \
        {hidden_states, inner_weight}, {earlier, earlier_weight}, residual, weight, output,        \
        squares, total, nullptr, eps, batch_size, next_may_begin);                                 \
  }                                                                                                \
  extern "C" __global__ void FIBSHIM_BOUNDS(hidden) gemma_norm_add2_rmsnorm_sum_h##hidden##_bf16(  \
      const __nv_bfloat16* hidden_states, const __nv_bfloat16* inner_weight,                       \
      const __nv_bfloat16* earlier, float* squares, const __nv_bfloat16* earlier_weight,           \
      const __nv_bfloat16* residual, const __nv_bfloat16* weight, __nv_bfloat16* output,           \
      float* total, __nv_bfloat16* sum, float eps, int batch_size, int next_may_begin) {           \
    fibshim::normalize_twice<fibshim::PlanFor<hidden>>(                                            \
        {hidden_states, inner_weight}, {earlier, earlier_weight}, residual, weight, output,        \
        squares, total, sum, eps, batch_size, next_may_begin);                                     \
  }

FIBSHIM_KERNELS(2560)
FIBSHIM_KERNELS(3840)
FIBSHIM_KERNELS(5376)
