// RMSNorm of a sum: z = x + first [+ second], output = z / sqrt(mean(z^2) + eps) * w, as
// torch.compile fuses a residual stream. Adds and normalises in fp32, and rounds once.
//
//   add_rmsnorm_h4096_bf16       z = x + first; z is not kept
//   add2_rmsnorm_h4096_bf16      z = x + (first + second); z is not kept
//   add2_rmsnorm_sum_h4096_bf16  the same, and z goes to `sum`
//   add_rmsnorm_copy_h4096_bf16  of x + first, and output goes to `copy`, too
//
// Some sizes have the first three in fp16, too. output may be hidden_states: a thread reads an
// element before it overwrites it.
#include "row.cuh"

namespace fibshim {
namespace {

template <int kHidden>
using PlanFor = std::conditional_t<(kHidden < 2048), OneVectorPlan<kHidden>, SumPlan<kHidden>>;

// second: null for a sum of two. sum, copy: null if not wanted.
template <class T, class Plan>
__device__ void normalize_sum(const T* hidden_states, const T* first, const T* second,
                              const T* weight, T* output, T* sum, T* copy, float eps,
                              int batch_size, int next_may_begin) {
  let_next_begin(next_may_begin);
  const Place<Plan> place(batch_size);
  const int64_t offset = int64_t{place.row} * Plan::kElements;
  // The weight need not wait ("reads_before_wait").
  const RowPart<Plan> w = load_weight<Plan>(weight, place.thread);
  wait_for_kernel_before();

  RowPart<Plan> x = {};
  RowPart<Plan> a = {};
  RowPart<Plan> b = {};
  if (place.is_row) {
    x = load_row_once<Plan>(hidden_states + offset, place.thread);
    a = load_row_once<Plan>(first + offset, place.thread);
    if (second != nullptr) b = load_row_once<Plan>(second + offset, place.thread);
  }
  arrive_together(x, a, zero_of(batch_size));
  arrive_together(x, b, zero_of(batch_size));
  arrive_together(x, w, zero_of(batch_size));

  const auto sum_of = [&](int i, int j) -> float2 {
    const float2 p = unpack<T>(a, i, j);
    const float2 q = unpack<T>(b, i, j);
    const float2 r = unpack<T>(x, i, j);
    return {r.x + (p.x + q.x), r.y + (p.y + q.y)};
  };
  float squares = 0;
  const RowPart<Plan> z = make_row<T, Plan>([&](int i, int j) {
    const float2 value = sum_of(i, j);
    squares = fmaf(value.x, value.x, squares);
    squares = fmaf(value.y, value.y, squares);
    return value;
  });
  if (place.is_row && sum != nullptr) store_row<Plan>(sum + offset, place.thread, z);

  const float rstd =
      reciprocal_root(sum_over_row<Plan, float>(squares) * (1.0f / Plan::kElements), eps);
  if (!place.is_row) return;
  const RowPart<Plan> y = make_row<T, Plan>([&](int i, int j) -> float2 {
    const float2 scale = unpack<T>(w, i, j);
    const float2 value = sum_of(i, j);
    return {value.x * rstd * scale.x, value.y * rstd * scale.y};
  });
  store_row<Plan>(output + offset, place.thread, y);
  if (copy != nullptr) store_row<Plan>(copy + offset, place.thread, y);
}

}  // namespace
}  // namespace fibshim

#define FIBSHIM_KERNELS(hidden, dtype, T)                                                          \
  extern "C" __global__ void FIBSHIM_BOUNDS(hidden)                                                \
      add_rmsnorm_h##hidden##_##dtype(const T* hidden_states, const T* first, const T* weight,     \
                                      T* output, float eps, int batch_size, int next_may_begin) {  \
    fibshim::normalize_sum<T, fibshim::PlanFor<hidden>>(hidden_states, first, nullptr, weight,     \
                                                        output, nullptr, nullptr, eps, batch_size, \
                                                        next_may_begin);                           \
  }                                                                                                \
  extern "C" __global__ void FIBSHIM_BOUNDS(hidden) add2_rmsnorm_h##hidden##_##dtype(              \
      const T* hidden_states, const T* first, const T* second, const T* weight, T* output,         \
      float eps, int batch_size, int next_may_begin) {                                             \
    fibshim::normalize_sum<T, fibshim::PlanFor<hidden>>(hidden_states, first, second, weight,      \
                                                        output, nullptr, nullptr, eps, batch_size, \
                                                        next_may_begin);                           \
  }                                                                                                \
  extern "C" __global__ void FIBSHIM_BOUNDS(hidden) add2_rmsnorm_sum_h##hidden##_##dtype(          \
      const T* hidden_states, const T* first, const T* second, const T* weight, T* output, T* sum, \
      float eps, int batch_size, int next_may_begin) {                                             \
    fibshim::normalize_sum<T, fibshim::PlanFor<hidden>>(hidden_states, first, second, weight,      \
                                                        output, sum, nullptr, eps, batch_size,     \
                                                        next_may_begin);                           \
  }
// In front of experts.
#define FIBSHIM_COPYING_KERNEL(hidden)                                                             \
  extern "C" __global__ void FIBSHIM_BOUNDS(hidden) add_rmsnorm_copy_h##hidden##_bf16(             \
      const __nv_bfloat16* hidden_states, const __nv_bfloat16* first, const __nv_bfloat16* weight, \
      __nv_bfloat16* output, __nv_bfloat16* copy, float eps, int batch_size, int next_may_begin) { \
    fibshim::normalize_sum<__nv_bfloat16, fibshim::PlanFor<hidden>>(                               \
        hidden_states, first, nullptr, weight, output, nullptr, copy, eps, batch_size,             \
        next_may_begin);                                                                           \
  }

#define FIBSHIM_BFLOAT16(hidden)      \
  FIBSHIM_COMPARE_WITH_TABLES(hidden) \
  FIBSHIM_KERNELS(hidden, bf16, __nv_bfloat16)

FIBSHIM_BFLOAT16(896)
FIBSHIM_BFLOAT16(1024)
FIBSHIM_BFLOAT16(1536)
FIBSHIM_BFLOAT16(2048)
FIBSHIM_BFLOAT16(2880)
FIBSHIM_BFLOAT16(3072)
FIBSHIM_BOTH_TYPES(2560)
FIBSHIM_BOTH_TYPES(3584)
FIBSHIM_BOTH_TYPES(4096)
FIBSHIM_BOTH_TYPES(5120)
FIBSHIM_BOTH_TYPES(8192)

FIBSHIM_COPYING_KERNEL(2048)
FIBSHIM_COPYING_KERNEL(4096)
