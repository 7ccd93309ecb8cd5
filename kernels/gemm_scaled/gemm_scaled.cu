// C = A * B^T for up to 64 rows of A, of A and B in e4m3, times scales as vLLM applies them, with C in bfloat16: B is read once.
//
//   gemm_scaled_m16_tensor, _m32_, _m64_  one scale for all of A, one for all of B
//   gemm_scaled_m16_token, ...            a scale for each row of A, one for all of B
//   gemm_scaled_m16_channel, ...          a scale for each row of A, one for each row of B
//   gemm_scaled_pair_m16_tensor, ...      the same by clusters of two blocks, each with half of K
//   gemm_scaled_flat_pair_m64_tensor, ... the same with less room for B and more for A
//   gemm_scaled_quad_m32_tensor, ...      the same by clusters of four
//
// How: wide_product.cuh.
#include "wide_product.cuh"

namespace fibshim {
namespace {

// C = scale of B * (scale of A * sum).
template <int kRows, bool kPerToken, bool kPerChannel>
struct ScalesOfRows {
  static constexpr bool kReadsLate = true;
  const float* a;
  const float* b;
  int m;
  float of_a[kRows / 8][2] = {};
  float of_b[kPerChannel ? kMaxTiles : 1][2] = {};

  // B's are weights, which need not wait for the kernel before.
  template <int kTiles, int kWarpgroups>
  __device__ void begin(const Work& work, int pass, int first_unit) {
    if constexpr (!kPerChannel) {
      of_b[0][0] = __ldg(b);
    } else {
      const int warp = threadIdx.x / 32 % kWarpsOfGroup;
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
        const int tile = tile_of_group<kWarpgroups>(i);
        if (tile >= work.tiles) break;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int unit = work.begin_of(tile, pass) + warp * 2 + half;
          if (unit >= work.begin_of(tile + 1, pass)) break;
          const int column = (first_unit + work.first_unit(pass) + unit) * kUnitRows;
          of_b[i][half] = __ldg(b + column + threadIdx.x % 32 / 4);
        }
      }
    }
  }
  __device__ void read() {
    wait_for_kernel_before();
#pragma unroll
    for (int group = 0; group < kRows / 8; ++group) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int row = group * 8 + threadIdx.x % 4 * 2 + i;
        if (row < m) of_a[group][i] = a[kPerToken ? row : 0];
      }
    }
  }
  __device__ float finish(float sum, int i, int half, int, int row, int, int) const {
    const int place = row - static_cast<int>(threadIdx.x % 4 * 2);  // known to the compiler
    const float scale = kPerChannel ? of_b[i][half] : of_b[0][0];
    return scale * (of_a[place / 8][place % 2] * sum);
  }
};

}  // namespace
}  // namespace fibshim

// M is at most the number of rows in the name. A [M, K] and B [N, K] must be aligned to 16 bytes, C to 4.
#define FIBSHIM_KERNEL(name, per_token, per_channel, rows, ...)                               \
  using name##_shape =                                                                        \
      fibshim::Shape<__nv_fp8_e4m3, __nv_bfloat16,                                            \
                     fibshim::ScalesOfRows<rows, per_token, per_channel>, rows, __VA_ARGS__>; \
  extern "C" __global__ void __launch_bounds__(name##_shape::kThreads, 1)                     \
      name(const __nv_fp8_e4m3* a, const __nv_fp8_e4m3* b, const float* scale_a,              \
           const float* scale_b, __nv_bfloat16* c, int m, int n, int k) {                     \
    fibshim::multiply_rows<name##_shape>(a, b, {scale_a, scale_b, m}, c, m, n, k);            \
  }
#define FIBSHIM_KERNELS(name, ...)                         \
  FIBSHIM_KERNEL(name##_tensor, false, false, __VA_ARGS__) \
  FIBSHIM_KERNEL(name##_token, true, false, __VA_ARGS__)   \
  FIBSHIM_KERNEL(name##_channel, true, true, __VA_ARGS__)

//                           rows, tiles, KB of ring, stages of A, cluster, warpgroups
FIBSHIM_KERNELS(gemm_scaled_m16, 16, 4, 168, 3, 1, 1)
FIBSHIM_KERNELS(gemm_scaled_m32, 32, 4, 168, 3, 1, 1)
FIBSHIM_KERNELS(gemm_scaled_m64, 64, 2, 128, 3, 1, 2)
FIBSHIM_KERNELS(gemm_scaled_pair_m16, 16, 2, 144, 3, 2, 1)
FIBSHIM_KERNELS(gemm_scaled_pair_m32, 32, 2, 144, 3, 2, 1)
FIBSHIM_KERNELS(gemm_scaled_pair_m64, 64, 1, 128, 3, 2, 2)
FIBSHIM_KERNELS(gemm_scaled_flat_pair_m64, 64, 2, 96, 4, 2, 1)
FIBSHIM_KERNELS(gemm_scaled_quad_m32, 32, 2, 144, 3, 4, 2)
