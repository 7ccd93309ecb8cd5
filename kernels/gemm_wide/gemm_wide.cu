// C = A * B^T for up to 64 rows of A: streams the weights B, which are read once.
//
//   gemm_wide_m16_bf16, _m32_, _m64_  C [M, N] in bfloat16; at most 16, 32 or 64 rows
//   gemm_wide_deep_m64_bf16, _flat_   the same with more room for B and less for A, and conversely
//   gemm_wide_pair_m16_bf16, ...      the same by clusters of two blocks, each with half of K, if a
//                                     block's share of N is small; at most 128 rows of B to each
//                                     cluster
//   gemm_wide_large_pair_m64_bf16     the same with at most 256 rows of B to each cluster
//   gemm_wide_quad_m32_bf16           the same by clusters of four; at most 256 rows of B
//   gemm_wide_part_m16_bf16, _m32_    partial sums [gridDim.y, M, N] in fp32, of a part of K each
//   gemm_wide_m16_bias_bf16, ...      the first two, with a bias [N] added to each row in fp32
//   gemm_wide_pair_m16_add_bf16, ...  the second, with an addend [M, N], which C may overwrite
//   gemm_wide_tail_m16_bf16, ...      some of these for any K that is a multiple of 8, only in
//                                     bfloat16
//   gemm_wide_m16_fp16, ...           all others in fp16
//   gemm_wide_m16_fp8, ...            the first two for A and B in e4m3, times their scales, with C
//                                     in bfloat16
//
// How: wide_product.cuh.
#include "wide_product.cuh"

// M is at most the number of rows in the name. A [M, K] and B [N, K] must be aligned to 16 bytes, C
// and partial sums to 4.
#define FIBSHIM_KERNEL(name, in, out_type, ...)                                     \
  using name##_shape = fibshim::Shape<in, out_type, fibshim::Nothing, __VA_ARGS__>; \
  extern "C" __global__ void __launch_bounds__(name##_shape::kThreads, 1)           \
      name(const in* a, const in* b, out_type* out, int m, int n, int k) {          \
    fibshim::multiply_rows<name##_shape>(a, b, {}, out, m, n, k);                   \
  }
#define FIBSHIM_KERNEL_WITH(operand, name, type, ...)                                      \
  using name##_shape = fibshim::Shape<type, type, fibshim::operand<type>, __VA_ARGS__>;    \
  extern "C" __global__ void __launch_bounds__(name##_shape::kThreads, 1)                  \
      name(const type* a, const type* b, const type* more, type* c, int m, int n, int k) { \
    fibshim::multiply_rows<name##_shape>(a, b, {more}, c, m, n, k);                        \
  }
#define FIBSHIM_KERNEL_OF_FP8(name, ...)                                                           \
  using name##_shape = fibshim::Shape<__nv_fp8_e4m3, __nv_bfloat16, fibshim::Scales, __VA_ARGS__>; \
  extern "C" __global__ void __launch_bounds__(name##_shape::kThreads, 1)                          \
      name(const __nv_fp8_e4m3* a, const __nv_fp8_e4m3* b, const float* scale_a,                   \
           const float* scale_b, __nv_bfloat16* c, int m, int n, int k) {                          \
    fibshim::multiply_rows<name##_shape>(a, b, {scale_a, scale_b}, c, m, n, k);                    \
  }
#define FIBSHIM_KERNELS(name, ...)                                       \
  FIBSHIM_KERNEL(name##_bf16, __nv_bfloat16, __nv_bfloat16, __VA_ARGS__) \
  FIBSHIM_KERNEL(name##_fp16, __half, __half, __VA_ARGS__)
#define FIBSHIM_KERNELS_OF_ALL(name, ...)                                 \
  FIBSHIM_KERNELS(name, __VA_ARGS__)                                      \
  FIBSHIM_KERNEL_OF_FP8(name##_fp8, __VA_ARGS__)                          \
  FIBSHIM_KERNEL_WITH(Bias, name##_bias_bf16, __nv_bfloat16, __VA_ARGS__) \
  FIBSHIM_KERNEL_WITH(Bias, name##_bias_fp16, __half, __VA_ARGS__)
#define FIBSHIM_KERNELS_WITH_ADDEND(name, ...)                             \
  FIBSHIM_KERNEL_WITH(Addend, name##_add_bf16, __nv_bfloat16, __VA_ARGS__) \
  FIBSHIM_KERNEL_WITH(Addend, name##_add_fp16, __half, __VA_ARGS__)
#define FIBSHIM_KERNELS_OF_BF16_WITH_BIAS(name, ...) \
  FIBSHIM_KERNEL_WITH(Bias, name##_bias_bf16, __nv_bfloat16, __VA_ARGS__)
#define FIBSHIM_KERNELS_OF_TAIL(name, ...) \
  FIBSHIM_KERNEL(name##_bf16, __nv_bfloat16, __nv_bfloat16, __VA_ARGS__, true)
#define FIBSHIM_KERNELS_OF_TAIL_WITH_BIAS(name, ...) \
  FIBSHIM_KERNEL_WITH(Bias, name##_bias_bf16, __nv_bfloat16, __VA_ARGS__, true)
#define FIBSHIM_KERNELS_OF_PARTS(name, ...)                      \
  FIBSHIM_KERNEL(name##_bf16, __nv_bfloat16, float, __VA_ARGS__) \
  FIBSHIM_KERNEL(name##_fp16, __half, float, __VA_ARGS__)

//                                  rows, tiles, KB of ring, stages of A, cluster, warpgroups
FIBSHIM_KERNELS_OF_ALL(gemm_wide_m16, 16, 4, 168, 3, 1, 1)
FIBSHIM_KERNELS_OF_ALL(gemm_wide_m32, 32, 4, 168, 3, 1, 1)
FIBSHIM_KERNELS(gemm_wide_m64, 64, 2, 128, 3, 1, 2)
FIBSHIM_KERNELS(gemm_wide_deep_m64, 64, 2, 160, 2, 1, 2)
FIBSHIM_KERNELS(gemm_wide_flat_m64, 64, 2, 96, 4, 1, 2)
FIBSHIM_KERNELS_OF_ALL(gemm_wide_pair_m16, 16, 2, 144, 3, 2, 1)
FIBSHIM_KERNELS_OF_ALL(gemm_wide_pair_m32, 32, 2, 144, 3, 2, 1)
FIBSHIM_KERNELS(gemm_wide_pair_m64, 64, 1, 128, 3, 2, 2)
FIBSHIM_KERNELS(gemm_wide_flat_pair_m64, 64, 2, 96, 4, 2, 1)
FIBSHIM_KERNELS(gemm_wide_large_pair_m64, 64, 2, 128, 3, 2, 2)
FIBSHIM_KERNELS(gemm_wide_quad_m32, 32, 2, 144, 3, 4, 2)
FIBSHIM_KERNELS_WITH_ADDEND(gemm_wide_pair_m16, 16, 2, 144, 3, 2, 1)
FIBSHIM_KERNELS_WITH_ADDEND(gemm_wide_pair_m32, 32, 2, 144, 3, 2, 1)
FIBSHIM_KERNELS_OF_BF16_WITH_BIAS(gemm_wide_flat_pair_m64, 64, 2, 96, 4, 2, 1)
FIBSHIM_KERNELS_OF_TAIL(gemm_wide_tail_m16, 16, 4, 168, 3, 1, 1)
FIBSHIM_KERNELS_OF_TAIL(gemm_wide_tail_m32, 32, 4, 168, 3, 1, 1)
FIBSHIM_KERNELS_OF_TAIL(gemm_wide_tail_m64, 64, 2, 128, 3, 1, 2)
FIBSHIM_KERNELS_OF_TAIL_WITH_BIAS(gemm_wide_tail_pair_m16, 16, 2, 144, 3, 2, 1)
FIBSHIM_KERNELS_OF_TAIL_WITH_BIAS(gemm_wide_tail_pair_m32, 32, 2, 144, 3, 2, 1)
FIBSHIM_KERNELS_OF_TAIL_WITH_BIAS(gemm_wide_tail_pair_m64, 64, 1, 128, 3, 2, 2)
FIBSHIM_KERNELS_OF_PARTS(gemm_wide_part_m16, 16, 2, 160, 3, 1, 1)
FIBSHIM_KERNELS_OF_PARTS(gemm_wide_part_m32, 32, 2, 160, 3, 1, 1)
