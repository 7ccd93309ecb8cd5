// Gated activations: output = act(x) * y, where a token's input is x and then y.
//
// A kernel for each function (silu, gelu, gelu_tanh) and type, for every width:
//   silu_and_mul_bf16       FlashInfer's and SGLang's: fp32, rounded once
//   silu_and_mul_vllm_bf16  vLLM's: act(x) is rounded before the multiplication
//   silu_and_mul_link_bf16  torch.compile's: fp32, rounded once; for few tokens, between two kernels of ours
// grid = (num_tokens, parts of a token), block = any whole warps, up to 512 threads.
#include "vector.cuh"

namespace fibshim {
namespace {

constexpr int kMaxThreads = 512;
constexpr int kBlocksPerSm = 4;

struct Silu {
  // Where exp overflows the quotient is 0, as it should be.
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

// `width` elements in x, a multiple of 8.
template <class T, class Activation, bool kRoundsLikeVllm>
__device__ void activate_and_multiply(const T* input, T* output, uint32_t width) {
  const uint32_t vectors = width / kElementsPerVector;
  const int64_t token = blockIdx.x;
  const uint4* const x_row = reinterpret_cast<const uint4*>(input) + token * 2 * vectors;
  const uint4* const y_row = x_row + vectors;
  uint4* const to = reinterpret_cast<uint4*>(output) + token * vectors;
  wait_for_kernel_before();
  for (uint32_t i = blockIdx.y * blockDim.x + threadIdx.x; i < vectors;
       i += gridDim.y * blockDim.x) {
    const Vector x = load_once(x_row + i);
    const Vector y = load_once(y_row + i);
    store_streaming(to + i, gate<T, Activation, kRoundsLikeVllm>(x, y));
  }
}

}  // namespace
}  // namespace fibshim

// A vector for each thread: grid = (num_tokens, width / 1024, rounded up), block = 128.
extern "C" __global__ void __launch_bounds__(128)
    silu_and_mul_link_bf16(const __nv_bfloat16* input, __nv_bfloat16* output, uint32_t width,
                           int next_may_begin) {
  using namespace fibshim;
  let_next_begin(next_may_begin);
  const uint32_t at = (blockIdx.y * blockDim.x + threadIdx.x) * kElementsPerVector;
  const __nv_bfloat16* const from = input + int64_t{blockIdx.x} * 2 * width + at;
  wait_for_kernel_before();
  if (at >= width) return;
  const Vector x = load_once(from);
  const Vector y = load_once(from + width);
  store(output + int64_t{blockIdx.x} * width + at, gate<__nv_bfloat16, Silu, false>(x, y));
}

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
