// Kernels with the names and parameters of FlashInfer's, SGLang's and vLLM's, which do nothing: what
// the shim launches in their place is what there is to see (tests/gpu/engine_patterns.py).
#include <cuda_bf16.h>
#include <cuda_fp8.h>
#include <stdint.h>

#include <type_traits>

namespace flashinfer {
namespace norm {
template <uint32_t kVector, class T>
__global__ void RMSNormKernel(T*, T*, T*, uint32_t, uint32_t, uint32_t, float, float) {}
template <uint32_t kVector, class T>
__global__ void QKRMSNormKernel(T*, T*, T*, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t,
                                uint32_t, uint32_t, float, float) {}
template <uint32_t kVector, class T>
__global__ void FusedAddRMSNormKernel(T*, T*, T*, uint32_t, uint32_t, uint32_t, float, float) {}
template <uint32_t kVector, class T, class O>
__global__ void RMSNormQuantKernel(T*, T*, O*, uint32_t, uint32_t, uint32_t, float, float*, float) {
}
template <uint32_t kVector, class T, class O>
__global__ void FusedAddRMSNormQuantKernel(T*, T*, T*, O*, uint32_t, uint32_t, uint32_t, uint32_t,
                                           float, float*, float) {}
template __global__ void RMSNormKernel<8, __nv_bfloat16>(__nv_bfloat16*, __nv_bfloat16*,
                                                         __nv_bfloat16*, uint32_t, uint32_t,
                                                         uint32_t, float, float);
template __global__ void QKRMSNormKernel<8, __nv_bfloat16>(__nv_bfloat16*, __nv_bfloat16*,
                                                           __nv_bfloat16*, uint32_t, uint32_t,
                                                           uint32_t, uint32_t, uint32_t, uint32_t,
                                                           uint32_t, float, float);
template __global__ void FusedAddRMSNormKernel<8, __nv_bfloat16>(__nv_bfloat16*, __nv_bfloat16*,
                                                                 __nv_bfloat16*, uint32_t, uint32_t,
                                                                 uint32_t, float, float);
template __global__ void RMSNormQuantKernel<8, __nv_bfloat16, __nv_fp8_e4m3>(
    __nv_bfloat16*, __nv_bfloat16*, __nv_fp8_e4m3*, uint32_t, uint32_t, uint32_t, float, float*,
    float);
template __global__ void FusedAddRMSNormQuantKernel<8, __nv_bfloat16, __nv_fp8_e4m3>(
    __nv_bfloat16*, __nv_bfloat16*, __nv_bfloat16*, __nv_fp8_e4m3*, uint32_t, uint32_t, uint32_t,
    uint32_t, float, float*, float);
}  // namespace norm
namespace activation {
template <class T, float (*kActivation)(const float&)>
__global__ void act_and_mul_kernel(T*, const T*, int) {}
}  // namespace activation
template <bool kInterleave, uint32_t kHead, uint32_t kVector, uint32_t kThreads, class T, class Id>
__global__ void BatchQKApplyRotaryPosIdsCosSinCacheKernel(T*, T*, T*, T*, float*, Id*, uint32_t,
                                                          uint32_t, uint32_t, uint32_t, size_t,
                                                          size_t, size_t, size_t, size_t, size_t,
                                                          size_t, size_t) {}
template __global__ void
BatchQKApplyRotaryPosIdsCosSinCacheKernel<false, 128, 8, 16, __nv_bfloat16, int>(
    __nv_bfloat16*, __nv_bfloat16*, __nv_bfloat16*, __nv_bfloat16*, float*, int*, uint32_t,
    uint32_t, uint32_t, uint32_t, size_t, size_t, size_t, size_t, size_t, size_t, size_t, size_t);
template __global__ void
BatchQKApplyRotaryPosIdsCosSinCacheKernel<false, 128, 8, 16, __nv_bfloat16, int64_t>(
    __nv_bfloat16*, __nv_bfloat16*, __nv_bfloat16*, __nv_bfloat16*, float*, int64_t*, uint32_t,
    uint32_t, uint32_t, uint32_t, size_t, size_t, size_t, size_t, size_t, size_t, size_t, size_t);
}  // namespace flashinfer

// FlashInfer's own, and SGLang's.
__device__ float silu(const float& x) { return x; }
template <class T>
__device__ T silu(const T& x) {
  return x;
}
template __global__ void flashinfer::activation::act_and_mul_kernel<
    __nv_bfloat16, static_cast<float (*)(const float&)>(silu)>(__nv_bfloat16*, const __nv_bfloat16*,
                                                               int);
template __global__ void flashinfer::activation::act_and_mul_kernel<__nv_bfloat16, silu<float>>(
    __nv_bfloat16*, const __nv_bfloat16*, int);

namespace c10 {
struct BFloat16 {
  uint16_t bits;
};
}  // namespace c10

namespace vllm {
using c10::BFloat16;
template <class T>
struct _typeConvert {
  static constexpr bool exists = true;
};
template <class T>
__device__ T silu_kernel(const T& x) {
  return x;
}
template <class T>
__device__ T packed_silu_kernel(const T& x) {
  return x;
}
template <class T>
__global__ void rms_norm_kernel(T*, const T*, int64_t, const T*, float, int, int) {}
template <class T, int kVector, int kRank>
__global__ void rms_norm_kernel(T*, const T*, int64_t, int64_t, int64_t, int64_t, int64_t, const T*,
                                float, int, int) {}
template <class T, int kVector, int kRank, bool kHasWeight>
__global__ void rms_norm_kernel(T*, const T*, int64_t, int64_t, int64_t, int64_t, int64_t, const T*,
                                int64_t, float, int, int) {}
template <class scalar_t, int width>
__global__ std::enable_if_t<(width > 0) && _typeConvert<scalar_t>::exists>
fused_add_rms_norm_kernel(scalar_t*, int64_t, scalar_t*, const scalar_t*, float, int, int) {}
template <class scalar_t, int width, bool kHasWeight>
__global__ std::enable_if_t<(width > 0) && _typeConvert<scalar_t>::exists>
fused_add_rms_norm_kernel(scalar_t*, int64_t, scalar_t*, const scalar_t*, float, int, int) {}
template <class scalar_t, int width, bool kHasWeight>
__global__ std::enable_if_t<(width > 0) && _typeConvert<scalar_t>::exists>
fused_add_rms_norm_kernel(scalar_t*, int64_t, scalar_t*, const scalar_t*, float, int, int,
                          int64_t) {}
template <class T, class Cache, bool kIsNeox>
__global__ void rotary_embedding_kernel(const int64_t*, T*, T*, const Cache*, int, int64_t, int64_t,
                                        int64_t, int, int, int, int64_t, bool) {}
template <class T>
__device__ T silu_kernel(const T& x, float) {
  return x;
}
template <class T>
__device__ T packed_silu_kernel(const T& x, float) {
  return x;
}
template <class T, class P, T (*kActivation)(const T&, float), P (*kPacked)(const P&, float), bool,
          bool, bool, bool>
__global__ void act_and_mul_kernel(T*, const T*, int, float, float, float) {}
template <class T, T (*kActivation)(const T&), bool kActFirst>
__global__ void act_and_mul_kernel(T*, const T*, int) {}
template <class T, class P, T (*kActivation)(const T&), P (*kPacked)(const P&), bool, bool, bool>
__global__ void act_and_mul_kernel(T*, const T*, int) {}

template __global__ void rms_norm_kernel<BFloat16>(BFloat16*, const BFloat16*, int64_t,
                                                   const BFloat16*, float, int, int);
template __global__ void rms_norm_kernel<BFloat16, 8, 2>(BFloat16*, const BFloat16*, int64_t,
                                                         int64_t, int64_t, int64_t, int64_t,
                                                         const BFloat16*, float, int, int);
template __global__ void rms_norm_kernel<BFloat16, 8, 3>(BFloat16*, const BFloat16*, int64_t,
                                                         int64_t, int64_t, int64_t, int64_t,
                                                         const BFloat16*, float, int, int);
template __global__ void rms_norm_kernel<BFloat16, 8, 2, true>(BFloat16*, const BFloat16*, int64_t,
                                                               int64_t, int64_t, int64_t, int64_t,
                                                               const BFloat16*, int64_t, float, int,
                                                               int);
template __global__ void rms_norm_kernel<BFloat16, 8, 2, false>(BFloat16*, const BFloat16*, int64_t,
                                                                int64_t, int64_t, int64_t, int64_t,
                                                                const BFloat16*, int64_t, float,
                                                                int, int);
template __global__ void rms_norm_kernel<BFloat16, 8, 3, false>(BFloat16*, const BFloat16*, int64_t,
                                                                int64_t, int64_t, int64_t, int64_t,
                                                                const BFloat16*, int64_t, float,
                                                                int, int);
template __global__ void rms_norm_kernel<BFloat16, 8, 4, false>(BFloat16*, const BFloat16*, int64_t,
                                                                int64_t, int64_t, int64_t, int64_t,
                                                                const BFloat16*, int64_t, float,
                                                                int, int);
template __global__ void fused_add_rms_norm_kernel<BFloat16, 8>(BFloat16*, int64_t, BFloat16*,
                                                                const BFloat16*, float, int, int);
template __global__ void act_and_mul_kernel<BFloat16, silu_kernel<BFloat16>, true>(BFloat16*,
                                                                                   const BFloat16*,
                                                                                   int);
template __global__ void act_and_mul_kernel<BFloat16, __nv_bfloat162, silu_kernel<BFloat16>,
                                            packed_silu_kernel<__nv_bfloat162>, true, true, false>(
    BFloat16*, const BFloat16*, int);
template __global__ void act_and_mul_kernel<BFloat16, __nv_bfloat162, silu_kernel<BFloat16>,
                                            packed_silu_kernel<__nv_bfloat162>, false, true, false>(
    BFloat16*, const BFloat16*, int);
// Since 0.25.
template __global__ void fused_add_rms_norm_kernel<BFloat16, 8, true>(BFloat16*, int64_t, BFloat16*,
                                                                      const BFloat16*, float, int,
                                                                      int);
template __global__ void fused_add_rms_norm_kernel<BFloat16, 8, false>(BFloat16*, int64_t,
                                                                       BFloat16*, const BFloat16*,
                                                                       float, int, int);
template __global__ void fused_add_rms_norm_kernel<BFloat16, 8, false>(BFloat16*, int64_t,
                                                                       BFloat16*, const BFloat16*,
                                                                       float, int, int, int64_t);
template __global__ void rotary_embedding_kernel<BFloat16, BFloat16, true>(
    const int64_t*, BFloat16*, BFloat16*, const BFloat16*, int, int64_t, int64_t, int64_t, int, int,
    int, int64_t, bool);
template __global__ void act_and_mul_kernel<BFloat16, __nv_bfloat162, silu_kernel<BFloat16>,
                                            packed_silu_kernel<__nv_bfloat162>, true, true, false,
                                            false>(BFloat16*, const BFloat16*, int, float, float,
                                                   float);
template __global__ void act_and_mul_kernel<BFloat16, __nv_bfloat162, silu_kernel<BFloat16>,
                                            packed_silu_kernel<__nv_bfloat162>, true, true, true,
                                            false>(BFloat16*, const BFloat16*, int, float, float,
                                                   float);
}  // namespace vllm
