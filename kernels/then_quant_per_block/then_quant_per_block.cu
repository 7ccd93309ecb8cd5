// These kernels do the work of two kernels that engines run before a product in fp8 with 128 x 128 blocks of weights: they make rows in
// bfloat16, and the same rows in fp8 (e4m3) with a scale for each block of 128 elements. They compute in fp32.
//
//   fused_add_rmsnorm_then_quant_per_block_h4096_bf16   z = x + residual, which goes to the residual, rounded; SGLang
//   silu_and_mul_then_quant_per_block_bf16              y = silu of a token's first half * its second; SGLang
// and as torch.compile makes the rows for vLLM, quantised as FlashInfer does, or as vLLM with scales that are powers of two (_ue8m0):
//   add_rmsnorm_then_quant_per_block_unbounded_h4096_bf16        z = x + first; z is not kept
//   add2_rmsnorm_sum_then_quant_per_block_unbounded_h4096_bf16   z = x + (first + second), which goes to sum, rounded
//   silu_and_mul_then_quant_per_block_unbounded_bf16
// Norms: y = z / sqrt(mean(z^2) + eps) * w; a sum of two that are both -0 is +0. y is rounded once, stored, and that is quantised. Engines pass output == hidden_states and
// residual_output == residual: a thread reads an element before it overwrites it.
//
// least: what a block's largest magnitude counts as at least. The scale of a row's block is at row * scale_row_stride + block *
// scale_block_stride. Grids: of norms a block for each row; of silu·mul (num_tokens, width / 1024, rounded up) of 128 threads.
#include <type_traits>

#include "block_scales.cuh"

namespace fibshim {
namespace {

using Type = __nv_bfloat16;

template <class Rule>
struct Quantization {
  uint8_t* quantized;
  Scales scales;
  float least;
  bool hides_nan;
  __device__ Rule rule_for(float largest) const {
    if constexpr (std::is_same_v<Rule, Floored>) {
      return {largest, least, hides_nan};
    } else {
      return {largest, least};
    }
  }
  // The i-th of so many vectors of a row. The warp calls it, also for vectors behind the row, which are zero.
  __device__ void store(const Vector& vector, uint32_t row, uint32_t i, uint32_t vectors) const {
    const Rule rule = rule_for(largest_in_lanes<kLanes>(largest_of<Type>(vector)));
    if (i >= vectors) return;
    if (i % kLanes == 0) scales.store(row, i / kLanes, rule.scale);
    float2 scaled[kPairsPerVector];
#pragma unroll
    for (int j = 0; j < kPairsPerVector; ++j) {
      const float2 pair = Pair<Type>::unpack(vector.pairs[j]);
      scaled[j] = {rule(pair.x), rule(pair.y)};
    }
    reinterpret_cast<uint2*>(quantized)[int64_t{row} * vectors + i] = quantize(scaled);
  }
};

// second: null for a sum of two. sum: null if it is not kept.
template <class Plan, class Rule>
__device__ void normalize_and_quantize(const Type* hidden_states, const Type* first,
                                       const Type* second, const Type* weight, Type* output,
                                       Type* sum, const Quantization<Rule>& quantization, float eps,
                                       int batch_size, int next_may_begin) {
  static_assert(!Plan::kIsWithinWarp && Plan::kIsEven, "every lane of a block has its vectors");
  let_next_begin(next_may_begin);
  const Place<Plan> place(batch_size);
  const int64_t offset = int64_t{place.row} * Plan::kElements;
  // The weight need not wait ("reads_before_wait").
  const RowPart<Plan> w = load_row<Plan>(weight, place.thread);
  wait_for_kernel_before();

  RowPart<Plan> x = load_row_once<Plan>(hidden_states + offset, place.thread);
  RowPart<Plan> a = load_row_once<Plan>(first + offset, place.thread);
  RowPart<Plan> b = {};
  if (second != nullptr) b = load_row_once<Plan>(second + offset, place.thread);
  arrive_together(x, a, zero_of(batch_size));
  arrive_together(x, b, zero_of(batch_size));
  arrive_together(x, w, zero_of(batch_size));

  const auto sum_of = [&](int i, int j) -> float2 {
    const float2 p = unpack<Type>(a, i, j);
    const float2 q = unpack<Type>(b, i, j);
    const float2 r = unpack<Type>(x, i, j);
    return {r.x + (p.x + q.x), r.y + (p.y + q.y)};
  };
  float squares = 0;
  const RowPart<Plan> z = make_row<Type, Plan>([&](int i, int j) {
    const float2 value = sum_of(i, j);
    squares = fmaf(value.x, value.x, squares);
    squares = fmaf(value.y, value.y, squares);
    return value;
  });
  if (sum != nullptr) store_row<Plan>(sum + offset, place.thread, z);
  const float rstd =
      reciprocal_root(sum_over_row<Plan, float>(squares) * (1.0f / Plan::kElements), eps);
  const RowPart<Plan> y = make_row<Type, Plan>([&](int i, int j) -> float2 {
    const float2 value = sum_of(i, j);
    const float2 factor = unpack<Type>(w, i, j);
    return {value.x * rstd * factor.x, value.y * rstd * factor.y};
  });
  store_row<Plan>(output + offset, place.thread, y);
#pragma unroll
  for (int i = 0; i < Plan::kVectorsPerThread; ++i) {
    quantization.store(y.vectors[i], place.row, i * Plan::kGroupThreads + place.thread,
                       Plan::kElements / kElementsPerVector);
  }
}

// If exp overflows, the quotient is 0, as it should be.
__device__ float silu(float x) { return __fdividef(x, 1.0f + __expf(-x)); }

template <class Rule>
__device__ void multiply_and_quantize(const Type* input, Type* output, uint32_t width,
                                      const Quantization<Rule>& quantization, int next_may_begin) {
  let_next_begin(next_may_begin);
  const uint32_t i = blockIdx.y * blockDim.x + threadIdx.x;
  const uint32_t vectors = width / kElementsPerVector;
  const uint4* const from =
      reinterpret_cast<const uint4*>(input) + int64_t{blockIdx.x} * 2 * vectors;
  wait_for_kernel_before();
  Vector y = {};
  if (i < vectors) {
    const Vector gate = load_once(from + i);
    const Vector up = load_once(from + vectors + i);
#pragma unroll
    for (int j = 0; j < kPairsPerVector; ++j) {
      const float2 a = Pair<Type>::unpack(gate.pairs[j]);
      const float2 b = Pair<Type>::unpack(up.pairs[j]);
      y.pairs[j] = Pair<Type>::pack({silu(a.x) * b.x, silu(a.y) * b.y});
    }
    store_whole(reinterpret_cast<uint4*>(output) + int64_t{blockIdx.x} * vectors + i, y);
  }
  quantization.store(y, blockIdx.x, i, vectors);
}

template <int kHidden>
using PlanFor = SumPlan<kHidden>;

}  // namespace
}  // namespace fibshim

extern "C" __global__ void __launch_bounds__(128)
    silu_and_mul_then_quant_per_block_bf16(const __nv_bfloat16* input, __nv_bfloat16* output,
                                           uint8_t* quantized, float* scales, uint32_t width,
                                           float least, int hides_nan, int scale_row_stride,
                                           int scale_block_stride, int next_may_begin) {
  fibshim::multiply_and_quantize<fibshim::Floored>(
      input, output, width,
      {quantized, {scales, scale_row_stride, scale_block_stride}, least, hides_nan != 0},
      next_may_begin);
}

#define FIBSHIM_SILU_KERNEL(kind, Rule)                                                         \
  extern "C" __global__ void __launch_bounds__(128)                                             \
      silu_and_mul_then_quant_per_block_##kind##_bf16(                                          \
          const __nv_bfloat16* input, __nv_bfloat16* output, uint8_t* quantized, float* scales, \
          uint32_t width, float least, int scale_row_stride, int scale_block_stride,            \
          int next_may_begin) {                                                                 \
    fibshim::multiply_and_quantize<Rule>(                                                       \
        input, output, width,                                                                   \
        {quantized, {scales, scale_row_stride, scale_block_stride}, least, false},              \
        next_may_begin);                                                                        \
  }

#define FIBSHIM_KERNEL(hidden)                                                                   \
  FIBSHIM_COMPARE_WITH_TABLES(hidden)                                                            \
  extern "C" __global__ void FIBSHIM_BOUNDS(hidden)                                              \
      fused_add_rmsnorm_then_quant_per_block_h##hidden##_bf16(                                   \
          const __nv_bfloat16* hidden_states, const __nv_bfloat16* residual,                     \
          const __nv_bfloat16* weight, __nv_bfloat16* output, __nv_bfloat16* residual_output,    \
          uint8_t* quantized, float* scales, float eps, float least, int hides_nan,              \
          int scale_row_stride, int scale_block_stride, int batch_size, int next_may_begin) {    \
    fibshim::normalize_and_quantize<fibshim::PlanFor<hidden>, fibshim::Floored>(                 \
        hidden_states, residual, nullptr, weight, output, residual_output,                       \
        {quantized, {scales, scale_row_stride, scale_block_stride}, least, hides_nan != 0}, eps, \
        batch_size, next_may_begin);                                                             \
  }

#define FIBSHIM_SUM_KERNELS(kind, Rule, hidden)                                                  \
  extern "C" __global__ void FIBSHIM_BOUNDS(hidden)                                              \
      add_rmsnorm_then_quant_per_block_##kind##_h##hidden##_bf16(                                \
          const __nv_bfloat16* hidden_states, const __nv_bfloat16* first,                        \
          const __nv_bfloat16* weight, __nv_bfloat16* output, uint8_t* quantized, float* scales, \
          float eps, float least, int scale_row_stride, int scale_block_stride, int batch_size,  \
          int next_may_begin) {                                                                  \
    fibshim::normalize_and_quantize<fibshim::PlanFor<hidden>, Rule>(                             \
        hidden_states, first, nullptr, weight, output, nullptr,                                  \
        {quantized, {scales, scale_row_stride, scale_block_stride}, least, false}, eps,          \
        batch_size, next_may_begin);                                                             \
  }                                                                                              \
  extern "C" __global__ void FIBSHIM_BOUNDS(hidden)                                              \
      add2_rmsnorm_sum_then_quant_per_block_##kind##_h##hidden##_bf16(                           \
          const __nv_bfloat16* hidden_states, const __nv_bfloat16* first,                        \
          const __nv_bfloat16* second, const __nv_bfloat16* weight, __nv_bfloat16* output,       \
          __nv_bfloat16* sum, uint8_t* quantized, float* scales, float eps, float least,         \
          int scale_row_stride, int scale_block_stride, int batch_size, int next_may_begin) {    \
    fibshim::normalize_and_quantize<fibshim::PlanFor<hidden>, Rule>(                             \
        hidden_states, first, second, weight, output, sum,                                       \
        {quantized, {scales, scale_row_stride, scale_block_stride}, least, false}, eps,          \
        batch_size, next_may_begin);                                                             \
  }
#define FIBSHIM_KERNELS_OF_VLLM(kind, Rule) \
  FIBSHIM_SILU_KERNEL(kind, Rule)           \
  FIBSHIM_SUM_KERNELS(kind, Rule, 2048)     \
  FIBSHIM_SUM_KERNELS(kind, Rule, 2560)     \
  FIBSHIM_SUM_KERNELS(kind, Rule, 4096)     \
  FIBSHIM_SUM_KERNELS(kind, Rule, 5120)

FIBSHIM_KERNEL(2048)
FIBSHIM_KERNEL(2560)
FIBSHIM_KERNEL(4096)
FIBSHIM_KERNEL(5120)
FIBSHIM_KERNEL(7168)
FIBSHIM_KERNELS_OF_VLLM(unbounded, fibshim::Unbounded)
FIBSHIM_KERNELS_OF_VLLM(ue8m0, fibshim::MultipliedOrLowest<true>)
