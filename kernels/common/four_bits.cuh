// Shared by the products with weights B in 4 bits, which have a scale for each row of B and 128 columns, and may have an offset for them.
//
// B lies as vLLM's Machete prepacks it: blocks of 128 rows by 64 columns, all rows' before the next columns'. A block is 8 strips of 16 rows; of a
// strip each lane has 16 bytes, which are its part of four operands of the tensor cores' instructions (16 rows by 16 columns). Of the eight
// values of a word, the pair i is in bits 4 i and 4 i + 16.
//
// The four bits become part of a number from 128 on (fp16: 16), and the sums of 128 columns are corrected by those of A's columns. So a scale is
// applied once for 128 products, in fp32.
#pragma once

#include "product.cuh"

namespace fibshim {

constexpr int kStripRows = 16;      // of B
constexpr int kGroupColumns = 128;  // of K, that share a scale
constexpr int kBlockColumns = 64;   // of K, in a block of B
constexpr int kStripBytes = kStripRows * kBlockColumns / 2;
constexpr int kSumPitch = kStripRows + 4;  // floats, so that a warp's stores go to different banks

// A kernel's sizes.
template <class InType, bool has_offsets, int rows, int warps, int splits, int cluster, int stages>
struct FourBitShape {
  using In = InType;
  static constexpr bool kHasOffsets = has_offsets;
  static constexpr int kRows = rows;  // of A at most
  static constexpr int kWarps = warps;
  static constexpr int kThreads = warps * 32;
  static constexpr int kSplits = splits;  // warps that divide K among them
  static constexpr int kStrips = warps / splits;
  static constexpr int kCluster = cluster;  // blocks, each with a part of K
  static constexpr int kStages = stages;
  static constexpr int kEights = rows / 8;
  static constexpr int kSums = rows * kSumPitch;  // of a strip
};

// The bits of two numbers of which four, from kPlace on, are replaced by weights; their value; and the bits of two ones.
template <class In>
struct Base {
  static constexpr bool kIsHalf = std::is_same_v<In, __half>;
  static constexpr uint32_t kBits = kIsHalf ? 0x4c004c00 : 0x43004300;
  static constexpr int kPlace = kIsHalf ? 6 : 0;
  static constexpr uint32_t kMask = 0x000f000f << kPlace;
  static constexpr float kValue = kIsHalf ? 16 : 128;
  static constexpr uint32_t kOnes = kIsHalf ? 0x3c003c00 : 0x3f803f80;
};

__device__ inline void load_words(uint32_t (&to)[4], uint32_t at) {
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(at));
}

template <class T>
__device__ inline float load_shared(uint32_t at) {
  unsigned short bits;
  asm volatile("ld.shared.u16 %0, [%1];" : "=h"(bits) : "r"(at));
  T value;
  memcpy(&value, &bits, sizeof value);
  return to_float(value);
}

// A strip's sums of a lane: of each eight rows of A two of them, of the lane's first row of B and of its second.
template <int kEights>
using Sums = float[kEights][4];

template <class In>
__device__ inline uint32_t replace_bits(uint32_t word) {
  uint32_t value;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;"  // word & mask | base
      : "=r"(value)
      : "r"(word), "n"(Base<In>::kMask), "r"(Base<In>::kBits));
  return value;
}

// Turns a word into operands of one instruction: rows 0 to 7 and 8 to 15 of columns 0 to 7, and of columns 8 to 15.
template <class In>
__device__ inline void expand_word(uint32_t (&values)[4], uint32_t word) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int left = Base<In>::kPlace - i * 4;
    values[i] = replace_bits<In>(left >= 0 ? word << left : word >> -left);
  }
}

// How a lane's products of a group are scaled, and what its values' base is corrected by.
template <class Shape>
struct Scales {
  float scale[2];                  // of the lane's first row of B and of its second
  float offset[2];                 // likewise, of A's sums
  float2 columns[Shape::kEights];  // the sums of two rows' columns of A

  // `scales` and `offsets`: where the strip's begin; `of_a`: the sums of A's columns, of the lane's first row of A.
  __device__ void load(uint32_t scales, uint32_t offsets, uint32_t of_a) {
    using In = typename Shape::In;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int at = (threadIdx.x % 32 / 4 + i * 8) * 2;
      scale[i] = load_shared<In>(scales + at);
      offset[i] = Shape::kHasOffsets ? load_shared<In>(offsets + at) - Base<In>::kValue * scale[i]
                                     : -(Base<In>::kValue + 8) * scale[i];
    }
#pragma unroll
    for (int eight = 0; eight < Shape::kEights; ++eight) {
      asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];"
                   : "=f"(columns[eight].x), "=f"(columns[eight].y)
                   : "r"(of_a + eight * 32));
    }
  }
  // Adds the sums of the group's products to a lane's.
  __device__ void add(Sums<Shape::kEights>& sums, const float (&part)[Shape::kEights * 4]) const {
#pragma unroll
    for (int eight = 0; eight < Shape::kEights; ++eight) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float& sum = sums[eight][i];
        sum = fmaf(offset[i / 2], i % 2 == 0 ? columns[eight].x : columns[eight].y, sum);
        sum = fmaf(scale[i / 2], part[eight * 4 + i], sum);
      }
    }
  }
};

// Adds up 128 columns of 8 rows of A, by a warp. `operands_at`: where a lane's row of 8 columns begins, of each 32 columns. The last 16 of these
// take the place of rows 8 to 15 of an instruction's first operand; the second one is all ones, so each column of the result has the sums.
template <class In, class OperandsAt>
__device__ inline void add_columns(float* to, OperandsAt operands_at) {
  constexpr uint32_t kOnes = Base<In>::kOnes;
  constexpr int kLoads = kGroupColumns / 32;
  float sums[2][4] = {};  // apart, so that instructions need not wait for each other
  uint32_t a[kLoads][4];
#pragma unroll
  for (int i = 0; i < kLoads; ++i) load_operands(a[i], operands_at(i * 32));
#pragma unroll
  for (int i = 0; i < kLoads; ++i)
    multiply_pairs<In>(sums[i % 2], a[i][0], a[i][2], a[i][1], a[i][3], kOnes, kOnes);
  const int lane = threadIdx.x % 32;
  if (lane % 4 == 0) to[lane / 4] = sums[0][0] + sums[1][0] + (sums[0][2] + sums[1][2]);
}

// Stores a lane's sums, [rows of A][kSumPitch].
template <int kEights>
__device__ inline void store_sums(float* to, const Sums<kEights>& sums, int lane) {
#pragma unroll
  for (int eight = 0; eight < kEights; ++eight) {
#pragma unroll
    for (int i = 0; i < 4; ++i)
      to[(eight * 8 + lane % 4 * 2 + i % 2) * kSumPitch + lane / 4 + i / 2 * 8] = sums[eight][i];
  }
}

__device__ inline float2 load_pair_of_block(uint32_t at, int rank) {
  float2 sum;
  asm volatile(
      "{\n\t.reg .b32 there;\n\tmapa.shared::cluster.u32 there, %2, %3;\n\t"
      "ld.shared::cluster.v2.f32 {%0, %1}, [there];\n\t}"
      : "=f"(sum.x), "=f"(sum.y)
      : "r"(at), "r"(rank)
      : "memory");
  return sum;
}

// What a block has of the product.
template <class Shape>
struct Part {
  int n;
  int rows;     // of A
  int rank;     // of the cluster's parts of K
  int columns;  // of K
  int groups;
  int first;  // strip of B
  int strips;

  __device__ Part(int m, int n, int k)
      : n(n),
        rows(min(m, Shape::kRows)),
        rank(Shape::kCluster > 1 ? blockIdx.x % Shape::kCluster : 0) {
    const unsigned share = blockIdx.x / Shape::kCluster;
    const unsigned shares = gridDim.x / Shape::kCluster;
    const unsigned all = n / kStripRows;
    columns = k / Shape::kCluster;
    groups = columns / kGroupColumns;
    first = all * share / shares;
    strips = all * (share + 1) / shares - first;
  }
  // Stores a pair of a strip's row.
  template <class In>
  __device__ void store(In* out, int strip, int row, int pair, float2 sum) const {
    store_pair(out + int64_t{row} * n + (first + strip) * kStripRows + pair * 2, sum.x, sum.y);
  }
  // Adds up what the cluster's blocks have stored of their strips, each its share of the strips. Called by the kWarps warps only.
  template <class In>
  __device__ void add_blocks(In* out, float* sums) const {
    constexpr int kPairs = kStripRows / 2;
    arrive_at_cluster();
    wait_for_cluster();
    const int begin = strips * rank / Shape::kCluster;
    const int end = strips * (rank + 1) / Shape::kCluster;
    for (int i = threadIdx.x; i < (end - begin) * Shape::kRows * kPairs; i += Shape::kWarps * 32) {
      const int row = i / kPairs % Shape::kRows;
      const int strip = begin + i / kPairs / Shape::kRows;
      if (row >= rows) continue;
      const uint32_t at =
          shared_address(sums + strip * Shape::kSums + row * kSumPitch + i % kPairs * 2);
      float2 sum = {0, 0};
#pragma unroll
      for (int j = 0; j < Shape::kCluster; ++j) {
        const float2 part = load_pair_of_block(at, j);
        sum = {sum.x + part.x, sum.y + part.y};
      }
      store(out, strip, row, i % kPairs, sum);
    }
    // A block must not end before the others have read its shared memory.
    arrive_at_cluster();
    wait_for_cluster();
  }
};

}  // namespace fibshim

// The kernels of one size, of each form: `multiply` with sizes `shape`.
#define FIBSHIM_FOUR_BIT_KERNEL(shape, multiply, name, in, ...)                        \
  using name##_shape = fibshim::shape<in, false, __VA_ARGS__>;                         \
  extern "C" __global__ void __launch_bounds__(name##_shape::kThreads, 1)              \
      name(const in* a, const void* b, const in* scales, in* c, int m, int n, int k) { \
    fibshim::multiply<name##_shape>(a, b, scales, nullptr, c, m, n, k);                \
  }
#define FIBSHIM_FOUR_BIT_KERNEL_WITH_OFFSETS(shape, multiply, name, in, ...)                     \
  using name##_shape = fibshim::shape<in, true, __VA_ARGS__>;                                    \
  extern "C" __global__ void __launch_bounds__(name##_shape::kThreads, 1)                        \
      name(const in* a, const void* b, const in* scales, const in* offsets, in* c, int m, int n, \
           int k) {                                                                              \
    fibshim::multiply<name##_shape>(a, b, scales, offsets, c, m, n, k);                          \
  }
#define FIBSHIM_FOUR_BIT_KERNELS(shape, multiply, name, ...)                                \
  FIBSHIM_FOUR_BIT_KERNEL(shape, multiply, name##_bf16, __nv_bfloat16, __VA_ARGS__)         \
  FIBSHIM_FOUR_BIT_KERNEL(shape, multiply, name##_fp16, __half, __VA_ARGS__)                \
  FIBSHIM_FOUR_BIT_KERNEL_WITH_OFFSETS(shape, multiply, name##_offsets_bf16, __nv_bfloat16, \
                                       __VA_ARGS__)                                         \
  FIBSHIM_FOUR_BIT_KERNEL_WITH_OFFSETS(shape, multiply, name##_offsets_fp16, __half, __VA_ARGS__)
