// Residual addition and RMSNorm: z = x + residual, output = z / sqrt(mean(z^2) + eps) * w; z goes to
// `residual_output`.
//
// Three kernels per size and type, which round where the replaced kernels do:
//   fused_add_rmsnorm_h4096_bf16       FlashInfer's and SGLang's: normalises the unrounded sum, and
//                                      rounds once. Gemma's (1 + w).
//   fused_add_rmsnorm_vllm_h4096_bf16  vLLM's: normalises the rounded sum. Before 0.25 it also rounds
//                                      before the weight.
//   fused_add_rmsnorm_no_weight_h4096_bf16  vLLM's without a weight
// and two that also do the work of vLLM's next kernel, which quantises the output to fp8 (e4m3):
//   fused_add_rmsnorm_then_quant_h4096_bf16            with one scale for all
//   fused_add_rmsnorm_then_quant_per_token_h4096_bf16  with a scale per row, which it computes
// Engines pass output == hidden_states and residual_output == residual: a thread reads an element
// before it overwrites it.
#include "fp8.cuh"

namespace fibshim {
namespace {

template <class T, class Plan, bool kRoundsSum, bool kHasWeight = true, class Quantization>
__device__ void add_and_normalize(const T* hidden_states, const T* residual, const T* weight,
                                  T* output, T* residual_output, float eps, float weight_bias,
                                  bool rounds_before_weight, int batch_size, uint32_t input_stride,
                                  uint32_t residual_stride, Quantization quantization) {
  const Place<Plan> place(batch_size);
  const int64_t offset = int64_t{place.row} * input_stride;
  const int64_t residual_offset = int64_t{place.row} * residual_stride;
  wait_for_kernel_before();
  quantization.begin();

  RowPart<Plan> x = {};
  RowPart<Plan> r = {};
  if (place.is_row) {
    x = load_row_once<Plan>(hidden_states + offset, place.thread);
    r = load_row_once<Plan>(residual + residual_offset, place.thread);
  }
  RowPart<Plan> w;
  if constexpr (kHasWeight) w = load_weight<Plan>(weight, place.thread);
  arrive_together(x, r, zero_of(batch_size));
  if constexpr (kHasWeight) arrive_together(x, w, zero_of(batch_size));

  // The sum is computed again after the reduction: x and r take half the registers of an fp32 sum.
  const auto sum_of = [&](int i, int j) -> float2 {
    const float2 a = unpack<T>(x, i, j);
    const float2 b = unpack<T>(r, i, j);
    return {a.x + b.x, a.y + b.y};
  };
  float squares = 0;
  const RowPart<Plan> z = make_row<T, Plan>([&](int i, int j) {
    const float2 sum = sum_of(i, j);
    const float2 normalized = kRoundsSum ? round_to<T>(sum) : sum;
    squares = fmaf(normalized.x, normalized.x, squares);
    squares = fmaf(normalized.y, normalized.y, squares);
    return sum;
  });
  if (place.is_row) store_row<Plan>(residual_output + residual_offset, place.thread, z);

  const float rstd =
      reciprocal_root(sum_over_row<Plan, float>(squares) * (1.0f / Plan::kElements), eps);
  if (!place.is_row) return;
  const RowPart<Plan> y = make_row<T, Plan>([&](int i, int j) -> float2 {
    if constexpr (!kHasWeight) {
      const float2 sum = unpack<T>(z, i, j);
      return {sum.x * rstd, sum.y * rstd};
    }
    const float2 scale = unpack<T>(w, i, j);
    if (kRoundsSum) {
      const float2 sum = unpack<T>(z, i, j);
      float2 normal = {sum.x * rstd, sum.y * rstd};
      if (rounds_before_weight) normal = round_to<T>(normal);
      return {normal.x * scale.x, normal.y * scale.y};
    }
    const float2 sum = sum_of(i, j);
    return {sum.x * rstd * (weight_bias + scale.x), sum.y * rstd * (weight_bias + scale.y)};
  });
  store_row<Plan>(output + offset, place.thread, y);
  quantization.template finish<T>(place, y);
}

template <int kHidden>
using PlanFor = SumPlan<kHidden>;

}  // namespace
}  // namespace fibshim

#define FIBSHIM_KERNELS(hidden, dtype, T)                                                        \
  extern "C" __global__ void FIBSHIM_BOUNDS(hidden) fused_add_rmsnorm_h##hidden##_##dtype(       \
      const T* hidden_states, const T* residual, const T* weight, T* output, T* residual_output, \
      float eps, float weight_bias, int batch_size, uint32_t input_stride,                       \
      uint32_t residual_stride) {                                                                \
    fibshim::add_and_normalize<T, fibshim::PlanFor<hidden>, false>(                              \
        hidden_states, residual, weight, output, residual_output, eps, weight_bias, false,       \
        batch_size, input_stride, residual_stride, fibshim::NotQuantized());                     \
  }                                                                                              \
  extern "C" __global__ void FIBSHIM_BOUNDS(hidden) fused_add_rmsnorm_vllm_h##hidden##_##dtype(  \
      const T* hidden_states, const T* residual, const T* weight, T* output, T* residual_output, \
      float eps, int rounds_before_weight, int batch_size, uint32_t input_stride) {              \
    fibshim::add_and_normalize<T, fibshim::PlanFor<hidden>, true>(                               \
        hidden_states, residual, weight, output, residual_output, eps, 0.0f,                     \
        rounds_before_weight != 0, batch_size, input_stride, hidden, fibshim::NotQuantized());   \
  }                                                                                              \
  extern "C" __global__ void FIBSHIM_BOUNDS(hidden)                                              \
      fused_add_rmsnorm_no_weight_h##hidden##_##dtype(const T* hidden_states, const T* residual, \
                                                      T* output, T* residual_output, float eps,  \
                                                      int batch_size, uint32_t input_stride) {   \
    fibshim::add_and_normalize<T, fibshim::PlanFor<hidden>, true, false>(                        \
        hidden_states, residual, nullptr, output, residual_output, eps, 0.0f, false, batch_size, \
        input_stride, hidden, fibshim::NotQuantized());                                          \
  }                                                                                              \
  extern "C" __global__ void FIBSHIM_BOUNDS(hidden)                                              \
      fused_add_rmsnorm_then_quant_h##hidden##_##dtype(                                          \
          const T* hidden_states, const T* residual, const T* weight, const float* scale,        \
          T* output, T* residual_output, uint8_t* quantized, float eps, int batch_size) {        \
    fibshim::add_and_normalize<T, fibshim::PlanFor<hidden>, true>(                               \
        hidden_states, residual, weight, output, residual_output, eps, 0.0f, false, batch_size,  \
        hidden, hidden, fibshim::QuantizedWithOneScale{scale, quantized});                       \
  }                                                                                              \
  extern "C" __global__ void FIBSHIM_BOUNDS(hidden)                                              \
      fused_add_rmsnorm_then_quant_per_token_h##hidden##_##dtype(                                \
          const T* hidden_states, const T* residual, const T* weight, T* output,                 \
          T* residual_output, uint8_t* quantized, float* scales, float eps, int batch_size) {    \
    fibshim::add_and_normalize<T, fibshim::PlanFor<hidden>, true>(                               \
        hidden_states, residual, weight, output, residual_output, eps, 0.0f, false, batch_size,  \
        hidden, hidden, fibshim::QuantizedPerToken{scales, quantized});                          \
  }

FIBSHIM_HIDDEN_SIZES(FIBSHIM_BOTH_TYPES)
