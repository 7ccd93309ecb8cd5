// FlashInfer's norm and activation kernels alone, for `tests/gpu/kernels.py --flashinfer`: compiled from
// FlashInfer's own headers, with the flags of its own builds, where a copy of them lies:
//
//   nvcc -cubin -arch=sm_90 -O3 -std=c++17 -use_fast_math -I<flashinfer>/include
//     tests/gpu/flashinfer_kernels.cu -o flashinfer.sm_90.cubin
#include <cmath>
#include <numeric>

#include <flashinfer/norm.cuh>

#include <flashinfer/activation.cuh>

// As flashinfer/jit/activation.py has it.
__device__ __forceinline__ float silu(const float& val) { return val / (1.0f + __expf(-val)); }

template __global__ void flashinfer::norm::RMSNormKernel<8, __nv_bfloat16>(
    __nv_bfloat16*, __nv_bfloat16*, __nv_bfloat16*, uint32_t, uint32_t, uint32_t, float, float);
template __global__ void flashinfer::norm::FusedAddRMSNormKernel<8, __nv_bfloat16>(
    __nv_bfloat16*, __nv_bfloat16*, __nv_bfloat16*, uint32_t, uint32_t, uint32_t, float, float);
template __global__ void flashinfer::activation::act_and_mul_kernel<__nv_bfloat16, silu>(
    __nv_bfloat16*, const __nv_bfloat16*, int);
