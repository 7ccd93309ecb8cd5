// Shared by the matrix products of up to 8 rows of A, which stay in registers while B is streamed.
// A warp has some columns of K; the sums of all warps are added up in shared memory, once for every
// 16 rows of B.
#pragma once

#include "product.cuh"

namespace fibshim {

constexpr int kRows = 8;            // of A at most
constexpr int kStageColumns = 128;  // of K, in one stage of a warp's ring
constexpr int kStageRows = 8;       // of B, in one stage
constexpr int kStageBytes = kStageRows * kStageColumns * 2;
constexpr int kTileRows = 16;  // rows of B whose sums are added up together
constexpr int kPairs = kTileRows / 2;

// Returns the place of a row's pair of sums in shared memory. The stores of a warp go to different
// banks.
__device__ inline int sum_index(int row, int pair) {
  return row * kTileRows + (pair ^ (row / 2 % 2 * 4)) * 2;
}

__device__ inline Vector load_from_shared(uint32_t at) {
  Vector v;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.pairs[0]), "=r"(v.pairs[1]), "=r"(v.pairs[2]), "=r"(v.pairs[3])
               : "r"(at));
  return v;
}

// Returns the sum of `count` pairs, `pitch` floats apart.
template <int count>
__device__ inline float2 add_up(const float* from, int pitch) {
  float2 sum = {0, 0};
#pragma unroll
  for (int i = 0; i < count; ++i) {
    const float2 part = *reinterpret_cast<const float2*>(from + i * pitch);
    sum.x += part.x;
    sum.y += part.y;
  }
  return sum;
}

// Calls `work` once for each index below `count`, a multiple of 32, each in one thread. If there
// are fewer indexes than threads, the warps take turns from tile to tile, since the work delays
// their streams.
template <int warps, int count, class Work>
__device__ inline void share_among_warps(int tile, Work work) {
  constexpr int kBusy = count / 32;
  const int warp = threadIdx.x / 32;
#pragma unroll
  for (int first = 0; first < kBusy; first += warps) {
    const int turn = kBusy < warps ? (warp + tile * (warps - kBusy)) % warps : first + warp;
    if (turn < kBusy) work(turn * 32 + static_cast<int>(threadIdx.x % 32));
  }
}

// Adds to `sums` the product of a stage: `a` is what the lane holds of A's columns, `at` where B's
// row `group` of the stage begins in shared memory. Of every 32 columns a lane has eight adjacent
// ones, of A and of B: the order of columns does not affect the sums. The halves of 64 bytes of odd
// rows are exchanged, so that the eight lanes of an access, which read two rows, use different
// banks.
template <class In>
__device__ inline void multiply_stage(float (&sums)[4], const Vector* a, uint32_t at, int group,
                                      int quad) {
#pragma unroll
  for (int i = 0; i < kStageColumns / 32; ++i) {
    const Vector w = load_from_shared(at + ((i * 4 + quad) ^ (group % 2 * 4)) * 16);
    const Vector& x = a[i];
#pragma unroll
    for (int j = 0; j < 4; j += 2) {  // the instruction's lower eight rows are zero
      multiply_pairs<In>(sums, x.pairs[j], 0, x.pairs[j + 1], 0, w.pairs[j], w.pairs[j + 1]);
    }
  }
}

}  // namespace fibshim
