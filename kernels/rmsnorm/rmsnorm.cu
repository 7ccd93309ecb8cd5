// RMSNorm: y = x / sqrt(mean(x^2) + eps) * w, for every row x.
//
// Three kernels per size and type:
//   rmsnorm_h4096_bf16          replaces PyTorch's fused F.rms_norm: contiguous rows; `rstd` gets
//                               1 / sqrt(...) of each row, which its backward pass reads.
//   rmsnorm_strided_h4096_bf16  replaces FlashInfer's, SGLang's and vLLM's: rows of tokens and heads
//                               with strides, Gemma's (1 + w), vLLM's rounding.
//   rmsnorm_no_weight_h4096_bf16  replaces vLLM's without a weight: y = x / sqrt(mean(x^2) + eps).
//
// Accuracy: squares of 16-bit floats are exact in fp32, and sums within a thread and a warp are
// fp32. If `rstd` is an output, the last steps of the sum and the root are double: for normally
// distributed rows it is the nearest float in about nine rows of ten, and off by at most 9e-8
// (PyTorch's own: six to seven of ten, 1.4e-7). y uses the fp32 multiplications of the replaced
// kernels, in their order.
#include "row.cuh"

namespace fibshim {
namespace {

template <class T, class Plan>
__device__ void normalize_with_rstd(const T* hidden_states, const T* weight, T* output, float* rstd,
                                    float eps, int batch_size) {
  const Place<Plan> place(batch_size);
  const int64_t offset = int64_t{place.row} * Plan::kElements;
  wait_for_kernel_before();

  RowPart<Plan> x = {};
  if (place.is_row) x = load_row<Plan>(hidden_states + offset, place.thread);
  const RowPart<Plan> w = load_weight<Plan>(weight, place.thread);
  arrive_together(x, w, zero_of(batch_size));

  const double sum = sum_over_row<Plan, double>(sum_of_squares<T>(x));
  const float row_rstd = reciprocal_root(sum * (1.0 / Plan::kElements), eps);
  if (!place.is_row) return;
  if (place.thread == 0) rstd[place.row] = row_rstd;
  store_row<Plan>(output + offset, place.thread, make_row<T, Plan>([&](int i, int j) -> float2 {
                    const float2 value = unpack<T>(x, i, j);
                    const float2 scale = unpack<T>(w, i, j);
                    return {value.x * row_rstd * scale.x, value.y * row_rstd * scale.y};
                  }));
}

// Strides of a row, in elements: row r is head r % num_heads of token r / num_heads.
struct Strides {
  uint32_t token;
  uint32_t head;
};

__device__ int64_t offset_of(uint32_t row, uint32_t num_heads, Strides strides) {
  if (num_heads == 1) return int64_t{row} * strides.token;
  const uint32_t token = row / num_heads;
  return int64_t{token} * strides.token + int64_t{row - token * num_heads} * strides.head;
}

template <class T, class Plan, bool kHasWeight>
__device__ void normalize_strided(const T* hidden_states, const T* weight, T* output, float eps,
                                  float weight_bias, int rounds_before_weight, int batch_size,
                                  uint32_t num_heads, Strides from, Strides to) {
  const Place<Plan> place(batch_size);
  wait_for_kernel_before();

  RowPart<Plan> x = {};
  if (place.is_row) {
    x = load_row<Plan>(hidden_states + offset_of(place.row, num_heads, from), place.thread);
  }
  RowPart<Plan> w;
  if constexpr (kHasWeight) {
    w = load_weight<Plan>(weight, place.thread);
    arrive_together(x, w, zero_of(batch_size));
  }

  const float sum = sum_over_row<Plan, float>(sum_of_squares<T>(x));
  const float rstd = reciprocal_root(sum * (1.0f / Plan::kElements), eps);
  if (!place.is_row) return;
  store_row<Plan>(output + offset_of(place.row, num_heads, to), place.thread,
                  make_row<T, Plan>([&](int i, int j) -> float2 {
                    const float2 value = unpack<T>(x, i, j);
                    float2 normal = {value.x * rstd, value.y * rstd};
                    if constexpr (!kHasWeight) return normal;
                    const float2 scale = unpack<T>(w, i, j);
                    if (rounds_before_weight != 0) normal = round_to<T>(normal);
                    return {normal.x * (weight_bias + scale.x), normal.y * (weight_bias + scale.y)};
                  }));
}

template <int kHidden>
using PlanFor = BestPlan<kHidden>;

}  // namespace
}  // namespace fibshim

#define FIBSHIM_KERNELS(hidden, dtype, T)                                                          \
  extern "C" __global__ void FIBSHIM_BOUNDS(hidden)                                                \
      rmsnorm_h##hidden##_##dtype(const T* hidden_states, const T* weight, T* output, float* rstd, \
                                  float eps, int batch_size) {                                     \
    fibshim::normalize_with_rstd<T, fibshim::PlanFor<hidden>>(hidden_states, weight, output, rstd, \
                                                              eps, batch_size);                    \
  }                                                                                                \
  extern "C" __global__ void FIBSHIM_BOUNDS(hidden) rmsnorm_strided_h##hidden##_##dtype(           \
      const T* hidden_states, const T* weight, T* output, float eps, float weight_bias,            \
      int rounds_before_weight, int batch_size, uint32_t num_heads, uint32_t token_stride,         \
      uint32_t head_stride, uint32_t output_token_stride, uint32_t output_head_stride) {           \
    fibshim::normalize_strided<T, fibshim::PlanFor<hidden>, true>(                                 \
        hidden_states, weight, output, eps, weight_bias, rounds_before_weight, batch_size,         \
        num_heads, {token_stride, head_stride}, {output_token_stride, output_head_stride});        \
  }                                                                                                \
  extern "C" __global__ void FIBSHIM_BOUNDS(hidden) rmsnorm_no_weight_h##hidden##_##dtype(         \
      const T* hidden_states, T* output, float eps, int batch_size, uint32_t num_heads,            \
      uint32_t token_stride, uint32_t head_stride, uint32_t output_token_stride,                   \
      uint32_t output_head_stride) {                                                               \
    fibshim::normalize_strided<T, fibshim::PlanFor<hidden>, false>(                                \
        hidden_states, nullptr, output, eps, 0.0f, 0, batch_size, num_heads,                       \
        {token_stride, head_stride}, {output_token_stride, output_head_stride});                   \
  }

FIBSHIM_RMSNORM_SIZES(FIBSHIM_BOTH_TYPES)
