// Brings rows to fp8 (e4m3) with a scale for each block of 128 elements of a row, alone or together with what makes the
// rows, as vLLM, FlashInfer and SGLang do for products with 128 x 128 blocks of weights. Computes in fp32.
//
//   quant_per_block_bf16                   y = x
//   quant_per_block_ue8m0_bf16             the same with scales that are powers of two
//   quant_per_block_unbounded_bf16         the same as FlashInfer rounds, with scale 1 for a block of zeros
//   quant_per_block_floored_bf16           the same as SGLang rounds
//   quant_per_block_bounded_bf16           the same as SGLang rounds before 0.5.23: NaN becomes 448
//   silu_and_mul_quant_per_block1_bf16     y = silu of a token's first half * its second
//   rmsnorm_quant_per_block_h4096_bf16     y = z / sqrt(mean(z^2) + eps), rounded, * w, rounded; z = x
//   fused_add_rmsnorm_quant_per_block_h4096_bf16   the same of z = x + residual, which goes to the residual, rounded
// 1, 2: vectors of a thread. The scale is largest |y| / 448, not less than 1 / (448 * 512), or, alone, eps / 448.
// By that silu·mul is divided; the others are multiplied with its reciprocal, or, as FlashInfer and SGLang round, with 448 times the
// approximate reciprocal of the largest |y|.
//
// The scale of a row's block is at row * row_stride + block * block_stride. Grids: all vectors, divided by a block's,
// rounded up, for any block; of norms a block for each row.
#include "block_scales.cuh"

namespace fibshim {
namespace {

using Type = __nv_bfloat16;
using Values = float2[kPairsPerVector];  // a vector's elements

__device__ void widen(Values& values, const Vector& vector) {
#pragma unroll
  for (int i = 0; i < kPairsPerVector; ++i) values[i] = Pair<Type>::unpack(vector.pairs[i]);
}

// Returns the largest magnitude, ignoring NaN.
__device__ float largest_of(const Values& values) {
  float largest = 0;
#pragma unroll
  for (const float2& pair : values) {
    largest = fmaxf(largest, fmaxf(fabsf(pair.x), fabsf(pair.y)));
  }
  return largest;
}

__device__ float largest_of_block(const Values& values) {
  return largest_in_lanes<kLanes>(largest_of(values));
}

// Rules beside those of block_scales.cuh.

// x * (1 / scale), each rounded; NaN becomes the largest number.
struct MultipliedOrLargest {
  float scale, factor;
  __device__ explicit MultipliedOrLargest(float largest)
      : scale(scale_of_token(largest)), factor(reciprocal(scale)) {}
  __device__ float operator()(float x) const { return fminf(x * factor, kLargestFp8); }
};

// x / scale, correctly rounded; NaN becomes the largest number.
struct Divided : MultipliedOrLargest {
  float divisor;
  __device__ explicit Divided(float largest)
      : MultipliedOrLargest(largest), divisor(isinf(scale) ? 0.0f : scale) {}
  __device__ float operator()(float x) const {
    const float estimate = x * factor;                 // exact if the scale is infinite
    const float excess = fmaf(estimate, divisor, -x);  // in this order -0 stays -0
    return fminf(fmaf(-excess, factor, estimate), kLargestFp8);
  }
};

template <bool kHidesNan>
struct FlooredOrHiding : Floored {
  __device__ FlooredOrHiding(float largest, float least) : Floored(largest, least, kHidesNan) {}
};

template <class Rule>
__device__ uint2 quantized_by(const Rule& rule, const Values& values) {
  Values scaled;
#pragma unroll
  for (int i = 0; i < kPairsPerVector; ++i) scaled[i] = {rule(values[i].x), rule(values[i].y)};
  return quantize(scaled);
}

// The vector of all rows that is a thread's i-th.
template <int kVectors>
__device__ uint32_t place_of(int i) {
  return (blockIdx.x * kVectors + i) * blockDim.x + threadIdx.x;
}

// A thread has two adjacent vectors.
template <class Rule>
__device__ void quantize_rows(const Type* hidden_states, uint8_t* quantized, Scales scales,
                              float eps, uint32_t batch_size, uint32_t num_blocks,
                              int next_may_begin) {
  let_next_begin(next_may_begin);
  const uint32_t place = place_of<1>(0);
  const bool has_vectors = place < batch_size * num_blocks * (kLanes / 2);
  wait_without_release();

  Vector x[2] = {};
  if (has_vectors) {
    const uint4* const from = reinterpret_cast<const uint4*>(hidden_states) + int64_t{place} * 2;
    x[0] = load_once(from);
    x[1] = load_once(from + 1);
  }
  Values values[2];
  widen(values[0], x[0]);
  widen(values[1], x[1]);
  float largest = fmaxf(largest_of(values[0]), largest_of(values[1]));
  largest = largest_in_lanes<kLanes / 2>(largest);
  if (!has_vectors) return;
  const Rule rule(largest, eps);
  if (place % (kLanes / 2) == 0) {
    const uint32_t block = place / (kLanes / 2);
    scales.store(block / num_blocks, block % num_blocks, rule.scale);
  }
  const uint2 first = quantized_by(rule, values[0]), second = quantized_by(rule, values[1]);
  reinterpret_cast<uint4*>(quantized)[place] = {first.x, first.y, second.x, second.y};
  release_next();
}

__device__ float silu(float x) { return x * reciprocal(1.0f + expf(-x)); }

template <int kVectors>
__device__ void multiply_and_quantize(const Type* input, uint8_t* quantized, Scales scales,
                                      uint32_t num_tokens, uint32_t width, int next_may_begin) {
  let_next_begin(next_may_begin);
  const uint32_t vectors = width / kElementsPerVector;  // of a token
  wait_for_kernel_before();

  Vector gate[kVectors] = {};
  Vector up[kVectors] = {};
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const uint32_t token = place_of<kVectors>(i) / vectors;
    const uint32_t at = place_of<kVectors>(i) % vectors;
    if (token >= num_tokens) continue;
    const uint4* const from = reinterpret_cast<const uint4*>(input) + int64_t{token} * 2 * vectors;
    gate[i] = load_once(from + at);
    up[i] = load_once(from + vectors + at);
  }
  arrive_together(gate, up, zero_of(static_cast<int>(width)));
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    Values values;
#pragma unroll
    for (int j = 0; j < kPairsPerVector; ++j) {
      const float2 a = Pair<Type>::unpack(gate[i].pairs[j]);
      const float2 b = Pair<Type>::unpack(up[i].pairs[j]);
      values[j] = {silu(a.x) * b.x, silu(a.y) * b.y};
    }
    const Divided rule(largest_of_block(values));
    const uint32_t place = place_of<kVectors>(i);
    const uint32_t token = place / vectors;
    if (token >= num_tokens) continue;
    if (place % kLanes == 0) scales.store(token, place % vectors / kLanes, rule.scale);
    reinterpret_cast<uint2*>(quantized)[place] = quantized_by(rule, values);
  }
}

template <int kHidden>
using PlanFor = SumPlan<kHidden>;

// residual: null, or what is added, and gets the sum.
template <class Plan>
__device__ void normalize_and_quantize(const Type* hidden_states, const Type* weight,
                                       const Type* residual, Type* residual_output,
                                       uint8_t* quantized, Scales scales, float eps,
                                       int input_stride, int batch_size, int next_may_begin) {
  static_assert(!Plan::kIsWithinWarp && Plan::kIsEven, "every lane of a block has its vectors");
  let_next_begin(next_may_begin);
  const Place<Plan> place(batch_size);
  const int64_t offset = int64_t{place.row} * Plan::kElements;
  // The weight need not wait ("reads_before_wait"). load_weight() would not be ahead of the wait: the
  // compiler may move it.
  const RowPart<Plan> w = load_row<Plan>(weight, place.thread);
  wait_for_kernel_before();

  RowPart<Plan> x =
      load_row_once<Plan>(hidden_states + int64_t{place.row} * input_stride, place.thread);
  RowPart<Plan> r = {};
  if (residual != nullptr) r = load_row_once<Plan>(residual + offset, place.thread);
  arrive_together(x, r, zero_of(batch_size));
  arrive_together(x, w, zero_of(batch_size));

  Values values[Plan::kVectorsPerThread];
  float squares = 0;
#pragma unroll
  for (int i = 0; i < Plan::kVectorsPerThread; ++i) {
#pragma unroll
    for (int j = 0; j < kPairsPerVector; ++j) {
      const float2 p = unpack<Type>(x, i, j);
      const float2 q = unpack<Type>(r, i, j);
      values[i][j] = residual == nullptr ? p : float2{p.x + q.x, p.y + q.y};
      squares = fmaf(values[i][j].x, values[i][j].x, squares);
      squares = fmaf(values[i][j].y, values[i][j].y, squares);
    }
  }
  if (residual != nullptr) {
    store_row<Plan>(residual_output + offset, place.thread,
                    make_row<Type, Plan>([&](int i, int j) { return values[i][j]; }));
  }
  const float mean = sum_over_row<Plan, float>(squares) / Plan::kElements;
  const float rstd = reciprocal_root(mean, eps);
  uint2* const to = reinterpret_cast<uint2*>(quantized + offset);
#pragma unroll
  for (int i = 0; i < Plan::kVectorsPerThread; ++i) {
#pragma unroll
    for (int j = 0; j < kPairsPerVector; ++j) {
      const float2 factor = unpack<Type>(w, i, j);
      const float2 y = round_to<Type>({values[i][j].x * rstd, values[i][j].y * rstd});
      values[i][j] = round_to<Type>({y.x * factor.x, y.y * factor.y});
    }
    const MultipliedOrLargest rule(largest_of_block(values[i]));
    const int at = i * Plan::kGroupThreads + place.thread;
    if (at % kLanes == 0) scales.store(place.row, at / kLanes, rule.scale);
    to[at] = quantized_by(rule, values[i]);
  }
}

}  // namespace
}  // namespace fibshim

#define FIBSHIM_QUANT_KERNEL(name, Rule)                                                       \
  extern "C" __global__ void __launch_bounds__(256)                                            \
      name##_bf16(const __nv_bfloat16* hidden_states, uint8_t* quantized, float* scales,       \
                  float eps, uint32_t batch_size, uint32_t num_blocks, int row_stride,         \
                  int block_stride, int next_may_begin) {                                      \
    fibshim::quantize_rows<Rule>(hidden_states, quantized, {scales, row_stride, block_stride}, \
                                 eps, batch_size, num_blocks, next_may_begin);                 \
  }

FIBSHIM_QUANT_KERNEL(quant_per_block, fibshim::MultipliedOrLowest<false>)
FIBSHIM_QUANT_KERNEL(quant_per_block_ue8m0, fibshim::MultipliedOrLowest<true>)
FIBSHIM_QUANT_KERNEL(quant_per_block_unbounded, fibshim::Unbounded)
FIBSHIM_QUANT_KERNEL(quant_per_block_floored, fibshim::FlooredOrHiding<false>)
FIBSHIM_QUANT_KERNEL(quant_per_block_bounded, fibshim::FlooredOrHiding<true>)

#define FIBSHIM_SILU_KERNEL(vectors)                                                              \
  extern "C" __global__ void __launch_bounds__(256) silu_and_mul_quant_per_block##vectors##_bf16( \
      const __nv_bfloat16* input, uint8_t* quantized, float* scales, uint32_t num_tokens,         \
      uint32_t width, int row_stride, int block_stride, int next_may_begin) {                     \
    fibshim::multiply_and_quantize<vectors>(input, quantized, {scales, row_stride, block_stride}, \
                                            num_tokens, width, next_may_begin);                   \
  }

FIBSHIM_SILU_KERNEL(1)
FIBSHIM_SILU_KERNEL(2)

#define FIBSHIM_NORM_KERNELS(hidden)                                                            \
  FIBSHIM_COMPARE_WITH_TABLES(hidden)                                                           \
  extern "C" __global__ void FIBSHIM_BOUNDS(hidden) rmsnorm_quant_per_block_h##hidden##_bf16(   \
      const __nv_bfloat16* hidden_states, const __nv_bfloat16* weight, uint8_t* quantized,      \
      float* scales, float eps, int input_stride, int row_stride, int block_stride,             \
      int batch_size, int next_may_begin) {                                                     \
    fibshim::normalize_and_quantize<fibshim::PlanFor<hidden>>(                                  \
        hidden_states, weight, nullptr, nullptr, quantized, {scales, row_stride, block_stride}, \
        eps, input_stride, batch_size, next_may_begin);                                         \
  }                                                                                             \
  extern "C" __global__ void FIBSHIM_BOUNDS(hidden)                                             \
      fused_add_rmsnorm_quant_per_block_h##hidden##_bf16(                                       \
          const __nv_bfloat16* hidden_states, const __nv_bfloat16* weight,                      \
          const __nv_bfloat16* residual, __nv_bfloat16* residual_output, uint8_t* quantized,    \
          float* scales, float eps, int input_stride, int row_stride, int block_stride,         \
          int batch_size, int next_may_begin) {                                                 \
    __builtin_assume(residual != nullptr);                                                      \
    fibshim::normalize_and_quantize<fibshim::PlanFor<hidden>>(                                  \
        hidden_states, weight, residual, residual_output, quantized,                            \
        {scales, row_stride, block_stride}, eps, input_stride, batch_size, next_may_begin);     \
  }

FIBSHIM_NORM_KERNELS(2048)
FIBSHIM_NORM_KERNELS(2560)
FIBSHIM_NORM_KERNELS(3072)
FIBSHIM_NORM_KERNELS(4096)
FIBSHIM_NORM_KERNELS(5120)
FIBSHIM_NORM_KERNELS(7168)
FIBSHIM_NORM_KERNELS(8192)
