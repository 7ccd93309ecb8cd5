// C = A * B^T for up to 64 rows of A: streams the weights B, which are read once.
//
// N is a multiple of 8. A block's part of K is a multiple of 256, or of 512 in fp8; kernels with a
// tail take a multiple of 8, and zeros for what the last blocks' parts lack. The rows of B
// are divided among the blocks.
//
// Four warps stream B through a ring in shared memory, one streams A, and one or two warpgroups
// multiply: their instructions take 64 rows of B as their first operand, and A as their second. A
// warpgroup holds the sums of up to `tiles` times 64 rows of B while it goes through K, so a block
// reads A once for that many rows, or for twice as many, if two warpgroups take turns: with 224 of
// 28672 rows of B in each of 128 blocks, 32 rows of A are a seventh of B's bytes. Blocks start at
// different columns, so that they do not all read the same piece of A at once.
#pragma once

#include <cuda_fp8.h>

#include "product.cuh"

namespace fibshim {
namespace {

constexpr int kRowBytes = 512;    // bytes of K in a stage
constexpr int kUnitRows = 8;      // of B: the unit that blocks divide, and the rows of an atom
constexpr int kUnitsOfTile = 8;   // at most: an instruction's 64 rows
constexpr int kAtomBytes = 1024;  // 8 rows of 128 bytes, swizzled in 16 bytes by the row's number
constexpr int kPieces = kRowBytes / 128;  // of a row in a stage, each in its own atom
constexpr int kWarpsOfGroup = 4;
constexpr int kStreams = 4;  // warps that copy B
constexpr int kMaxStages = 32;
constexpr int kMaxTiles = 4;  // of a warpgroup

// Whether operands beyond A and B scale the sums of each piece of K: those of A then come in A's stages.
template <class More>
constexpr bool kScalesPieces = requires {
  &More::copy_of_a;
};

// The sizes of a kernel. It must be launched with kBytes of shared memory
// (config/shared/gemm_wide). A cluster must get no more rows of B than the tiles hold, since its
// blocks exchange sums once (tests/shim/plan/shipped_products_test.cc).
template <class InType, class OutType, class MoreOfC, int rows, int tiles, int ring_kb,
          int stages_of_a, int cluster, int warpgroups, bool has_tail = false>
struct Shape {
  using In = InType;
  using Out = OutType;
  using More = MoreOfC;
  static constexpr int kColumns = kRowBytes / sizeof(In);  // of K, in a stage
  static constexpr int kRows = rows;                       // of A at most
  static constexpr int kTiles = tiles;  // whose sums a warpgroup holds, of 64 rows of B each
  static constexpr int kWarpgroups = warpgroups;
  static constexpr int kMultipliers = warpgroups * kWarpsOfGroup;
  static constexpr int kThreads = (kMultipliers + kStreams + 1) * 32;
  static constexpr int kCluster = cluster;
  static constexpr bool kHasTail = has_tail;
  static constexpr int kGroups = rows / 8;
  static constexpr int kOwnGroups = kGroups / cluster;  // 8-row groups of A that a block finishes
  static constexpr int kRing = ring_kb * 1024;
  static constexpr int kStagesOfA = stages_of_a;
  static constexpr int kStageOfA = rows * kRowBytes;
  static constexpr int kScales = kRing + kStagesOfA * kStageOfA;
  static constexpr int kScalesOfStage = kScalesPieces<More> ? rows * kPieces * 4 : 0;
  static constexpr int kBarriers = kScales + kStagesOfA * kScalesOfStage;
  static constexpr int kBarriersEnd =
      kBarriers + (2 * (kMaxStages + kStagesOfA) + (cluster > 1 ? 2 : 0)) * 8;
  static constexpr int kInboxStep = kMultipliers * 32 * 16;  // four sums of each thread
  static constexpr int kInboxBytes = (cluster - 1) * tiles * kOwnGroups * kInboxStep;
  // If there is no room for it, the inbox takes the place of the ring, once all have been read.
  static constexpr bool kReusesRing = kBarriersEnd + kInboxBytes > 227 * 1024;
  static constexpr int kInbox = kReusesRing ? 0 : kBarriersEnd;
  static constexpr int kBytes = kReusesRing ? kBarriersEnd : kInbox + kInboxBytes;
  static_assert(kBytes <= 227 * 1024 && tiles <= kMaxTiles && kInboxBytes <= kRing);
  static_assert(kGroups % cluster == 0);
  // An instruction reads 64 rows even if a tile has fewer; the sums of the others are not used.
  static_assert(kBarriers - kRing >= kUnitsOfTile * kAtomBytes);
};

// Returns the descriptor of an operand, whose atoms follow one another.
__device__ inline uint64_t operand_at(uint32_t shared) {
  return uint64_t{1} << 62 | uint64_t{kAtomBytes / 16} << 32 | uint64_t{1} << 16 | shared / 16;
}

// Adds the product of 64 rows of B and all rows of A, 32 bytes of each, to `d`, or stores it there. Of every four sums
// of a thread, the first two belong to its first row of B and two adjacent rows of A, the other two
// to its second row of B.
#define FIBSHIM_MULTIPLY(type, n, kind, rest, list, b_at, a_at, adds_at, ...)                   \
  template <bool kAdds = true>                                                                  \
  [[maybe_unused]] __device__ inline void multiply_tile(Of<type>, float(&d)[n / 2], uint64_t b, \
                                                        uint64_t a) {                           \
    asm volatile("wgmma.mma_async.sync.aligned.m64n" #n kind " {" list "}, " b_at ", " a_at     \
                 ", " adds_at ", 1, 1" rest ";"                                                 \
                 : __VA_ARGS__                                                                  \
                 : "l"(b), "l"(a), "n"(kAdds));                                                 \
  }
#define FIBSHIM_MULTIPLY_OF(type, kind, rest)                                                \
  FIBSHIM_MULTIPLY(type, 16, kind, rest, FIBSHIM_LIST_8, "%8", "%9", "%10", FIBSHIM_8(0))    \
  FIBSHIM_MULTIPLY(type, 32, kind, rest, FIBSHIM_LIST_16, "%16", "%17", "%18", FIBSHIM_8(0), \
                   FIBSHIM_8(8))                                                             \
  FIBSHIM_MULTIPLY(type, 64, kind, rest, FIBSHIM_LIST_32, "%32", "%33", "%34", FIBSHIM_8(0), \
                   FIBSHIM_8(8), FIBSHIM_8(16), FIBSHIM_8(24))
FIBSHIM_MULTIPLY_OF(__nv_bfloat16, "k16.f32.bf16.bf16", ", 0, 0")
FIBSHIM_MULTIPLY_OF(__half, "k16.f32.f16.f16", ", 0, 0")
FIBSHIM_MULTIPLY_OF(__nv_fp8_e4m3, "k32.f32.e4m3.e4m3", "")

// A position in a ring of stages, and the parity of the barrier that says that the stage is full.
struct RingPosition {
  int stages;
  int stage = 0;
  int parity = 0;
  __device__ void advance() {
    if (++stage == stages) stage = 0, parity ^= 1;
  }
  __device__ void advance(int by) {
    stage += by;
    while (stage >= stages) stage -= stages, parity ^= 1;
  }
};

// A block's work: passes over K, each with some tiles. A stage holds one tile's part of one chunk
// of K. Stages go chunk by chunk from `first_chunk` on, wrapping around.
struct Work {
  int units;
  int passes;
  int tiles;
  int chunks;
  int first_chunk;
  int units_of_stage;  // a stage's capacity

  __device__ int first_unit(int pass) const { return units * pass / passes; }
  __device__ int units_of(int pass) const { return first_unit(pass + 1) - first_unit(pass); }
  // Returns the chunk that is number `i` of a pass.
  __device__ int chunk(int i) const {
    return first_chunk + i < chunks ? first_chunk + i : first_chunk + i - chunks;
  }
  // Returns where a tile begins and the one before it ends, in units from the pass's first.
  __device__ int begin_of(int tile, int pass) const { return units_of(pass) * tile / tiles; }
};

// Returns the tile that is number `i` of those whose sums this thread's warpgroup holds.
template <int kWarpgroups>
__device__ inline int tile_of_group(int i) {
  return kWarpgroups == 1 ? i : i * kWarpgroups + threadIdx.x / (kWarpsOfGroup * 32);
}

template <bool kHasTail>
__device__ inline void copy(uint32_t to, const char* from, [[maybe_unused]] bool is_there) {
  if constexpr (kHasTail) {
    copy_16_bytes_or_zeros(to, from, is_there);
  } else {
    copy_16_bytes(to, from);
  }
}

// Warp `stream` copies two rows of each unit. A lane copies 16 bytes of a row. `row_bytes`: of the
// row, from b on.
template <bool kHasTail>
__device__ void stream_b(const Work& work, const char* b, int64_t pitch, int64_t row_bytes,
                         int stream, uint32_t ring, uint32_t full, uint32_t empty,
                         RingPosition at) {
  const int lane = threadIdx.x % 32;
  const int row = stream * 2;
  const uint32_t piece = lane / 8 * work.units_of_stage * kAtomBytes;
  const uint32_t to = ring + piece + row * 128 + (lane % 8 ^ row) * 16;
  const uint32_t to_next_row = ring + piece + (row + 1) * 128 + (lane % 8 ^ (row + 1)) * 16;
  b += row * pitch + lane * 16;
  for (int pass = 0; pass < work.passes; ++pass) {
    int chunk = work.first_chunk;
    for (int i = 0; i < work.chunks; ++i) {
      const bool is_there = chunk * kRowBytes + lane * 16 < row_bytes;
      for (int tile = 0; tile < work.tiles; ++tile) {
        const int begin = work.begin_of(tile, pass);
        const int units = work.begin_of(tile + 1, pass) - begin;
        const char* from =
            b + (work.first_unit(pass) + begin) * kUnitRows * pitch + chunk * kRowBytes;
        uint32_t offset = at.stage * work.units_of_stage * kPieces * kAtomBytes;
        wait(empty + at.stage * 8, at.parity ^ 1);
#pragma unroll 4
        for (int unit = 0; unit < units; ++unit) {
          copy<kHasTail>(to + offset, from, is_there);
          copy<kHasTail>(to_next_row + offset, from + pitch, is_there);
          from += kUnitRows * pitch;
          offset += kAtomBytes;
        }
        arrive_when_copied(full + at.stage * 8);
        at.advance();
      }
      if (++chunk == work.chunks) chunk = 0;
    }
  }
  asm volatile("cp.async.wait_all;" ::: "memory");
}

template <class Shape>
__device__ void stream_a(const Work& work, const char* a, int64_t pitch, int64_t row_bytes,
                         int rows, uint32_t ring, uint32_t full, uint32_t empty,
                         const typename Shape::More& more, uint32_t scales) {
  const int lane = threadIdx.x % 32;
  RingPosition at{Shape::kStagesOfA};
  int chunk = work.first_chunk;
  for (int i = 0; i < work.chunks * work.passes; ++i) {
    const char* from = a + chunk * kRowBytes + lane * 16;
    const bool is_there = chunk * kRowBytes + lane * 16 < row_bytes;
    const uint32_t to = ring + at.stage * Shape::kStageOfA + lane / 8 * Shape::kRows * 128;
    wait(empty + at.stage * 8, at.parity ^ 1);
#pragma unroll 8
    for (int row = 0; row < rows; ++row) {
      copy<Shape::kHasTail>(to + row * 128 + (lane % 8 ^ row % 8) * 16, from, is_there);
      from += pitch;
    }
    if constexpr (kScalesPieces<typename Shape::More>) {
      more.copy_of_a(scales + at.stage * Shape::kScalesOfStage, chunk, rows);
    }
    arrive_when_copied(full + at.stage * 8);
    at.advance();
    if (++chunk == work.chunks) chunk = 0;
  }
  asm volatile("cp.async.wait_all;" ::: "memory");
}

// Operands beyond A and B, applied to the sums by finish(). begin() is called before each pass, the
// first time before the wait for the kernel before; read() once, after the first piece of A has
// arrived. finish() is given the number of the tile among those of the warpgroup.
struct Nothing {
  static constexpr bool kReadsLate = false;
  template <int kTiles, int kWarpgroups>
  __device__ void begin(const Work&, int, int) {}
  __device__ float finish(float sum, int, int, int, int, int, int) const { return sum; }
};

// A bias for the columns of C, added to each row.
template <class T>
struct Bias {
  static constexpr bool kReadsLate = false;
  const T* from;
  float values[kMaxTiles][2] = {};

  template <int kTiles, int kWarpgroups>
  __device__ void begin(const Work& work, int pass, int first_unit) {
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
        values[i][half] = to_float(__ldg(from + column + threadIdx.x % 32 / 4));
      }
    }
  }
  __device__ float finish(float sum, int i, int half, int, int, int, int) const {
    return sum + values[i][half];
  }
};

// An addend [M, N]. C may overwrite it, since a warp reads the elements that it then writes.
template <class T>
struct Addend {
  static constexpr bool kReadsLate = true;
  const T* from;
  int64_t columns = 0;  // before those of the pass

  template <int kTiles, int kWarpgroups>
  __device__ void begin(const Work& work, int pass, int first_unit) {
    columns = int64_t{first_unit + work.first_unit(pass)} * kUnitRows;
  }
  __device__ void read() { wait_for_kernel_before(); }
  __device__ float finish(float sum, int, int, int unit, int row, int m, int n) const {
    const int column = unit * kUnitRows + threadIdx.x % 32 / 4;
    return row < m ? sum + to_float(from[int64_t{row} * n + columns + column]) : sum;
  }
};

// One scale for all of A and one for all of B.
struct Scales {
  static constexpr bool kReadsLate = true;
  const float* a;
  const float* b;
  float value = 0;

  template <int kTiles, int kWarpgroups>
  __device__ void begin(const Work&, int, int) {}
  __device__ void read() {
    wait_for_kernel_before();
    value = *a * *b;
  }
  __device__ float finish(float sum, int, int, int, int, int, int) const { return sum * value; }
};

// Stores the sums of `kCount` groups of 8 rows of A, from group `kFirst` on, for the tiles of a
// pass.
template <int kWarpgroups, int kFirst, int kCount, int kTiles, int kSums, class More, class Out>
__device__ void store_sums(const float (&sums)[kTiles][kSums], const More& more, const Work& work,
                           int pass, Out* c, int m, int n) {
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32 % kWarpsOfGroup;
#pragma unroll
  for (int i = 0; i < kTiles; ++i) {
    const int tile = tile_of_group<kWarpgroups>(i);
    if (tile >= work.tiles) break;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int unit = work.begin_of(tile, pass) + warp * 2 + half;
      if (unit >= work.begin_of(tile + 1, pass)) break;
      Out* const columns = c + int64_t{unit} * kUnitRows;
#pragma unroll
      for (int group = kFirst; group < kFirst + kCount; ++group) {
        const int first_row = group * 8 + lane % 4 * 2;
        const float x = more.finish(sums[i][group * 4 + half * 2], i, half, unit, first_row, m, n);
        const float y =
            more.finish(sums[i][group * 4 + half * 2 + 1], i, half, unit, first_row + 1, m, n);
        if constexpr (sizeof(Out) == 2) {
          // Transpose from two rows of one column per thread to two columns of one row.
          uint32_t turned;
          asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;"
              : "=r"(turned)
              : "r"(Pair<Out>::pack({x, y})));
          const int row = group * 8 + lane / 4;
          if (row < m) {
            *reinterpret_cast<uint32_t*>(columns + int64_t{row} * n + lane % 4 * 2) = turned;
          }
        } else {
          const int row = group * 8 + lane % 4 * 2;
          Out* const to = columns + int64_t{row} * n + lane / 4;
          if (row < m) to[0] = x;
          if (row + 1 < m) to[n] = y;
        }
      }
    }
  }
}

// Sends each other block of the cluster the sums of its groups, and adds the received ones to those
// of its own, the groups from rank * kOwnGroups on. `received`: a barrier that counts their bytes.
template <class Shape>
__device__ void add_of_cluster(float (&sums)[Shape::kTiles][Shape::kRows / 2], int tiles,
                               uint32_t inbox, uint32_t received, int rank) {
  constexpr int kOwn = Shape::kOwnGroups;
  constexpr int kCluster = Shape::kCluster;
  constexpr int kInboxOfBlock = Shape::kTiles * kOwn * Shape::kInboxStep;
  inbox += threadIdx.x * 16;
  if constexpr (Shape::kReusesRing) arrive_at_cluster();
  wait_for_cluster();  // the others have begun, or no longer need their rings
#pragma unroll
  for (int other = 0; other < kCluster; ++other) {
    if (other == rank) continue;
    uint32_t to, barrier;
    asm("mapa.shared::cluster.u32 %0, %1, %2;"
        : "=r"(to)
        : "r"(inbox + (rank < other ? rank : rank - 1) * kInboxOfBlock), "r"(other));
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(barrier) : "r"(received), "r"(other));
#pragma unroll
    for (int i = 0; i < Shape::kTiles; ++i) {
      if (tile_of_group<Shape::kWarpgroups>(i) >= tiles) break;
#pragma unroll
      for (int own = 0; own < kOwn; ++own) {
        const float* const x = &sums[i][(other * kOwn + own) * 4];
        asm volatile(
            "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, "
            "[%5];" ::"r"(to + (i * kOwn + own) * Shape::kInboxStep),
            "f"(x[0]), "f"(x[1]), "f"(x[2]), "f"(x[3]), "r"(barrier)
            : "memory");
      }
    }
  }
  if (threadIdx.x == 0) {
    expect_bytes(received, (kCluster - 1) * tiles * kOwn * kWarpsOfGroup * 32 * 16);
  }
  wait_for_bytes(received, 0);
#pragma unroll
  for (int first = 0; first < kCluster; ++first) {  // for indexes that are known to the compiler
    if (first != rank) continue;
#pragma unroll
    for (int other = 0; other < kCluster - 1; ++other) {
#pragma unroll
      for (int i = 0; i < Shape::kTiles; ++i) {
        if (tile_of_group<Shape::kWarpgroups>(i) >= tiles) break;
#pragma unroll
        for (int own = 0; own < kOwn; ++own) {
          float x[4];
          asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                       : "=f"(x[0]), "=f"(x[1]), "=f"(x[2]), "=f"(x[3])
                       : "r"(inbox + other * kInboxOfBlock + (i * kOwn + own) * Shape::kInboxStep)
                       : "memory");
#pragma unroll
          for (int j = 0; j < 4; ++j) sums[i][(first * kOwn + own) * 4 + j] += x[j];
        }
      }
    }
  }
}

// Multiplies a stage's rows of B, `units` times 8, by the rows of A.
template <class In, int kRows>
__device__ void multiply_stage(float (&sums)[kRows / 2], uint64_t b, uint64_t a, int units) {
#pragma unroll
  for (int piece = 0; piece < kPieces; ++piece) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      multiply_tile(Of<In>{}, sums, b + piece * units * (kAtomBytes / 16) + i * 2,
                    a + piece * (kRows * 128 / 16) + i * 2);
    }
  }
  asm volatile("wgmma.commit_group.sync.aligned;\n\twgmma.wait_group.sync.aligned 0;" ::: "memory");
}

// The same in fp8, whose instructions accumulate with fewer bits than fp32: sums at most 128
// columns at a time.
template <int kRows>
__device__ void multiply_stage_of_fp8(float (&sums)[kRows / 2], uint64_t b, uint64_t a, int units) {
#pragma unroll 1
  for (int piece = 0; piece < kPieces; ++piece) {
    float part[kRows / 2] = {};
    fence_sums(part);
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      multiply_tile(Of<__nv_fp8_e4m3>{}, part, b + piece * units * (kAtomBytes / 16) + i * 2,
                    a + piece * (kRows * 128 / 16) + i * 2);
    }
    asm volatile("wgmma.commit_group.sync.aligned;\n\twgmma.wait_group.sync.aligned 0;" ::
                     : "memory");
    fence_sums(part);
#pragma unroll
    for (int i = 0; i < kRows / 2; ++i) sums[i] += part[i];
  }
}

// The same, with the sums of each piece scaled, while the next is multiplied.
template <int kRows, class Adder>
__device__ void multiply_scaled_stage(float (&sums)[kRows / 2], uint64_t b, uint64_t a, int units,
                                      const Adder& adder) {
  float parts[2][kRows / 2] = {};
  const auto begin = [&](float(&part)[kRows / 2], int piece) {
    const uint64_t b_at = b + piece * units * (kAtomBytes / 16);
    const uint64_t a_at = a + piece * (kRows * 128 / 16);
    fence_sums(part);
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
    multiply_tile<false>(Of<__nv_fp8_e4m3>{}, part, b_at, a_at);
#pragma unroll
    for (int i = 1; i < 4; ++i) {
      multiply_tile(Of<__nv_fp8_e4m3>{}, part, b_at + i * 2, a_at + i * 2);
    }
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
  };
  begin(parts[0], 0);
#pragma unroll
  for (int piece = 0; piece < kPieces; ++piece) {
    if (piece + 1 < kPieces) {
      begin(parts[(piece + 1) % 2], piece + 1);
      asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
    } else {
      asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
    }
    fence_sums(parts[piece % 2]);
    adder.add(sums, parts[piece % 2], piece);
  }
}

template <class Shape>
__device__ void multiply_rows(const typename Shape::In* a, const typename Shape::In* b,
                              typename Shape::More more, typename Shape::Out* out, int m, int n,
                              int k) {
  using In = typename Shape::In;
  constexpr int kRows = Shape::kRows;
  constexpr int kTiles = Shape::kTiles;
  constexpr int kCluster = Shape::kCluster;
  constexpr int kWarpgroups = Shape::kWarpgroups;
  constexpr int kMultipliers = Shape::kMultipliers;
  extern __shared__ __align__(1024) char shared[];
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  const uint32_t ring = shared_address(shared);
  const uint32_t ring_of_a = ring + Shape::kRing;
  const uint32_t full = ring + Shape::kBarriers;
  const uint32_t empty = full + kMaxStages * 8;
  const uint32_t full_of_a = empty + kMaxStages * 8;
  const uint32_t empty_of_a = full_of_a + Shape::kStagesOfA * 8;
  [[maybe_unused]] const uint32_t received = empty_of_a + Shape::kStagesOfA * 8;

  const int rank = blockIdx.x % kCluster;
  const int share = blockIdx.x / kCluster;
  const int shares = gridDim.x / kCluster;
  const int part = blockIdx.y * kCluster + rank;  // of K
  const int all_units = n / kUnitRows;
  const int first = static_cast<int>(int64_t{all_units} * share / shares);
  Work work;
  work.units = static_cast<int>(int64_t{all_units} * (share + 1) / shares) - first;
  constexpr int kUnitsOfPass = kTiles * kWarpgroups * kUnitsOfTile;
  work.passes = (work.units + kUnitsOfPass - 1) / kUnitsOfPass;
  if (work.passes == 0) {
    wait_for_kernel_before();
    return;
  }
  const int most_units = (work.units + work.passes - 1) / work.passes;
  work.tiles = (most_units + kUnitsOfTile - 1) / kUnitsOfTile;
  if constexpr (Shape::kHasTail) {
    work.chunks = (k + Shape::kColumns * kCluster - 1) / (Shape::kColumns * kCluster);
  } else {
    work.chunks = k / Shape::kColumns / (gridDim.y * kCluster);
  }
  work.first_chunk = blockIdx.x % work.chunks;
  work.units_of_stage = (most_units + work.tiles - 1) / work.tiles;
  const int stage_bytes = work.units_of_stage * kPieces * kAtomBytes;
  RingPosition at{min(Shape::kRing / stage_bytes, kMaxStages)};

  if (threadIdx.x == 0) {
    for (int i = 0; i < at.stages; ++i) {
      make_barrier(full + i * 8, kStreams * 32);
      make_barrier(empty + i * 8, kWarpsOfGroup);
    }
    for (int i = 0; i < Shape::kStagesOfA; ++i) {
      make_barrier(full_of_a + i * 8, 32);
      make_barrier(empty_of_a + i * 8, kMultipliers);
    }
    if constexpr (kCluster > 1) make_barrier(received, 1);
    publish_barriers();
  }
  __syncthreads();
  if constexpr (kCluster > 1) arrive_at_cluster();

  const int64_t pitch = int64_t{k} * sizeof(In);
  const int64_t offset = int64_t{part} * work.chunks * kRowBytes;
  const uint32_t scales = ring + Shape::kScales;
  if constexpr (kScalesPieces<typename Shape::More>) more.skip(part * work.chunks * kPieces);
  if (warp == kMultipliers + kStreams) {
    wait_for_kernel_before();
    stream_a<Shape>(work, reinterpret_cast<const char*>(a) + offset, pitch, pitch - offset,
                    min(m, kRows), ring_of_a, full_of_a, empty_of_a, more, scales);
    return;
  }
  if (warp >= kMultipliers) {
    // Weights need not wait for the kernel before ("reads_before_wait").
    stream_b<Shape::kHasTail>(
        work, reinterpret_cast<const char*>(b) + offset + int64_t{first} * kUnitRows * pitch, pitch,
        pitch - offset, warp - kMultipliers, ring, full, empty, at);
    return;
  }

  out += int64_t{blockIdx.y} * m * n + int64_t{first} * kUnitRows;
  RingPosition at_a{Shape::kStagesOfA};
  const int warpgroup = tile_of_group<kWarpgroups>(0);
  if constexpr (kWarpgroups > 1) at.advance(warpgroup);
  if constexpr (kCluster > 1 && Shape::kReusesRing) wait_for_cluster();
  for (int pass = 0; pass < work.passes; ++pass) {
    float sums[kTiles][kRows / 2] = {};
    more.template begin<kTiles, kWarpgroups>(work, pass, first);
    for (int chunk = 0; chunk < work.chunks; ++chunk) {
      wait(full_of_a + at_a.stage * 8, at_a.parity);
      if constexpr (Shape::More::kReadsLate) {
        if (pass == 0 && chunk == 0) more.read();
      }
      const uint64_t a_at = operand_at(ring_of_a + at_a.stage * Shape::kStageOfA);
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
        const int tile = tile_of_group<kWarpgroups>(i);
        if (tile >= work.tiles) break;
        wait(full + at.stage * 8, at.parity);
        const uint64_t b_at = operand_at(ring + at.stage * stage_bytes);
        // The copies wrote through the generic proxy, and the instructions read through the async
        // proxy.
        asm volatile("fence.proxy.async.shared::cta;\n\twgmma.fence.sync.aligned;" ::: "memory");
        if constexpr (kScalesPieces<typename Shape::More>) {
          multiply_scaled_stage<kRows>(
              sums[i], b_at, a_at, work.units_of_stage,
              more.adder(i, work.chunk(chunk), scales + at_a.stage * Shape::kScalesOfStage));
        } else if constexpr (sizeof(In) == 1) {
          multiply_stage_of_fp8<kRows>(sums[i], b_at, a_at, work.units_of_stage);
        } else {
          multiply_stage<In, kRows>(sums[i], b_at, a_at, work.units_of_stage);
        }
        if (lane == 0) arrive(empty + at.stage * 8);
        if constexpr (kWarpgroups == 1) {
          at.advance();
        } else {  // to the next tile of this warpgroup, or to its first of the next chunk
          const bool is_last = tile + kWarpgroups >= work.tiles;
          at.advance(is_last ? work.tiles + warpgroup - tile : kWarpgroups);
        }
      }
      if constexpr (kScalesPieces<typename Shape::More>) __syncwarp();  // all have read the scales
      if (lane == 0) arrive(empty_of_a + at_a.stage * 8);
      at_a.advance();
    }
    typename Shape::Out* const c = out + int64_t{work.first_unit(pass)} * kUnitRows;
    if constexpr (kCluster == 1) {
      store_sums<kWarpgroups, 0, Shape::kGroups>(sums, more, work, pass, c, m, n);
    } else {
      constexpr int kOwn = Shape::kOwnGroups;
      add_of_cluster<Shape>(sums, work.tiles, ring + Shape::kInbox, received, rank);
      const auto store_own = [&]<int kRank>() {
        if (kRank == rank) {
          store_sums<kWarpgroups, kRank * kOwn, kOwn>(sums, more, work, pass, c, m, n);
        }
      };
      store_own.template operator()<0>();
      store_own.template operator()<1>();
      if constexpr (kCluster == 4) {
        store_own.template operator()<2>();
        store_own.template operator()<3>();
      }
    }
  }
}

}  // namespace
}  // namespace fibshim
