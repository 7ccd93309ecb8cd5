// RMSNorm into fp8 (e4m3), with or without a residual addition before it, which replaces FlashInfer's:
// out = clamp(z / sqrt(mean(z^2) + eps) * w * (1 / scale), -448, 448).
//
//   rmsnorm_quant_h4096_bf16            z = x
//   fused_add_rmsnorm_quant_h4096_bf16  z = x + residual, not rounded; z also goes to
//                                       `residual_output`, which may be `residual`
#include "fp8.cuh"

namespace fibshim {
namespace {

// residual: null unless kHasResidual.
template <class T, class Plan, bool kHasResidual>
__device__ void normalize_and_quantize(const T* hidden_states, const T* residual, const T* weight,
                                       const float* scale, uint8_t* out, T* residual_output,
                                       float eps, float weight_bias, int batch_size,
                                       uint32_t input_stride, uint32_t residual_stride,
                                       uint32_t output_stride) {
  const Place<Plan> place(batch_size);
  const int64_t residual_offset = int64_t{place.row} * residual_stride;
  wait_for_kernel_before();

  RowPart<Plan> x = {};
  RowPart<Plan> r = {};
  if (place.is_row) {
    x = load_row_once<Plan>(hidden_states + int64_t{place.row} * input_stride, place.thread);
    if (kHasResidual) r = load_row_once<Plan>(residual + residual_offset, place.thread);
  }
  const RowPart<Plan> w = load_weight<Plan>(weight, place.thread);
  const float inverse_scale = 1.0f / *scale;
  if (kHasResidual) arrive_together(x, r, zero_of(batch_size));
  arrive_together(x, w, zero_of(batch_size));

  const auto sum_of = [&](int i, int j) -> float2 {
    const float2 a = unpack<T>(x, i, j);
    if (!kHasResidual) return a;
    const float2 b = unpack<T>(r, i, j);
    return {a.x + b.x, a.y + b.y};
  };
  float squares = 0;
  const RowPart<Plan> z = make_row<T, Plan>([&](int i, int j) {
    const float2 sum = sum_of(i, j);
    squares = fmaf(sum.x, sum.x, squares);
    squares = fmaf(sum.y, sum.y, squares);
    return sum;
  });
  if (kHasResidual && place.is_row) {
    store_row<Plan>(residual_output + residual_offset, place.thread, z);
  }

  const float rstd =
      reciprocal_root(sum_over_row<Plan, float>(squares) * (1.0f / Plan::kElements), eps);
  if (!place.is_row) return;
  uint2* const to = reinterpret_cast<uint2*>(out + int64_t{place.row} * output_stride);
#pragma unroll
  for (int i = 0; i < Plan::kVectorsPerThread; ++i) {
    float2 values[kPairsPerVector];
#pragma unroll
    for (int j = 0; j < kPairsPerVector; ++j) {
      const float2 sum = sum_of(i, j);
      const float2 factor = unpack<T>(w, i, j);
      values[j] = {sum.x * rstd * (weight_bias + factor.x) * inverse_scale,
                   sum.y * rstd * (weight_bias + factor.y) * inverse_scale};
    }
    if (has_vector<Plan>(i, place.thread)) {
      to[i * Plan::kGroupThreads + place.thread] = quantize(values);
    }
  }
}

template <int kHidden>
using PlanFor = ThreeRowPlan<kHidden>;

}  // namespace
}  // namespace fibshim

#define FIBSHIM_KERNELS(hidden, dtype, T)                                                        \
  extern "C" __global__ void FIBSHIM_BOUNDS(hidden) rmsnorm_quant_h##hidden##_##dtype(           \
      const T* hidden_states, const T* weight, const float* scale, uint8_t* out, float eps,      \
      float weight_bias, int batch_size, uint32_t input_stride, uint32_t output_stride) {        \
    fibshim::normalize_and_quantize<T, fibshim::PlanFor<hidden>, false>(                         \
        hidden_states, nullptr, weight, scale, out, nullptr, eps, weight_bias, batch_size,       \
        input_stride, 0, output_stride);                                                         \
  }                                                                                              \
  extern "C" __global__ void FIBSHIM_BOUNDS(hidden) fused_add_rmsnorm_quant_h##hidden##_##dtype( \
      const T* hidden_states, const T* residual, const T* weight, const float* scale,            \
      uint8_t* out, T* residual_output, float eps, float weight_bias, int batch_size,            \
      uint32_t input_stride, uint32_t residual_stride, uint32_t output_stride) {                 \
    fibshim::normalize_and_quantize<T, fibshim::PlanFor<hidden>, true>(                          \
        hidden_states, residual, weight, scale, out, residual_output, eps, weight_bias,          \
        batch_size, input_stride, residual_stride, output_stride);                               \
  }

FIBSHIM_HIDDEN_SIZES(FIBSHIM_BOTH_TYPES)
