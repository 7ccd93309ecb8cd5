// C = A * B^T for up to 16 rows of A in bfloat16 or fp16 and weights B in 4 bits as vLLM's Machete prepacks them: B is read once.
//
//   gemm_w4a16_m8_bf16, _pair_m16_bf16, ...   up to so many rows of A; weights are (q - 8) * scale
//   gemm_w4a16_m8_offsets_bf16, ...           weights are q * scale + offset
//   gemm_w4a16_six_m8_bf16, ...               the same with another number of strips at a time
//   gemm_w4a16_pair_m8_..., _quad_m8_...      the same by clusters of two or four blocks, each with a part of K
//
// and each with fp16 in place of bf16.
//
// How: four_bits.cuh. The block's part of A stays in shared memory. Of each strip of B four or two warps divide K among them; a warp streams
// groups of 16 rows by 128 columns through its own part of shared memory, each lane what it multiplies itself. The warps add up their sums in shared
// memory, and so do the blocks of a cluster.
#include "four_bits.cuh"

namespace fibshim {
namespace {

constexpr int kScalesAt = kGroupColumns / kBlockColumns * kStripBytes;  // in a stage
constexpr int kOffsetsAt = kScalesAt + kStripRows * 2;
constexpr int kStageBytes = kOffsetsAt + kStripRows * 2;

// What a warp loads: of its strips, one after the other, its groups of the block's part of K.
template <class Shape>
class Stream {
 public:
  using In = typename Shape::In;
  // The strip is the warp's first, of all of B.
  __device__ Stream(const char* weights, const In* scales, const In* offsets, int strip, int split,
                    int strips, int groups, int n, uint32_t ring)
      : lane_(threadIdx.x % 32),
        ring_(ring + lane_ * 16),
        step_of_blocks_(int64_t{n} * kBlockColumns / 2),
        step_of_scales_(int64_t{n} * 2 * Shape::kSplits),
        own_((groups - split + Shape::kSplits - 1) / Shape::kSplits),
        left_(own_),
        strips_(own_ > 0 ? strips : 0) {
    asm volatile("" : "+r"(lane_), "+r"(ring_));  // else they are computed again for each group
    from_ = weights + split * 2 * step_of_blocks_ + int64_t{strip} * kStripBytes + lane_ * 16;
    const In* const of_rows =
        (lane_ < 2 ? scales : offsets) + int64_t{split} * n + strip * kStripRows + lane_ % 2 * 8;
    of_rows_ = reinterpret_cast<const char*>(of_rows);
  }

  // Starts to load the next group, if there is one, and commits one group of copies in any case.
  __device__ void load(int stage) {
    if (strips_ > 0) {
      const uint32_t to = ring_ + stage * kStageBytes;
      copy_16_bytes(to, from_);
      copy_16_bytes(to + kStripBytes, from_ + step_of_blocks_);
      if (lane_ < (Shape::kHasOffsets ? 4 : 2)) copy_16_bytes(to + kScalesAt, of_rows_);
      from_ += step_of_blocks_ * 2 * Shape::kSplits;
      of_rows_ += step_of_scales_;
      if (--left_ == 0) {
        left_ = own_;
        --strips_;
        from_ += Shape::kStrips * kStripBytes - own_ * step_of_blocks_ * 2 * Shape::kSplits;
        of_rows_ += Shape::kStrips * kStripRows * 2 - own_ * step_of_scales_;
      }
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
  }

 private:
  int lane_;
  uint32_t ring_;
  int64_t step_of_blocks_;  // bytes, to the next 64 columns
  int64_t step_of_scales_;  // bytes, to the warp's next group
  int own_;                 // groups of a strip
  int left_;                // of these
  int strips_;              // that are left
  const char* from_;
  const char* of_rows_;
};

// Returns what a warp loads: `strip` is its first one of the block's, `split` says which of the groups are its own.
template <class Shape, class In>
__device__ Stream<Shape> stream_of(const Part<Shape>& part, const void* b, const In* scales,
                                   const In* offsets, int strip, int split, uint32_t ring) {
  const int64_t scales_before = int64_t{part.rank} * part.groups * part.n;
  return {static_cast<const char*>(b) + int64_t{part.rank} * part.columns * part.n / 2,
          scales + scales_before,
          Shape::kHasOffsets ? offsets + scales_before : scales,
          part.first + strip,
          split,
          (part.strips - strip + Shape::kStrips - 1) / Shape::kStrips,
          part.groups,
          part.n,
          ring};
}

// Waits for a stage and starts to load the one that is as many stages later.
template <class Shape>
__device__ inline void advance(Stream<Shape>& stream, int stage) {
  asm volatile("cp.async.wait_group %0;" ::"n"(Shape::kStages - 2) : "memory");
  __syncwarp();  // other lanes' copies are there, and all have read the stage loaded next
  stream.load(stage == 0 ? Shape::kStages - 1 : stage - 1);
}

template <class Shape>
struct Product {
  using In = typename Shape::In;

  uint32_t ring;
  uint32_t a;          // in shared memory
  uint32_t pitch;      // bytes from one of its rows to the next
  int last_row;        // of A
  uint32_t sums_of_a;  // in shared memory
  int lane = threadIdx.x % 32;

  __device__ uint32_t operands_at(int eight, int column) const {
    return a + min(eight * 8 + lane % 8, last_row) * pitch + (column + lane / 8 * 8) * 2;
  }

  // Adds a group of the strip whose sums these are.
  __device__ void multiply_group(Sums<Shape::kEights>& sums, int stage, int group) const {
    const uint32_t from = ring + stage * kStageBytes;
    float part[Shape::kEights * 4] = {};
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      uint32_t words[4];
      load_words(words, from + half * kStripBytes + lane * 16);
#pragma unroll
      for (int j = 0; j < 4; j += 2) {
        uint32_t values[2][4];
        expand_word<In>(values[0], words[j]);
        expand_word<In>(values[1], words[j + 1]);
#pragma unroll
        for (int eight = 0; eight < Shape::kEights; ++eight) {
          uint32_t b[4];
          load_operands(b,
                        operands_at(eight, group * kGroupColumns + half * kBlockColumns + j * 16));
          float(&eighth)[4] = reinterpret_cast<float(&)[4]>(part[eight * 4]);
          multiply_pairs<In>(eighth, values[0][0], values[0][1], values[0][2], values[0][3], b[0],
                             b[1]);
          multiply_pairs<In>(eighth, values[1][0], values[1][1], values[1][2], values[1][3], b[2],
                             b[3]);
        }
      }
    }
    Scales<Shape> scales;
    scales.load(from + kScalesAt, from + kOffsetsAt,
                sums_of_a + (group * Shape::kRows + lane % 4 * 2) * 4);
    scales.add(sums, part);
  }
};

// Adds up what the warps that divide K have stored of a strip, of a pair of a row.
template <class Shape>
__device__ inline float2 add_warps(const float* from) {
  float2 sum = {0, 0};
#pragma unroll
  for (int i = 0; i < Shape::kSplits; ++i) {
    const float2 part = *reinterpret_cast<const float2*>(from + i * Shape::kSums);
    sum = {sum.x + part.x, sum.y + part.y};
  }
  return sum;
}

// Copies `bytes` of each row, a multiple of 16. A thread has several loads under way at a time.
template <int kThreads>
__device__ void copy_rows(char* to, int to_pitch, const char* from, int64_t from_pitch, int rows,
                          int bytes) {
  constexpr int kLoads = 8;
  int row = 0;
  int at = threadIdx.x * 16;
  while (row < rows) {
    uint4 values[kLoads];
    int places[kLoads];
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      for (; at >= bytes; at -= bytes) ++row;
      places[i] = row < rows ? row * to_pitch + at : -1;
      if (places[i] >= 0) values[i] = *reinterpret_cast<const uint4*>(from + row * from_pitch + at);
      at += kThreads * 16;
    }
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      if (places[i] >= 0) *reinterpret_cast<uint4*>(to + places[i]) = values[i];
    }
  }
}

template <class Shape>
__device__ void multiply_few_rows(const typename Shape::In* a, const void* b,
                                  const typename Shape::In* scales,
                                  const typename Shape::In* offsets, typename Shape::In* out, int m,
                                  int n, int k) {
  using In = typename Shape::In;
  constexpr int kPairs = kStripRows / 2;
  constexpr int kThreads = Shape::kWarps * 32;
  extern __shared__ __align__(128) char shared[];
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  const Part<Shape> part(m, n, k);
  const int rows = part.rows;
  const int groups = part.groups;
  const uint32_t pitch = part.columns * 2 + 16;
  constexpr int kAfterRing = Shape::kWarps * Shape::kStages * kStageBytes;
  float* const sums_of_warps = reinterpret_cast<float*>(shared + kAfterRing);
  char* const a_in_shared = shared + kAfterRing + 2 * Shape::kWarps * Shape::kSums * 4;
  float* const sums_of_a = reinterpret_cast<float*>(a_in_shared + rows * pitch);
  float* const sums_of_strips = sums_of_a + groups * Shape::kRows;  // of a cluster

  const uint32_t ring = shared_address(shared) + warp * Shape::kStages * kStageBytes;
  auto stream =
      stream_of(part, b, scales, offsets, warp / Shape::kSplits, warp % Shape::kSplits, ring);
  // Weights need not wait for the kernel before ("reads_before_wait").
#pragma unroll
  for (int stage = 0; stage < Shape::kStages - 1; ++stage) stream.load(stage);
  wait_for_kernel_before();

  copy_rows<kThreads>(a_in_shared, pitch,
                      reinterpret_cast<const char*>(a + part.rank * part.columns), int64_t{k} * 2,
                      rows, part.columns * 2);
  __syncthreads();
  const Product<Shape> product{ring, shared_address(a_in_shared), pitch, rows - 1,
                               shared_address(sums_of_a)};
#pragma unroll 1  // few iterations: unrolled, it would only be more instructions to fetch
  for (int i = warp; i < groups * Shape::kEights; i += Shape::kWarps) {
    const int group = i / Shape::kEights;
    const int eight = i % Shape::kEights;
    add_columns<In>(sums_of_a + group * Shape::kRows + eight * 8, [&](int column) {
      return product.operands_at(eight, group * kGroupColumns + column);
    });
  }
  __syncthreads();

  int stage = 0;
  for (int from = 0; from < part.strips; from += Shape::kStrips) {
    Sums<Shape::kEights> sums = {};
    if (from + warp / Shape::kSplits < part.strips) {
      for (int group = warp % Shape::kSplits; group < groups; group += Shape::kSplits) {
        advance(stream, stage);
        product.multiply_group(sums, stage, group);
        stage = stage + 1 == Shape::kStages ? 0 : stage + 1;
      }
    }
    // Two buffers are enough: a warp that writes one has passed the last barrier, and by then all have read the one before.
    float* const buffer = sums_of_warps + from / Shape::kStrips % 2 * Shape::kWarps * Shape::kSums;
    store_sums<Shape::kEights>(buffer + warp * Shape::kSums, sums, lane);
    __syncthreads();
    const int here = min(Shape::kStrips, part.strips - from);
    for (int i = threadIdx.x; i < here * Shape::kRows * kPairs; i += kThreads) {
      const int row = i / kPairs % Shape::kRows;
      const int strip = i / kPairs / Shape::kRows;
      if (row >= rows) continue;
      const int at = row * kSumPitch + i % kPairs * 2;
      const float2 sum = add_warps<Shape>(buffer + strip * Shape::kSplits * Shape::kSums + at);
      if constexpr (Shape::kCluster == 1) {
        part.store(out, from + strip, row, i % kPairs, sum);
      } else {
        store_pair(sums_of_strips + (from + strip) * Shape::kSums + at, sum.x, sum.y);
      }
    }
  }
  if constexpr (Shape::kCluster > 1) part.add_blocks(out, sums_of_strips);
}

}  // namespace
}  // namespace fibshim

// M is at most the number of rows in the name. A, B, scales and offsets must be aligned to 16 bytes, C to 4.
#define FIBSHIM_KERNELS(name, ...) \
  FIBSHIM_FOUR_BIT_KERNELS(FourBitShape, multiply_few_rows, name, __VA_ARGS__)

//                            rows, warps, warps that divide K, cluster, stages
FIBSHIM_KERNELS(gemm_w4a16_m8, 8, 20, 4, 1, 5)
FIBSHIM_KERNELS(gemm_w4a16_six_m8, 8, 24, 4, 1, 4)
FIBSHIM_KERNELS(gemm_w4a16_pair_m8, 8, 16, 4, 2, 3)
FIBSHIM_KERNELS(gemm_w4a16_quad_m8, 8, 16, 4, 4, 4)
FIBSHIM_KERNELS(gemm_w4a16_pair_m16, 16, 16, 2, 2, 3)
FIBSHIM_KERNELS(gemm_w4a16_quad_m16, 16, 12, 2, 4, 3)
