// C = A * B^T for up to 32 rows of A, of A and B in e4m3 with scales of 128 columns of K, as DeepGEMM applies them, with C in bfloat16: B is read once.
//
//   gemm_block_scaled_m16, _m32         a scale for each row of A and 128 columns, one for 128 rows of B and 128 columns
//   gemm_block_scaled_pair_m16, ...     the same by clusters of two blocks, each with half of K
//   gemm_block_scaled_two_pair_m16, ... the same with two warpgroups that multiply
//   gemm_block_scaled_quad_m32          the same by clusters of four
//
// How: wide_product.cuh.
#include "wide_product.cuh"

namespace fibshim {
namespace {

constexpr int kBlockOfScale = 128;  // columns of K, and rows of B
static_assert(kRowBytes / kPieces == kBlockOfScale);

__device__ inline void copy_4_bytes(uint32_t to, const void* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(from) : "memory");
}

// Adds a piece's sums, each times the scale of its row of A and that of its row of B. Of every four
// sums the first two belong to the thread's first row of B.
template <int kRows>
struct ScalingAdder {
  float4 b[2];  // the scales of the thread's rows of B, of each piece
  uint32_t a;   // the scales of the rows of A in shared memory: of one piece after another

  __device__ void add(float (&sums)[kRows / 2], const float (&part)[kRows / 2], int piece) const {
    const uint32_t from = a + (piece * kRows + threadIdx.x % 4 * 2) * 4;
    const float of_b[2] = {(&b[0].x)[piece], (&b[1].x)[piece]};
#pragma unroll
    for (int group = 0; group < kRows / 8; ++group) {
      float of_a[2];
      asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];"
                   : "=f"(of_a[0]), "=f"(of_a[1])
                   : "r"(from + group * 32));
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        sums[group * 4 + i] += of_a[i % 2] * of_b[i / 2] * part[group * 4 + i];
      }
    }
  }
};

template <int kRows>
struct ScalesOfBlocks {
  static constexpr bool kReadsLate = false;
  const float* a;  // [K / 128, pitch]
  const float* b;  // [N / 128, K / 128]
  int pitch;
  int pieces;
  int of_b[kMaxTiles][2] = {};

  // Leaves out the pieces of other blocks' parts of K.
  __device__ void skip(int count) {
    a += int64_t{count} * pitch;
    b += count;
  }
  // Copies A's scales of a chunk, by a warp.
  __device__ void copy_of_a(uint32_t to, int chunk, int rows) const {
#pragma unroll
    for (int i = threadIdx.x % 32; i < kPieces * kRows; i += 32) {
      const int row = i % kRows;
      if (row < rows) {
        copy_4_bytes(to + i * 4, a + int64_t{chunk * kPieces + i / kRows} * pitch + row);
      }
    }
  }
  template <int kTiles, int kWarpgroups>
  __device__ void begin(const Work& work, int pass, int first_unit) {
    const int warp = threadIdx.x / 32 % kWarpsOfGroup;
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      const int tile = tile_of_group<kWarpgroups>(i);
      if (tile >= work.tiles) break;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        // A tile with fewer units has sums that are not used.
        const int unit = min(work.begin_of(tile, pass) + warp * 2 + half, work.units_of(pass) - 1);
        of_b[i][half] =
            (first_unit + work.first_unit(pass) + unit) * kUnitRows / kBlockOfScale * pieces;
      }
    }
  }
  // B's are weights, which need not wait for the kernel before.
  __device__ ScalingAdder<kRows> adder(int i, int chunk, uint32_t scales) const {
    const float4* const from = reinterpret_cast<const float4*>(b) + chunk;
    return {{__ldg(from + of_b[i][0] / kPieces), __ldg(from + of_b[i][1] / kPieces)}, scales};
  }
  __device__ float finish(float sum, int, int, int, int, int, int) const { return sum; }
};

}  // namespace
}  // namespace fibshim

// M is at most the number of rows in the name. A [M, K], B [N, K] and its scales must be aligned to 16 bytes, C to 4. The scales of A are [K / 128, `pitch`].
#define FIBSHIM_KERNEL(name, rows, ...)                                                            \
  using name##_shape = fibshim::Shape<__nv_fp8_e4m3, __nv_bfloat16, fibshim::ScalesOfBlocks<rows>, \
                                      rows, __VA_ARGS__>;                                          \
  extern "C" __global__ void __launch_bounds__(name##_shape::kThreads, 1)                          \
      name(const __nv_fp8_e4m3* a, const __nv_fp8_e4m3* b, const float* scale_a,                   \
           const float* scale_b, __nv_bfloat16* c, int m, int n, int k, int pitch) {               \
    fibshim::multiply_rows<name##_shape>(a, b, {scale_a, scale_b, pitch, k / 128}, c, m, n, k);    \
  }

//                                   rows, tiles, KB of ring, stages of A, cluster, warpgroups
FIBSHIM_KERNEL(gemm_block_scaled_m16, 16, 2, 168, 3, 1, 2)
FIBSHIM_KERNEL(gemm_block_scaled_m32, 32, 2, 168, 3, 1, 2)
FIBSHIM_KERNEL(gemm_block_scaled_pair_m16, 16, 2, 144, 3, 2, 1)
FIBSHIM_KERNEL(gemm_block_scaled_pair_m32, 32, 2, 144, 3, 2, 1)
FIBSHIM_KERNEL(gemm_block_scaled_two_pair_m16, 16, 2, 144, 3, 2, 2)
FIBSHIM_KERNEL(gemm_block_scaled_two_pair_m32, 32, 1, 144, 3, 2, 2)
FIBSHIM_KERNEL(gemm_block_scaled_quad_m32, 32, 2, 144, 3, 4, 2)
