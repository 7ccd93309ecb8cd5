// C = A * B^T for up to 64 rows of A in bfloat16 or fp16 and weights B in 4 bits as vLLM's Machete prepacks them: B is read once.
//
//   gemm_w4a16_wide_m16_bf16, _m32_bf16, _m64_bf16   up to so many rows of A; weights are (q - 8) * scale
//   gemm_w4a16_wide_m16_offsets_bf16, ...            weights are q * scale + offset
//   gemm_w4a16_wide_four_m16_bf16, _five_m16_bf16    the same with four or five warpgroups that multiply in place of three
//   gemm_w4a16_wide_pair_m16_bf16, _four_quad_...    the same by clusters of two or four blocks, each with a part of K
//
// and each with fp16 in place of bf16.
//
// How: four_bits.cuh. Groups of 128 columns stream through a ring in shared memory: a thread loads B, a warp A, and two warps add up A's columns. A
// warpgroup multiplies four strips of B, from registers, with A, and scales a group's sums while it multiplies the next one, where registers suffice.
#include "four_bits.cuh"

namespace fibshim {
namespace {

constexpr int kWarpsOfGroup = 4;
constexpr int kSumming = 2;         // warps that add up A's columns
constexpr int kTileRowBytes = 128;  // 64 columns of A

// The sizes of a kernel: as many rows of A at most, so many warpgroups that multiply. It must be launched with kBytes of shared memory
// (config/shared/gemm_w4a16/wide_rows.table).
template <class InType, bool has_offsets, int rows, int warpgroups, int cluster, int stages>
struct Shape
    : FourBitShape<InType, has_offsets, rows, warpgroups * kWarpsOfGroup, 1, cluster, stages> {
  using Sizes =
      FourBitShape<InType, has_offsets, rows, warpgroups * kWarpsOfGroup, 1, cluster, stages>;
  using Sizes::kWarps;  // that multiply
  static constexpr int kThreads = (kWarps + kWarpsOfGroup) * 32;
  // Registers of a thread that multiplies, and of one that does not: together no more than all have at the start.
  static constexpr int kRegisters = warpgroups == 3 ? 144 : warpgroups == 4 ? 104 : 88;
  static constexpr int kFewRegisters = warpgroups == 3 ? 72 : warpgroups == 4 ? 64 : 40;
  static_assert(kRegisters * warpgroups + kFewRegisters <=
                65536 / kThreads / 8 * 8 * (warpgroups + 1));
  // Whether the next group overlaps with the sums of the one before: if there are registers for both.
  static constexpr bool kOverlaps = rows * warpgroups < 128;
  static constexpr int kHalves = rows == 64 && warpgroups == 4
                                     ? 1
                                     : 2;  // of a group whose operands are in registers at a time
  // A stage has two tiles of A, which begin at a multiple of 1024 bytes, as the instructions' layout of A asks; the strips' words of 64 columns and of
  // the next 64, their scales and offsets, the sums of A's columns, and barriers.
  static constexpr int kTileBytes = rows * kTileRowBytes;
  static constexpr int kWordBytes = kWarps * kStripBytes;
  static constexpr int kScaleBytes = kWarps * kStripRows * 2;
  static constexpr int kWords = 2 * kTileBytes;
  static constexpr int kScales = kWords + 2 * kWordBytes;
  static constexpr int kOffsets = kScales + kScaleBytes;
  static constexpr int kSumsOfA = kOffsets + kScaleBytes;
  static constexpr int kFull = kSumsOfA + rows * 4;
  static constexpr int kSummed = kFull + 8;  // A's columns, once it is full
  static constexpr int kEmpty = kFull + 16;
  static constexpr int kStage = (kFull + 24 + 1023) / 1024 * 1024;
  static constexpr int kBytes = stages * kStage;
  // A wait by parity cannot tell a phase from the second one after it, so a warp that adds up A's columns must take part in each phase of its stages.
  static_assert(stages % kSumming == 0);
  static_assert(stages >= 4);  // a warp that multiplies holds two while it waits for a third
  // Sums take the place of what was multiplied.
  static_assert(kWarps * rows * kSumPitch * 4 <= kBytes && kBytes <= 227 * 1024);
};

// A stage of the ring in shared memory, and the parity of its barriers' phase.
template <class Shape>
struct Position {
  uint32_t begin;
  uint32_t at;
  int parity = 0;
  __device__ explicit Position(uint32_t ring) : begin(ring), at(ring) {}
  __device__ void advance() {
    at += Shape::kStage;
    if (at == begin + Shape::kBytes) at = begin, parity ^= 1;
  }
};

// Returns where 16 bytes of a row of A are in a tile: the instructions' layout in lines of 128 bytes.
__device__ inline uint32_t in_tile(int row, int sixteen) {
  return row * kTileRowBytes + (sixteen ^ row % 8) * 16;
}

// Copies bytes, a multiple of 16, and lets the barrier know.
__device__ inline void copy_bytes(uint32_t to, const void* from, int bytes, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(to),
      "l"(from), "r"(bytes), "r"(barrier)
      : "memory");
}

// Returns the descriptor of an operand in shared memory, given the lower half of its first one's.
__device__ inline uint64_t operand(uint32_t lower) {
  constexpr uint32_t kEightRows = 8 * kTileRowBytes / 16;
  return uint64_t{1u << 30 | kEightRows} << 32 | lower;
}

// Adds the product of 64 rows of B, in registers, and all rows of A, 16 columns of each, to `d`, or stores it there.
#define FIBSHIM_MULTIPLY(type, n, kind, list, b0, b1, b2, b3, a_at, adds_at, ...)                \
  template <bool kAdds>                                                                          \
  [[maybe_unused]] __device__ inline void multiply_tile(Of<type>, float(&d)[n / 2],              \
                                                        const uint32_t(&b)[4], uint64_t a) {     \
    asm volatile("wgmma.mma_async.sync.aligned.m64n" #n kind " {" list "}, {" b0 ", " b1 ", " b2 \
                 ", " b3 "}, " a_at ", " adds_at ", 1, 1, 0;"                                    \
                 : __VA_ARGS__                                                                   \
                 : "r"(b[0]), "r"(b[1]), "r"(b[2]), "r"(b[3]), "l"(a), "n"(kAdds));              \
  }
#define FIBSHIM_MULTIPLY_OF(type, kind)                                                       \
  FIBSHIM_MULTIPLY(type, 16, kind, FIBSHIM_LIST_8, "%8", "%9", "%10", "%11", "%12", "%13",    \
                   FIBSHIM_8(0))                                                              \
  FIBSHIM_MULTIPLY(type, 32, kind, FIBSHIM_LIST_16, "%16", "%17", "%18", "%19", "%20", "%21", \
                   FIBSHIM_8(0), FIBSHIM_8(8))                                                \
  FIBSHIM_MULTIPLY(type, 64, kind, FIBSHIM_LIST_32, "%32", "%33", "%34", "%35", "%36", "%37", \
                   FIBSHIM_8(0), FIBSHIM_8(8), FIBSHIM_8(16), FIBSHIM_8(24))
FIBSHIM_MULTIPLY_OF(__nv_bfloat16, "k16.f32.bf16.bf16")
FIBSHIM_MULTIPLY_OF(__half, "k16.f32.f16.f16")

// What a block does: passes over its part of K, each with some of its strips; one pass if it is in a cluster. Blocks start at different
// groups, so that they do not all read the same piece of A at once.
template <class Shape>
struct Work : Part<Shape> {
  int passes;
  int first_group;

  __device__ Work(int m, int n, int k)
      : Part<Shape>(m, n, k),
        passes((this->strips + Shape::kWarps - 1) / Shape::kWarps),
        first_group(this->groups * (blockIdx.x / Shape::kCluster * Shape::kCluster) / gridDim.x) {}

  __device__ int begin_of(int pass) const { return this->strips * pass / passes; }
  __device__ int strips_of(int pass) const { return begin_of(pass + 1) - begin_of(pass); }
  // Calls `act` with each pass and each group of it.
  template <class Act>
  __device__ void for_each(Act act) const {
    for (int pass = 0; pass < passes; ++pass) {
      int group = first_group;
      for (int i = 0; i < this->groups; ++i) {
        act(pass, group);
        if (++group == this->groups) group = 0;
      }
    }
  }
};

// One thread loads what is multiplied of B. Weights need not wait for the kernel before ("reads_before_wait").
template <class Shape>
__device__ void load_b(const Work<Shape>& work, uint32_t ring, const char* b,
                       const typename Shape::In* scales, const typename Shape::In* offsets) {
  const int64_t n = work.n;
  const int64_t before = int64_t{work.rank} * work.groups;  // groups of the blocks before
  Position<Shape> to(ring);
  work.for_each([&](int pass, int group) {
    const int strips = work.strips_of(pass);
    const int64_t strip = work.first + work.begin_of(pass);
    const uint32_t full = to.at + Shape::kFull;
    wait(to.at + Shape::kEmpty, to.parity ^ 1);
    expect_bytes(full, strips * (2 * kStripBytes + (Shape::kHasOffsets ? 4 : 2) * kStripRows));
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int64_t block = (before + group) * 2 + half;
      copy_bytes(to.at + Shape::kWords + half * Shape::kWordBytes,
                 b + block * n * (kBlockColumns / 2) + strip * kStripBytes, strips * kStripBytes,
                 full);
    }
    const int64_t row = (before + group) * n + strip * kStripRows;
    copy_bytes(to.at + Shape::kScales, scales + row, strips * kStripRows * 2, full);
    if constexpr (Shape::kHasOffsets)
      copy_bytes(to.at + Shape::kOffsets, offsets + row, strips * kStripRows * 2, full);
    to.advance();
  });
}

// A warp loads A: a lane 16 bytes of every fourth row.
template <class Shape>
__device__ void load_a(const Work<Shape>& work, uint32_t ring, const typename Shape::In* a, int k) {
  const int lane = threadIdx.x % 32;
  const int row = lane / 8;
  a += int64_t{work.rank} * work.columns + int64_t{row} * k + lane % 8 * 8;
  const uint32_t in[2] = {in_tile(row, lane % 8), in_tile(row + 4, lane % 8)};
  Position<Shape> to(ring);
  wait_for_kernel_before();
  work.for_each([&](int, int group) {
    wait(to.at + Shape::kEmpty, to.parity ^ 1);
    const typename Shape::In* from = a + group * kGroupColumns;
#pragma unroll
    for (int i = 0; i < Shape::kRows / 4; ++i) {
      if (row + i * 4 < work.rows) {
        const uint32_t tile = to.at + in[i % 2] + i / 2 * 8 * kTileRowBytes;
        copy_16_bytes(tile, from);
        copy_16_bytes(tile + Shape::kTileBytes, from + kBlockColumns);
      }
      from += int64_t{k} * 4;
    }
    arrive_when_copied(to.at + Shape::kFull);
    to.advance();
  });
  asm volatile("cp.async.wait_all;" ::: "memory");
}

// Warp `number` of those that add up A's columns, which take turns.
template <class Shape>
__device__ void sum_columns(const Work<Shape>& work, uint32_t ring, char* shared, int number) {
  const int lane = threadIdx.x % 32;
  Position<Shape> from(ring);
  if (number != 0) from.advance();
  for (int i = number; i < work.groups * work.passes; i += kSumming) {
    float* const sums = reinterpret_cast<float*>(shared + (from.at - ring) + Shape::kSumsOfA);
    wait(from.at + Shape::kFull, from.parity);
#pragma unroll
    for (int row = 0; row < Shape::kRows; row += 8) {
      add_columns<typename Shape::In>(sums + row, [&](int column) {
        return from.at + column / kBlockColumns * Shape::kTileBytes +
               in_tile(row + lane % 8, column % kBlockColumns / 8 + lane / 8);
      });
    }
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    arrive(from.at + Shape::kSummed);
    from.advance();
    from.advance();
  }
}

// A warp's work: its strip of each pass.
template <class Shape>
struct Multiplier {
  using In = typename Shape::In;
  using Parts = float[Shape::kRows / 2];
  using Words = uint32_t[4];

  Position<Shape> next;  // the group loaded next
  int left;              // groups to load
  Words words[2];        // of the group begun next, 64 columns each
  uint32_t words_of;     // that group's stage
  int warp = threadIdx.x / 32;
  int lane = threadIdx.x % 32;

  __device__ Multiplier(uint32_t ring, int groups) : next(ring), left(groups) { load(); }
  __device__ void load() {
    if (left-- <= 0) return;
    wait(next.at + Shape::kSummed, next.parity);
    words_of = next.at;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      load_words(words[half],
                 words_of + Shape::kWords + half * Shape::kWordBytes + threadIdx.x * 16);
    }
    next.advance();
  }
  // Begins to multiply a group: two groups of instructions. On return those of the group before are complete. Returns the stage.
  template <class Between>
  __device__ uint32_t begin(Parts& part, Between between) {
    const uint32_t stage = words_of;
    const uint32_t a = __shfl_sync(~0u, 1 << 16 | stage / 16, 0);
    fence_sums(part);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      // The half whose registers these values take must be done: the one before the last, or the last.
      asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Shape::kHalves - 1) : "memory");
      uint32_t values[4][4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        expand_word<In>(values[i], words[half][i]);
#pragma unroll
        for (uint32_t& value : values[i]) asm volatile("" : "+r"(value));
      }
      asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
      const uint32_t at = a + half * (Shape::kTileBytes / 16);
      if (half == 0) {
        multiply_tile<false>(Of<In>{}, part, values[0], operand(at));
      } else {
        multiply_tile<true>(Of<In>{}, part, values[0], operand(at));
      }
#pragma unroll
      for (int i = 1; i < 4; ++i)
        multiply_tile<true>(Of<In>{}, part, values[i], operand(at + i * 2));
      asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
      if (half == 0) between();
    }
    return stage;
  }
  __device__ void load_scales(Scales<Shape>& scales, uint32_t stage) const {
    const uint32_t of_strip = stage + warp * kStripRows * 2;
    scales.load(of_strip + Shape::kScales, of_strip + Shape::kOffsets,
                stage + Shape::kSumsOfA + lane % 4 * 8);
  }
  // Adds a group's sums, whose instructions are done, and gives its stage back.
  __device__ void add(Sums<Shape::kEights>& sums, Parts& part, const Scales<Shape>& scales,
                      uint32_t stage) {
    fence_sums(part);
    scales.add(sums, part);
    fence_sums(reinterpret_cast<float(&)[Shape::kEights * 4]>(sums));
    __syncwarp();
    if (lane == 0) arrive(stage + Shape::kEmpty);
  }
  // Multiplies all groups of a pass.
  __device__ void multiply(Sums<Shape::kEights>& sums, int groups) {
    const auto wait_for_all = [] { asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory"); };
    Scales<Shape> scales;
    if constexpr (Shape::kOverlaps) {
      Parts even, odd;
      uint32_t of_even, of_odd;
      // Begins a group and adds the one before.
      const auto step = [&](Parts& part, uint32_t& stage, Parts& before, uint32_t stage_before) {
        stage = begin(part, [&] { load_scales(scales, stage_before); });
        load();
        add(sums, before, scales, stage_before);
      };
      const auto finish = [&](Parts& part, uint32_t stage) {
        load_scales(scales, stage);
        wait_for_all();
        add(sums, part, scales, stage);
      };
      of_even = begin(even, [] {});
      load();
      int group = 1;
      for (; group + 1 < groups; group += 2) {
        step(odd, of_odd, even, of_even);
        step(even, of_even, odd, of_odd);
      }
      if (group < groups) {
        step(odd, of_odd, even, of_even);
        finish(odd, of_odd);
      } else {
        finish(even, of_even);
      }
    } else {
      for (int group = 0; group < groups; ++group) {
        Parts part;
        const uint32_t stage = begin(part, [] {});
        load();
        wait_for_all();
        load_scales(scales, stage);
        add(sums, part, scales, stage);
      }
    }
  }
};

__device__ inline uint32_t transpose(uint32_t value) {
  uint32_t transposed;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(transposed) : "r"(value));
  return transposed;
}

template <class In>
__device__ inline uint32_t to_pair(float x, float y) {
  alignas(4) In pair[2];
  store_pair(pair, x, y);
  uint32_t bits;
  memcpy(&bits, pair, sizeof bits);
  return bits;
}

// Stores a strip's sums as C's.
template <class Shape>
__device__ inline void store_strip(typename Shape::In* c, const Sums<Shape::kEights>& sums,
                                   int64_t n, int rows) {
  const int lane = threadIdx.x % 32;
  const int row = lane / 4;
  c += int64_t{row} * n + lane % 4 * 2;
#pragma unroll
  for (int eight = 0; eight < Shape::kEights; ++eight) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint32_t pair =
          transpose(to_pair<typename Shape::In>(sums[eight][half * 2], sums[eight][half * 2 + 1]));
      if (eight * 8 + row < rows) *reinterpret_cast<uint32_t*>(c + half * 8) = pair;
    }
    c += n * 8;
  }
}

template <class Shape>
__device__ void multiply_rows(const typename Shape::In* a, const void* b,
                              const typename Shape::In* scales, const typename Shape::In* offsets,
                              typename Shape::In* out, int m, int n, int k) {
  extern __shared__ __align__(1024) char shared[];
  const int warp = threadIdx.x / 32;
  const Work<Shape> work(m, n, k);
  const uint32_t ring = shared_address(shared);
  if (threadIdx.x < Shape::kStages) {
    const uint32_t stage = ring + threadIdx.x * Shape::kStage;
    make_barrier(stage + Shape::kFull, 1 + 32);
    make_barrier(stage + Shape::kSummed, 32);
    make_barrier(stage + Shape::kEmpty, Shape::kWarps);
    publish_barriers();
  }
  __syncthreads();
  if (warp >= Shape::kWarps) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Shape::kFewRegisters));
    const int role = warp - Shape::kWarps;
    if (role == 0) {
      if (threadIdx.x % 32 == 0) load_b(work, ring, static_cast<const char*>(b), scales, offsets);
    } else if (role == 1) {
      load_a(work, ring, a, k);
    } else {
      sum_columns(work, ring, shared, role - 2);
    }
    return;
  }
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Shape::kRegisters));
  Multiplier<Shape> multiplier(ring, work.groups * work.passes);
  if constexpr (Shape::kCluster == 1) {
    wait_for_kernel_before();
    for (int pass = 0; pass < work.passes; ++pass) {
      Sums<Shape::kEights> sums = {};
      multiplier.multiply(sums, work.groups);
      const int strip = work.begin_of(pass) + warp;
      if (strip < work.begin_of(pass + 1))
        store_strip<Shape>(out + int64_t{work.first + strip} * kStripRows, sums, n, work.rows);
    }
  } else {
    Sums<Shape::kEights> sums = {};
    multiplier.multiply(sums, work.groups);
    wait_for_kernel_before();
    // All have read what was multiplied, which makes place for sums; the barriers among it are not used any more.
    asm volatile("bar.sync 1, %0;" ::"n"(Shape::kWarps * 32) : "memory");
    float* const sums_of_strips = reinterpret_cast<float*>(shared);
    if (warp < work.strips)
      store_sums<Shape::kEights>(sums_of_strips + warp * Shape::kSums, sums, threadIdx.x % 32);
    work.add_blocks(out, sums_of_strips);
  }
}

}  // namespace
}  // namespace fibshim

// M is at most the number of rows in the name. A, B, scales and offsets must be aligned to 16 bytes, C to 4. A cluster has at least one
// strip, and at most as many as a block has warps that multiply.
#define FIBSHIM_KERNELS(name, ...) FIBSHIM_FOUR_BIT_KERNELS(Shape, multiply_rows, name, __VA_ARGS__)

//                                             rows, warpgroups, cluster, stages
FIBSHIM_KERNELS(gemm_w4a16_wide_m16, 16, 3, 1, 12)
FIBSHIM_KERNELS(gemm_w4a16_wide_four_m16, 16, 4, 1, 10)
FIBSHIM_KERNELS(gemm_w4a16_wide_five_m16, 16, 5, 1, 8)
FIBSHIM_KERNELS(gemm_w4a16_wide_pair_m16, 16, 3, 2, 12)
FIBSHIM_KERNELS(gemm_w4a16_wide_quad_m16, 16, 3, 4, 12)
FIBSHIM_KERNELS(gemm_w4a16_wide_four_quad_m16, 16, 4, 4, 10)
FIBSHIM_KERNELS(gemm_w4a16_wide_five_quad_m16, 16, 5, 4, 8)
FIBSHIM_KERNELS(gemm_w4a16_wide_m32, 32, 3, 1, 10)
FIBSHIM_KERNELS(gemm_w4a16_wide_four_m32, 32, 4, 1, 8)
FIBSHIM_KERNELS(gemm_w4a16_wide_five_m32, 32, 5, 1, 6)
FIBSHIM_KERNELS(gemm_w4a16_wide_pair_m32, 32, 3, 2, 10)
FIBSHIM_KERNELS(gemm_w4a16_wide_quad_m32, 32, 3, 4, 10)
FIBSHIM_KERNELS(gemm_w4a16_wide_four_quad_m32, 32, 4, 4, 8)
FIBSHIM_KERNELS(gemm_w4a16_wide_five_quad_m32, 32, 5, 4, 6)
FIBSHIM_KERNELS(gemm_w4a16_wide_m64, 64, 3, 1, 6)
FIBSHIM_KERNELS(gemm_w4a16_wide_pair_m64, 64, 3, 2, 6)
FIBSHIM_KERNELS(gemm_w4a16_wide_quad_m64, 64, 3, 4, 6)
FIBSHIM_KERNELS(gemm_w4a16_wide_four_quad_m64, 64, 4, 4, 6)
