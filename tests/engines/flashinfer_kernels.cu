// The kernels that FlashInfer compiles at run time for norms, activations and RoPE, of the headers in its wheel:
// the instances that its csrc/*.cu and jit/activation.py ask for. Compiled for its symbols, never run.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <flashinfer/activation.cuh>
#include <flashinfer/norm.cuh>
#include <flashinfer/pos_enc.cuh>

// As the text of jit/activation.py defines them.
__device__ __forceinline__ float silu(const float& x) { return x / (1.0f + __expf(-x)); }
__device__ __forceinline__ float gelu(const float& x) {
  return x * 0.5f * (1.0f + erf(x * 0.70710678f));
}
__device__ __forceinline__ float gelu_tanh(const float& x) {
  return 0.5f * x * (1.0f + tanhf(0.79788456f * x));
}

using namespace flashinfer;

// Since 0.7 they have the vector's size as a third template argument.
#if FLASHINFER_VERSION >= 7
#define FUNCTION(name) name, 8
#else
#define FUNCTION(name) name
#endif

template <class T>
void norms_and_activations(T* x, float* f, __nv_fp8_e4m3* q) {
  norm::RMSNorm(x, x, x, 1, 8, 8, 8);
  norm::GemmaRMSNorm(x, x, x, 1, 8, 8, 8);
  norm::QKRMSNorm(x, x, x, 1, 1, 8, 8, 8, 8, 8);
  norm::FusedAddRMSNorm(x, x, x, 1, 8, 8, 8);
  norm::GemmaFusedAddRMSNorm(x, x, x, 1, 8, 8, 8);
  norm::RMSNormQuant(x, x, q, 1, 8, 8, 8, f);
  norm::FusedAddRMSNormQuant(x, x, x, q, 1, 8, 8, 8, 8, f);
  activation::act_and_mul_kernel<T, FUNCTION(silu)><<<1, 1>>>(x, x, 8);
  activation::act_and_mul_kernel<T, FUNCTION(gelu)><<<1, 1>>>(x, x, 8);
  activation::act_and_mul_kernel<T, FUNCTION(gelu_tanh)><<<1, 1>>>(x, x, 8);
}

template <class T, class Id>
void rope(T* x, float* f, Id* ids) {
  BatchQKApplyRotaryPosIdsCosSinCache(x, x, x, x, f, ids, 1, 1, 1, 64, 64, 1, 1, 1, 1, 1, 1, 1, 1,
                                      true);
  BatchQKApplyRotaryPosIds(x, x, x, x, ids, 1, 1, 1, 64, 64, 1, 1, 1, 1, 1, 1, 1, 1, true, 1.0f,
                           1.0f);
  BatchQKApplyRotary(x, x, x, x, ids, ids, 1, 1, 1, 64, 64, 1, 1, 1, 1, 1, 1, 1, 1, true, 1.0f,
                     1.0f);
}

template <class T>
void all(T* x) {
  norms_and_activations(x, nullptr, nullptr);
  rope<T, int32_t>(x, nullptr, nullptr);
  rope<T, int64_t>(x, nullptr, nullptr);
}

void instantiate() {
  all<__nv_bfloat16>(nullptr);
  all<__half>(nullptr);
}
