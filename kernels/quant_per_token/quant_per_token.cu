// Quantises rows to fp8 (e4m3), alone or together with what makes the rows, as torch.compile fuses it in
// vLLM. Computes in fp32. With a scale for each row, which the kernel finds:
//
//   quant_per_token_h4096_bf16                   y = x
//   rmsnorm_quant_per_token_h4096_bf16           y = x / sqrt(mean(x^2) + eps) * w
//   add_rmsnorm_quant_per_token_h4096_bf16       y = z / sqrt(mean(z^2) + eps) * w, z = x + first; z is
//                                                not kept
//   add2_rmsnorm_sum_quant_per_token_h4096_bf16  z = x + (first + second), which goes to `sum`; y goes to
//                                                `normed`, too, and is quantised as it is rounded there
//   silu_and_mul_quant_per_token2_bf16           y = silu of a token's first half * its second; two
//                                                vectors per thread
// The scale is max(largest |y| / 448, 1 / (448 * 512)), of y that is not rounded.
//
// With one scale for all, which is given, and no y rounded:
//   quant_static_bf16, rmsnorm_quant_static_h4096_bf16, add_rmsnorm_quant_static_h4096_bf16,
//   add2_rmsnorm_sum_quant_static_h4096_bf16, silu_and_mul_quant_static_bf16
//
// Of silu_and_mul_quant_per_token a cluster shares a token: cluster = any number of blocks, grid = tokens *
// that number. silu_and_mul_quant_static: grid = (tokens, width / 1024, rounded up), block = 128.
// quant_static, which knows no rows: grid = elements / 1024, rounded up, block = 128.
#include "cluster_row.cuh"
#include "fp8.cuh"

namespace fibshim {
namespace {

using Type = __nv_bfloat16;
using Values = float2[kPairsPerVector];  // a vector's elements

// Divides as Triton does.
__device__ float divide(float x, float y) {
  float quotient;
  asm("div.full.f32 %0, %1, %2;" : "=f"(quotient) : "f"(x), "f"(y));
  return quotient;
}

// Magnitudes are compared as bits, where NaN is above all numbers: a row with NaN has NaN as its scale,
// as with torch.compile.
__device__ float larger_of(float x, float y) {
  return __uint_as_float(max(__float_as_uint(x), __float_as_uint(y)));
}

__device__ float largest_of(const Values& values) {
  float largest = 0;
#pragma unroll
  for (const float2& pair : values) {
    largest = larger_of(largest, larger_of(fabsf(pair.x), fabsf(pair.y)));
  }
  return largest;
}

__device__ float scale_of_row(float largest) {
  return larger_of(largest * (1.0f / kLargestFp8), 1.0f / (kLargestFp8 * 512.0f));
}

__device__ void widen(Values& values, const Vector& vector) {
#pragma unroll
  for (int i = 0; i < kPairsPerVector; ++i) values[i] = Pair<Type>::unpack(vector.pairs[i]);
}

__device__ void store_quantized(uint2* to, const Values& values, float factor) {
  Values scaled;
#pragma unroll
  for (int i = 0; i < kPairsPerVector; ++i) {
    scaled[i] = {values[i].x * factor, values[i].y * factor};
  }
  *to = quantize(scaled);
}

// begin() is called after the wait for the kernel before.
struct ScalePerRow {
  float* scales;
  __device__ void begin() {}
  template <class Plan>
  __device__ float factor(const Place<Plan>& place,
                          const Values (&values)[Plan::kVectorsPerThread]) {
    float largest = 0;
#pragma unroll
    for (const Values& vector : values) largest = larger_of(largest, largest_of(vector));
    const float scale = scale_of_row(largest_in_block(largest));
    if (place.thread == 0) scales[place.row] = scale;
    return divide(1.0f, scale);
  }
};

struct GivenScale {
  const float* scale;
  float reciprocal;
  __device__ void begin() { reciprocal = divide(1.0f, *scale); }
  template <class Plan>
  __device__ float factor(const Place<Plan>&, const Values (&)[Plan::kVectorsPerThread]) {
    return reciprocal;
  }
};

template <int kHidden>
using PlanFor = std::conditional_t<(kHidden < 2048), OneVectorPlan<kHidden>, SumPlan<kHidden>>;

// normed: null, or gets the row rounded, which is then quantised.
template <class Plan, class Scale>
__device__ void quantize_row(const Place<Plan>& place, Values (&values)[Plan::kVectorsPerThread],
                             Type* normed, uint8_t* quantized, Scale scale) {
  static_assert(!Plan::kIsWithinWarp, "a block has a row");
  const int64_t offset = int64_t{place.row} * Plan::kElements;
  if (normed != nullptr) {
    store_row<Plan>(normed + offset, place.thread,
                    make_row<Type, Plan>([&](int i, int j) { return values[i][j]; }));
  }
  const float factor = scale.template factor<Plan>(place, values);
  uint2* const to = reinterpret_cast<uint2*>(quantized + offset);
#pragma unroll
  for (int i = 0; i < Plan::kVectorsPerThread; ++i) {
    if (normed != nullptr) {
#pragma unroll
      for (float2& pair : values[i]) pair = round_to<Type>(pair);
    }
    if (has_vector<Plan>(i, place.thread)) {
      store_quantized(to + i * Plan::kGroupThreads + place.thread, values[i], factor);
    }
  }
}

template <class Plan>
__device__ void quantize_rows(const Type* hidden_states, uint8_t* quantized, ScalePerRow scale,
                              int batch_size, int next_may_begin) {
  let_next_begin(next_may_begin);
  const Place<Plan> place(batch_size);
  wait_for_kernel_before();
  const RowPart<Plan> x =
      load_row_once<Plan>(hidden_states + int64_t{place.row} * Plan::kElements, place.thread);
  Values values[Plan::kVectorsPerThread];
#pragma unroll
  for (int i = 0; i < Plan::kVectorsPerThread; ++i) widen(values[i], x.vectors[i]);
  quantize_row(place, values, nullptr, quantized, scale);
}

// first, second: null where there is nothing to add. sum: null if it is not kept.
template <class Plan, class Scale>
__device__ void normalize_and_quantize(const Type* hidden_states, const Type* first,
                                       const Type* second, const Type* weight, Type* sum,
                                       Type* normed, uint8_t* quantized, Scale scale, float eps,
                                       int batch_size, int next_may_begin) {
  let_next_begin(next_may_begin);
  const Place<Plan> place(batch_size);
  const int64_t offset = int64_t{place.row} * Plan::kElements;
  // The weight need not wait ("reads_before_wait"). load_weight() would not be ahead of the wait: the
  // compiler may move it.
  const RowPart<Plan> w = load_row<Plan>(weight, place.thread);
  wait_for_kernel_before();

  RowPart<Plan> x = load_row_once<Plan>(hidden_states + offset, place.thread);
  RowPart<Plan> a = {};
  RowPart<Plan> b = {};
  if (first != nullptr) a = load_row_once<Plan>(first + offset, place.thread);
  if (second != nullptr) b = load_row_once<Plan>(second + offset, place.thread);
  scale.begin();
  arrive_together(x, a, zero_of(batch_size));
  arrive_together(x, b, zero_of(batch_size));
  arrive_together(x, w, zero_of(batch_size));

  Values values[Plan::kVectorsPerThread];
  float squares = 0;
#pragma unroll
  for (int i = 0; i < Plan::kVectorsPerThread; ++i) {
#pragma unroll
    for (int j = 0; j < kPairsPerVector; ++j) {
      const float2 p = unpack<Type>(a, i, j);
      const float2 q = unpack<Type>(b, i, j);
      const float2 r = unpack<Type>(x, i, j);
      values[i][j] = {r.x + (p.x + q.x), r.y + (p.y + q.y)};
      squares = fmaf(values[i][j].x, values[i][j].x, squares);
      squares = fmaf(values[i][j].y, values[i][j].y, squares);
    }
  }
  if (sum != nullptr) {
    store_row<Plan>(sum + offset, place.thread,
                    make_row<Type, Plan>([&](int i, int j) { return values[i][j]; }));
  }
  const float mean =
      divide(sum_over_row<Plan, float>(squares), static_cast<float>(Plan::kElements));
  const float rstd = reciprocal_root(mean, eps);
#pragma unroll
  for (int i = 0; i < Plan::kVectorsPerThread; ++i) {
#pragma unroll
    for (int j = 0; j < kPairsPerVector; ++j) {
      const float2 factor = unpack<Type>(w, i, j);
      values[i][j] = {values[i][j].x * rstd * factor.x, values[i][j].y * rstd * factor.y};
    }
  }
  quantize_row(place, values, normed, quantized, scale);
}

__device__ float silu(float x) { return divide(x, 1.0f + expf(-x)); }

__device__ void multiply(Values& values, const Vector& gate, const Vector& up) {
#pragma unroll
  for (int i = 0; i < kPairsPerVector; ++i) {
    const float2 a = Pair<Type>::unpack(gate.pairs[i]);
    const float2 b = Pair<Type>::unpack(up.pairs[i]);
    values[i] = {silu(a.x) * b.x, silu(a.y) * b.y};
  }
}

constexpr int kMaxWarps = 128;  // of a token
using LargestOfWarps = WarpSums<kMaxWarps>;

// Makes the barrier on which the blocks of a cluster, two or more, wait for each other's magnitudes.
__device__ void begin_largest(LargestOfWarps& all, uint32_t blocks) {
  if (threadIdx.x == 0) {
    const uint32_t barrier = shared_address(&all.barrier);
    make_barrier(barrier, 1);
    publish_barriers();
    expect_bytes(barrier, static_cast<int>(blocks * (blockDim.x / 32) * sizeof(float)));
  }
  // Without a release, which waits for memory: nothing but the barrier has to be visible.
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
  wait_for_cluster();
}

// Which cluster of the grid this is.
__device__ uint32_t cluster_of_grid() {
  uint32_t cluster;
  asm("mov.u32 %0, %%clusterid.x;" : "=r"(cluster));
  return cluster;
}

// Returns a token's largest magnitude to all threads of its cluster.
__device__ float largest_in_cluster(LargestOfWarps& all, uint32_t rank, uint32_t blocks,
                                    float largest) {
  const uint32_t warps = blockDim.x / 32;
  const uint32_t warp = rank * warps + threadIdx.x / 32;
  largest = largest_in_warp(largest);
  if (blocks == 1) {
    if (threadIdx.x % 32 == 0) all.sums[warp] = largest;
    __syncthreads();
  } else {
    send_sum(all, static_cast<int>(warp), blocks, largest);
    wait_for_bytes(shared_address(&all.barrier), 0);
  }
  largest = 0;
#pragma unroll
  for (uint32_t i = 0; i < kMaxWarps; i += 32) {
    const uint32_t at = i + threadIdx.x % 32;
    if (at < blocks * warps) largest = larger_of(largest, all.sums[at]);
  }
  return largest_in_warp(largest);
}

template <int kVectors>
__device__ void multiply_and_quantize(const Type* input, uint8_t* quantized, float* scales,
                                      uint32_t width, int next_may_begin) {
  __shared__ LargestOfWarps all;
  let_next_begin(next_may_begin);
  const uint32_t blocks = blocks_of_cluster();
  const uint32_t rank = rank_in_cluster();
  const uint32_t row = cluster_of_grid();
  const uint32_t vectors = width / kElementsPerVector;
  const uint4* const from = reinterpret_cast<const uint4*>(input) + int64_t{row} * 2 * vectors;
  const auto place_of = [&](int i) { return (i * blocks + rank) * blockDim.x + threadIdx.x; };
  if (blocks != 1) begin_largest(all, blocks);
  wait_for_kernel_before();

  Vector gate[kVectors] = {};
  Vector up[kVectors] = {};
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    if (place_of(i) >= vectors) continue;
    gate[i] = load_once(from + place_of(i));
    up[i] = load_once(from + vectors + place_of(i));
  }
  arrive_together(gate, up, zero_of(static_cast<int>(width)));
  Values values[kVectors];
  float largest = 0;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    multiply(values[i], gate[i], up[i]);
    largest = larger_of(largest, largest_of(values[i]));
  }
  const float scale = scale_of_row(largest_in_cluster(all, rank, blocks, largest));
  if (rank == 0 && threadIdx.x == 0) scales[row] = scale;
  const float factor = divide(1.0f, scale);
  uint2* const to = reinterpret_cast<uint2*>(quantized) + int64_t{row} * vectors;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    if (place_of(i) < vectors) store_quantized(to + place_of(i), values[i], factor);
  }
}

}  // namespace
}  // namespace fibshim

#define FIBSHIM_TOKEN_KERNEL(vectors)                                                              \
  extern "C" __global__ void __launch_bounds__(1024) silu_and_mul_quant_per_token##vectors##_bf16( \
      const __nv_bfloat16* input, uint8_t* quantized, float* scales, uint32_t width,               \
      int next_may_begin) {                                                                        \
    fibshim::multiply_and_quantize<vectors>(input, quantized, scales, width, next_may_begin);      \
  }

FIBSHIM_TOKEN_KERNEL(1)
FIBSHIM_TOKEN_KERNEL(2)
FIBSHIM_TOKEN_KERNEL(4)

extern "C" __global__ void __launch_bounds__(128)
    silu_and_mul_quant_static_bf16(const __nv_bfloat16* input, const float* scale,
                                   uint8_t* quantized, uint32_t width, int next_may_begin) {
  using namespace fibshim;
  let_next_begin(next_may_begin);
  const uint32_t at = (blockIdx.y * blockDim.x + threadIdx.x) * kElementsPerVector;
  const __nv_bfloat16* const from = input + int64_t{blockIdx.x} * 2 * width + at;
  wait_for_kernel_before();
  if (at >= width) return;
  const Vector gate = load_once(from);
  const Vector up = load_once(from + width);
  const float factor = divide(1.0f, *scale);
  Values values;
  multiply(values, gate, up);
  store_quantized(reinterpret_cast<uint2*>(quantized + int64_t{blockIdx.x} * width + at), values,
                  factor);
}

extern "C" __global__ void __launch_bounds__(128)
    quant_static_bf16(const __nv_bfloat16* hidden_states, const float* scale, uint8_t* quantized,
                      int batch_size, int hidden_size, int next_may_begin) {
  using namespace fibshim;
  let_next_begin(next_may_begin);
  const int64_t at = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  wait_for_kernel_before();
  if (at >= int64_t{batch_size} * hidden_size / kElementsPerVector) return;
  const Vector x = load_once(reinterpret_cast<const uint4*>(hidden_states) + at);
  const float factor = divide(1.0f, *scale);
  Values values;
  widen(values, x);
  store_quantized(reinterpret_cast<uint2*>(quantized) + at, values, factor);
}

#define FIBSHIM_QUANT_KERNEL(hidden)                                                           \
  FIBSHIM_COMPARE_WITH_TABLES(hidden)                                                          \
  extern "C" __global__ void FIBSHIM_BOUNDS(hidden)                                            \
      quant_per_token_h##hidden##_bf16(const __nv_bfloat16* hidden_states, uint8_t* quantized, \
                                       float* scales, int batch_size, int next_may_begin) {    \
    fibshim::quantize_rows<fibshim::PlanFor<hidden>>(                                          \
        hidden_states, quantized, fibshim::ScalePerRow{scales}, batch_size, next_may_begin);   \
  }

#define FIBSHIM_NORM_KERNELS(hidden)                                                          \
  FIBSHIM_COMPARE_WITH_TABLES(hidden)                                                         \
  extern "C" __global__ void FIBSHIM_BOUNDS(hidden) rmsnorm_quant_per_token_h##hidden##_bf16( \
      const __nv_bfloat16* hidden_states, const __nv_bfloat16* weight, uint8_t* quantized,    \
      float* scales, float eps, int batch_size, int next_may_begin) {                         \
    fibshim::normalize_and_quantize<fibshim::PlanFor<hidden>>(                                \
        hidden_states, nullptr, nullptr, weight, nullptr, nullptr, quantized,                 \
        fibshim::ScalePerRow{scales}, eps, batch_size, next_may_begin);                       \
  }                                                                                           \
  extern "C" __global__ void FIBSHIM_BOUNDS(hidden) rmsnorm_quant_static_h##hidden##_bf16(    \
      const __nv_bfloat16* hidden_states, const __nv_bfloat16* weight, const float* scale,    \
      uint8_t* quantized, float eps, int batch_size, int next_may_begin) {                    \
    fibshim::normalize_and_quantize<fibshim::PlanFor<hidden>>(                                \
        hidden_states, nullptr, nullptr, weight, nullptr, nullptr, quantized,                 \
        fibshim::GivenScale{scale}, eps, batch_size, next_may_begin);                         \
  }

#define FIBSHIM_SUM_KERNELS(hidden)                                                                \
  FIBSHIM_COMPARE_WITH_TABLES(hidden)                                                              \
  extern "C" __global__ void FIBSHIM_BOUNDS(hidden) add_rmsnorm_quant_per_token_h##hidden##_bf16(  \
      const __nv_bfloat16* hidden_states, const __nv_bfloat16* first, const __nv_bfloat16* weight, \
      uint8_t* quantized, float* scales, float eps, int batch_size, int next_may_begin) {          \
    __builtin_assume(first != nullptr);                                                            \
    fibshim::normalize_and_quantize<fibshim::PlanFor<hidden>>(                                     \
        hidden_states, first, nullptr, weight, nullptr, nullptr, quantized,                        \
        fibshim::ScalePerRow{scales}, eps, batch_size, next_may_begin);                            \
  }                                                                                                \
  extern "C" __global__ void FIBSHIM_BOUNDS(hidden) add_rmsnorm_quant_static_h##hidden##_bf16(     \
      const __nv_bfloat16* hidden_states, const __nv_bfloat16* first, const __nv_bfloat16* weight, \
      const float* scale, uint8_t* quantized, float eps, int batch_size, int next_may_begin) {     \
    __builtin_assume(first != nullptr);                                                            \
    fibshim::normalize_and_quantize<fibshim::PlanFor<hidden>>(                                     \
        hidden_states, first, nullptr, weight, nullptr, nullptr, quantized,                        \
        fibshim::GivenScale{scale}, eps, batch_size, next_may_begin);                              \
  }                                                                                                \
  extern "C" __global__ void FIBSHIM_BOUNDS(hidden)                                                \
      add2_rmsnorm_sum_quant_per_token_h##hidden##_bf16(                                           \
          const __nv_bfloat16* hidden_states, const __nv_bfloat16* first,                          \
          const __nv_bfloat16* second, const __nv_bfloat16* weight, __nv_bfloat16* sum,            \
          __nv_bfloat16* normed, uint8_t* quantized, float* scales, float eps, int batch_size,     \
          int next_may_begin) {                                                                    \
    __builtin_assume(first != nullptr && second != nullptr && sum != nullptr &&                    \
                     normed != nullptr);                                                           \
    fibshim::normalize_and_quantize<fibshim::PlanFor<hidden>>(                                     \
        hidden_states, first, second, weight, sum, normed, quantized,                              \
        fibshim::ScalePerRow{scales}, eps, batch_size, next_may_begin);                            \
  }                                                                                                \
  extern "C" __global__ void FIBSHIM_BOUNDS(hidden)                                                \
      add2_rmsnorm_sum_quant_static_h##hidden##_bf16(                                              \
          const __nv_bfloat16* hidden_states, const __nv_bfloat16* first,                          \
          const __nv_bfloat16* second, const __nv_bfloat16* weight, const float* scale,            \
          __nv_bfloat16* sum, uint8_t* quantized, float eps, int batch_size, int next_may_begin) { \
    __builtin_assume(first != nullptr && second != nullptr && sum != nullptr);                     \
    fibshim::normalize_and_quantize<fibshim::PlanFor<hidden>>(                                     \
        hidden_states, first, second, weight, sum, nullptr, quantized, fibshim::GivenScale{scale}, \
        eps, batch_size, next_may_begin);                                                          \
  }

FIBSHIM_QUANT_KERNEL(1024)
FIBSHIM_QUANT_KERNEL(2048)
FIBSHIM_QUANT_KERNEL(2560)
FIBSHIM_QUANT_KERNEL(3072)
FIBSHIM_QUANT_KERNEL(3584)
FIBSHIM_QUANT_KERNEL(4096)
FIBSHIM_QUANT_KERNEL(5120)
FIBSHIM_QUANT_KERNEL(8192)

FIBSHIM_NORM_KERNELS(4096)
FIBSHIM_NORM_KERNELS(5120)
FIBSHIM_NORM_KERNELS(8192)

FIBSHIM_SUM_KERNELS(2048)
FIBSHIM_SUM_KERNELS(2560)
FIBSHIM_SUM_KERNELS(3072)
FIBSHIM_SUM_KERNELS(3584)
FIBSHIM_SUM_KERNELS(4096)
FIBSHIM_SUM_KERNELS(5120)
FIBSHIM_SUM_KERNELS(8192)
