// Gated activations: output = act(x) * y, where a token's input is x followed by y.
//
// One kernel per function (silu, gelu, gelu_tanh) and type, for every width:
//   silu_and_mul_bf16       FlashInfer's and SGLang's: fp32, rounded once
//   silu_and_mul_vllm_bf16  vLLM's: act(x) is rounded before the multiplication
//   mul_and_silu_vllm_bf16  vLLM's, which activates the second half: output = x * act(y)
//   silu_and_mul_clamp_vllm_bf16   vLLM's with a limit: x at most limit, y within +-limit, output =
//                                  x / (1 + exp(-alpha * x)) * (y + beta)
//   silu_and_mul_then_quant_bf16   silu_and_mul_vllm_bf16, and its output in fp8 with one scale
//   silu_and_mul_then_quant_per_token2_bf16  the same with a scale per token, which it finds; one
//                                  block per token, two vectors per thread
//   silu_and_mul_link_bf16, gelu_tanh_and_mul_link_bf16  torch.compile's: fp32, rounded once; for
//                                  few tokens, between two kernels of ours
// grid = (num_tokens, parts of a token), block = any whole warps, up to 512 threads.
#include "fp8.cuh"

namespace fibshim {
namespace {

constexpr int kMaxThreads = 512;
constexpr int kBlocksPerSm = 4;

struct Silu {
  // If exp overflows, the quotient is 0, as it should be.
  static __device__ float apply(float x) { return __fdividef(x, 1.0f + __expf(-x)); }
};

struct Gelu {
  static __device__ float apply(float x) { return 0.5f * x * (1.0f + erff(x * 0.707106781f)); }
};

struct GeluTanh {
  // (1 + tanh(u)) / 2 = 1 / (1 + exp(-2 u)).
  static __device__ float apply(float x) {
    const float u = 0.797884561f * fmaf(0.044715f * x * x, x, x);
    return __fdividef(x, 1.0f + __expf(-2.0f * u));
  }
};

template <class T, class Activation, bool kRoundsLikeVllm>
__device__ Vector gate(const Vector& x, const Vector& y) {
  Vector result;
#pragma unroll
  for (int i = 0; i < kPairsPerVector; ++i) {
    const float2 a = Pair<T>::unpack(x.pairs[i]);
    const float2 b = Pair<T>::unpack(y.pairs[i]);
    float2 active = {Activation::apply(a.x), Activation::apply(a.y)};
    if (kRoundsLikeVllm) active = round_to<T>(active);
    result.pairs[i] = Pair<T>::pack({active.x * b.x, active.y * b.y});
  }
  return result;
}

// The parameters of vLLM's silu·mul with a limit.
struct Clamp {
  float gate_limit;
  float up_limit;
  float alpha;
  float beta;
};

// As in vLLM, NaN becomes the limit, because fminf ignores NaN.
template <class T>
__device__ Vector gate_clamped(const Vector& x, const Vector& y, const Clamp& clamp) {
  const auto activate = [&](float value) {
    const float gate = fminf(value, clamp.gate_limit);
    return __fdividef(gate, 1.0f + __expf(-gate * clamp.alpha));
  };
  const auto shift = [&](float value) {
    return fmaxf(fminf(value, clamp.up_limit), -clamp.up_limit) + clamp.beta;
  };
  Vector result;
#pragma unroll
  for (int i = 0; i < kPairsPerVector; ++i) {
    const float2 a = Pair<T>::unpack(x.pairs[i]);
    const float2 b = Pair<T>::unpack(y.pairs[i]);
    const float2 active = round_to<T>(float2{activate(a.x), activate(a.y)});
    result.pairs[i] = Pair<T>::pack({active.x * shift(b.x), active.y * shift(b.y)});
  }
  return result;
}

// The two halves of a token's input, and its output, as vectors. x has `width` elements, a multiple
// of 8.
struct Token {
  uint32_t vectors;
  const uint4* x;
  const uint4* y;
  uint4* output;
  template <class T>
  __device__ Token(const T* input, T* output, uint32_t width)
      : vectors(width / kElementsPerVector),
        x(reinterpret_cast<const uint4*>(input) + int64_t{blockIdx.x} * 2 * vectors),
        y(x + vectors),
        output(reinterpret_cast<uint4*>(output) + int64_t{blockIdx.x} * vectors) {}
  // The token's output in fp8, where a vector has half the bytes.
  __device__ uint2* quantized(uint8_t* out) const {
    return reinterpret_cast<uint2*>(out) + int64_t{blockIdx.x} * vectors;
  }
};

// quantized: null unless kQuantizes. kActivatesFirst: activates the first half, otherwise the
// second.
template <class T, class Activation, bool kRoundsLikeVllm, bool kQuantizes = false,
          bool kActivatesFirst = true>
__device__ void activate_and_multiply(const T* input, T* output, uint32_t width,
                                      const float* scale = nullptr, uint8_t* quantized = nullptr) {
  const Token token(input, output, width);
  wait_for_kernel_before();
  const float reciprocal = kQuantizes ? 1.0f / *scale : 1.0f;
  for (uint32_t i = blockIdx.y * blockDim.x + threadIdx.x; i < token.vectors;
       i += gridDim.y * blockDim.x) {
    const Vector x = load(token.x + i);
    const Vector y = load(token.y + i);
    const Vector result = kActivatesFirst ? gate<T, Activation, kRoundsLikeVllm>(x, y)
                                          : gate<T, Activation, kRoundsLikeVllm>(y, x);
    store_whole(token.output + i, result);
    if (kQuantizes)
      token.quantized(quantized)[i] = quantize_like_vllm<T, false>(result, reciprocal);
  }
}

template <class T>
__device__ void activate_and_multiply_clamped(const T* input, T* output, uint32_t width,
                                              const Clamp& clamp) {
  const Token token(input, output, width);
  wait_for_kernel_before();
  for (uint32_t i = blockIdx.y * blockDim.x + threadIdx.x; i < token.vectors;
       i += gridDim.y * blockDim.x) {
    const Vector x = load(token.x + i);
    const Vector y = load(token.y + i);
    store_whole(token.output + i, gate_clamped<T>(x, y, clamp));
  }
}

template <class T, int kVectors>
__device__ void multiply_and_quantize_token(const T* input, T* output, uint8_t* quantized,
                                            float* scales, uint32_t width) {
  const Token token(input, output, width);
  wait_for_kernel_before();
  Vector x[kVectors] = {};
  Vector y[kVectors] = {};
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const uint32_t at = i * blockDim.x + threadIdx.x;
    if (at >= token.vectors) continue;
    x[i] = load(token.x + at);
    y[i] = load(token.y + at);
  }
  float largest = 0;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    x[i] = gate<T, Silu, true>(x[i], y[i]);
    largest = fmaxf(largest, largest_of<T>(x[i]));
  }
  const float scale = scale_of_token(largest_in_block(largest));
  if (threadIdx.x == 0) scales[blockIdx.x] = scale;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const uint32_t at = i * blockDim.x + threadIdx.x;
    if (at >= token.vectors) continue;
    store_whole(token.output + at, x[i]);
    token.quantized(quantized)[at] = quantize_like_vllm<T, true>(x[i], scale);
  }
}

}  // namespace
}  // namespace fibshim

// One vector per thread: grid = (num_tokens, width / 1024, rounded up), block = 128.
#define FIBSHIM_LINK_KERNEL(name, Activation, T)                                        \
  extern "C" __global__ void __launch_bounds__(128)                                     \
      name(const T* input, T* output, uint32_t width, int next_may_begin) {             \
    using namespace fibshim;                                                            \
    let_next_begin(next_may_begin);                                                     \
    const uint32_t at = (blockIdx.y * blockDim.x + threadIdx.x) * kElementsPerVector;   \
    const T* const from = input + int64_t{blockIdx.x} * 2 * width + at;                 \
    wait_for_kernel_before();                                                           \
    if (at >= width) return;                                                            \
    const Vector x = load_once(from);                                                   \
    const Vector y = load_once(from + width);                                           \
    store(output + int64_t{blockIdx.x} * width + at, gate<T, Activation, false>(x, y)); \
  }

FIBSHIM_LINK_KERNEL(silu_and_mul_link_bf16, Silu, __nv_bfloat16)
FIBSHIM_LINK_KERNEL(silu_and_mul_link_fp16, Silu, __half)
FIBSHIM_LINK_KERNEL(gelu_tanh_and_mul_link_bf16, GeluTanh, __nv_bfloat16)

#define FIBSHIM_KERNEL(name, Activation, kRoundsLikeVllm, T)                                       \
  extern "C" __global__ void __launch_bounds__(fibshim::kMaxThreads, fibshim::kBlocksPerSm)        \
      name(const T* input, T* output, uint32_t width) {                                            \
    fibshim::activate_and_multiply<T, fibshim::Activation, kRoundsLikeVllm>(input, output, width); \
  }
#define FIBSHIM_KERNELS(name, Activation)                           \
  FIBSHIM_KERNEL(name##_bf16, Activation, false, __nv_bfloat16)     \
  FIBSHIM_KERNEL(name##_fp16, Activation, false, __half)            \
  FIBSHIM_KERNEL(name##_vllm_bf16, Activation, true, __nv_bfloat16) \
  FIBSHIM_KERNEL(name##_vllm_fp16, Activation, true, __half)

FIBSHIM_KERNELS(silu_and_mul, Silu)
FIBSHIM_KERNELS(gelu_and_mul, Gelu)
FIBSHIM_KERNELS(gelu_tanh_and_mul, GeluTanh)

// vLLM rounds the first half after limiting it; before 0.25 it also rounds the second
// (`rounds_limit`). Elements within the limit are of type T already, so it is enough to round the
// limit.
#define FIBSHIM_SILU_KERNELS(dtype, T)                                                          \
  extern "C" __global__ void __launch_bounds__(fibshim::kMaxThreads, fibshim::kBlocksPerSm)     \
      mul_and_silu_vllm_##dtype(const T* input, T* output, uint32_t width) {                    \
    fibshim::activate_and_multiply<T, fibshim::Silu, true, false, false>(input, output, width); \
  }                                                                                             \
  extern "C" __global__ void __launch_bounds__(fibshim::kMaxThreads, fibshim::kBlocksPerSm)     \
      silu_and_mul_clamp_vllm_##dtype(const T* input, T* output, uint32_t width, float limit,   \
                                      float alpha, float beta, int rounds_limit) {              \
    const float rounded = fibshim::round_to<T>(float2{limit, limit}).x;                         \
    fibshim::activate_and_multiply_clamped<T>(                                                  \
        input, output, width, {rounded, rounds_limit != 0 ? rounded : limit, alpha, beta});     \
  }

FIBSHIM_SILU_KERNELS(bf16, __nv_bfloat16)
FIBSHIM_SILU_KERNELS(fp16, __half)

#define FIBSHIM_QUANT_KERNELS(dtype, T)                                                       \
  extern "C" __global__ void __launch_bounds__(fibshim::kMaxThreads, fibshim::kBlocksPerSm)   \
      silu_and_mul_then_quant_##dtype(const T* input, const float* scale, T* output,          \
                                      uint8_t* quantized, uint32_t width) {                   \
    fibshim::activate_and_multiply<T, fibshim::Silu, true, true>(input, output, width, scale, \
                                                                 quantized);                  \
  }
#define FIBSHIM_TOKEN_KERNEL(vectors, dtype, T)                                                \
  extern "C" __global__ void __launch_bounds__(vectors == 4 ? 896 : 1024)                      \
      silu_and_mul_then_quant_per_token##vectors##_##dtype(                                    \
          const T* input, T* output, uint8_t* quantized, float* scales, uint32_t width) {      \
    fibshim::multiply_and_quantize_token<T, vectors>(input, output, quantized, scales, width); \
  }

FIBSHIM_QUANT_KERNELS(bf16, __nv_bfloat16)
FIBSHIM_QUANT_KERNELS(fp16, __half)
FIBSHIM_TOKEN_KERNEL(1, bf16, __nv_bfloat16)
FIBSHIM_TOKEN_KERNEL(1, fp16, __half)
FIBSHIM_TOKEN_KERNEL(2, bf16, __nv_bfloat16)
FIBSHIM_TOKEN_KERNEL(2, fp16, __half)
FIBSHIM_TOKEN_KERNEL(4, bf16, __nv_bfloat16)
FIBSHIM_TOKEN_KERNEL(4, fp16, __half)
