// C = A * B^T for 9 to 32 rows of A: a stream of the weights B, which are read once.
//
//   gemm_wide_m16_bf16, _m32_          C [M, N] in bfloat16; at most 16 or 32 rows
//   gemm_wide_part_m16_bf16, _m32_     partial sums [gridDim.y, M, N] in fp32, each of a part of K
//
// N is a multiple of 8, each part of K one of 256. The blocks share the rows of B.
//
// A warp holds the sums of up to 8 * kTiles rows of B and streams their columns through its own part of shared memory;
// one more warp streams A, in pieces that all warps share. What A takes of the bandwidth of L2 falls with the rows that
// a block holds: 224 of 28672 in each of 128 blocks read A as often as an eighth of B. Blocks begin at different columns,
// so that they do not ask for the same piece of A at once.
#include "product.cuh"

namespace fibshim {
namespace {

constexpr int kColumns = 256;  // of K, in a stage
constexpr int kTileRows = 8;   // of B
constexpr int kStageBytes = kTileRows * kColumns * 2;
constexpr int kTogether = 2;                // tiles that use what is loaded of A
constexpr int kPitchOfA = kColumns * 2 + 16;  // so that 8 rows lie in different banks

// What a kernel is made of. The launch must give it kBytes of shared memory (config/shared/gemm_wide).
template <int warps, int tiles, int rows, int stages, int stages_of_a, class Type>
struct Shape {
  using Out = Type;
  static constexpr int kWarps = warps;
  static constexpr int kTiles = tiles;  // whose sums a warp holds
  static constexpr int kRows = rows;    // of A at most
  static constexpr int kStages = stages;
  static constexpr int kStagesOfA = stages_of_a;
  static constexpr int kA = kWarps * kStages * kStageBytes;
  static constexpr int kBarriers = kA + kStagesOfA * kRows * kPitchOfA;
  static constexpr int kBytes = kBarriers + 2 * kStagesOfA * 8;
  static_assert(kBytes <= 227 * 1024);
};

__device__ inline void copy_piece(uint32_t to, const void* from, int bytes, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(to),
      "l"(from), "r"(bytes), "r"(barrier)
      : "memory");
}

__device__ inline void make_barrier(uint32_t barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
__device__ inline void arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
__device__ inline void wait(uint32_t barrier, int parity) {
  asm volatile(
      "{\n\t.reg .pred done;\n\tagain:\n\t"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n\t"
      "@!done bra again;\n\t}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

// Four matrices of 8 rows of 16 bytes; each lane gives the address of one row.
__device__ inline Vector load_matrices(uint32_t row) {
  Vector v;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.pairs[0]), "=r"(v.pairs[1]), "=r"(v.pairs[2]), "=r"(v.pairs[3])
               : "r"(row)
               : "memory");
  return v;
}

// A position in a ring of stages, and the parity of the barrier that tells that it is full.
template <int stages>
struct RingPosition {
  int stage = 0;
  int parity = 0;
  __device__ void advance() {
    if (++stage == stages) stage = 0, parity ^= 1;
  }
};

// The part of the matrices that a block works on, in the order of its work: passes over K, each with some tiles of 8
// rows of B, which the warps take in turn. Chunks of K begin with `first_chunk`, and go round.
template <class Shape>
struct Work {
  int64_t k;
  int tiles;
  int passes;
  int tiles_of_pass;
  int chunks;
  int first_chunk;

  __device__ int tiles_of(int warp, int pass) const {
    const int of_pass = min(tiles - pass * tiles_of_pass, tiles_of_pass);
    return (of_pass - warp + Shape::kWarps - 1) / Shape::kWarps;
  }
  // In tiles, from the first one of the block on.
  __device__ int tile(int pass, int index, int warp) const {
    return pass * tiles_of_pass + index * Shape::kWarps + warp;
  }
};

template <class Shape>
__device__ void stream_a(const Work<Shape>& work, const __nv_bfloat16* a, int rows, uint32_t ring,
                         uint32_t full, uint32_t empty) {
  const int lane = threadIdx.x % 32;
  RingPosition<Shape::kStagesOfA> at;
  int chunk = work.first_chunk;
  for (int i = 0; i < work.chunks * work.passes; ++i) {
    wait(empty + at.stage * 8, at.parity ^ 1);
    if (lane == 0) expect_bytes(full + at.stage * 8, rows * kColumns * 2);
    __syncwarp();
    if (lane < rows) {
      copy_piece(ring + (at.stage * Shape::kRows + lane) * kPitchOfA,
                 a + lane * work.k + chunk * kColumns, kColumns * 2, full + at.stage * 8);
    }
    if (++chunk == work.chunks) chunk = 0;
    at.advance();
  }
}

// A warp's tiles of B. In shared memory the 16 bytes of a row are exchanged by its number: matrices of 8 rows then lie
// in different banks.
template <class Shape>
class WeightStream {
 public:
  __device__ WeightStream(const Work<Shape>& work, const __nv_bfloat16* b, int warp, uint32_t ring)
      : work_(work),
        from_(reinterpret_cast<const char*>(b) + threadIdx.x % 32 * 16),
        ring_(ring),
        warp_(warp),
        chunk_(work.first_chunk) {
    begin_pass();
  }

  // Starts to load the next stage, if there is one, and counts as one group of copies.
  __device__ void load() {
    if (pass_ < work_.passes) {
      const int row = work_.tile(pass_, tile_, warp_) * kTileRows;
      const char* const from = from_ + (row * work_.k + chunk_ * kColumns) * 2;
      const int lane = threadIdx.x % 32;
#pragma unroll
      for (int i = 0; i < kTileRows; ++i) {
        copy_16_bytes(ring_ + stage_ * kStageBytes + i * kColumns * 2 + (lane ^ i) * 16,
                      from + i * work_.k * 2);
      }
      if (++stage_ == Shape::kStages) stage_ = 0;
      if (++tile_ == tiles_) advance_chunk();
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
  }

 private:
  __device__ void advance_chunk() {
    tile_ = 0;
    if (++chunk_ == work_.chunks) chunk_ = 0;
    if (chunk_ != work_.first_chunk) return;
    ++pass_;
    begin_pass();
  }
  __device__ void begin_pass() {
    tiles_ = work_.tiles_of(warp_, pass_);
    if (tiles_ <= 0) pass_ = work_.passes;
  }

  const Work<Shape>& work_;
  const char* from_;
  uint32_t ring_;
  int warp_;
  int chunk_;
  int pass_ = 0;
  int tile_ = 0;
  int tiles_ = 0;
  int stage_ = 0;
};

template <class Shape>
__device__ void multiply_rows(const __nv_bfloat16* a, const __nv_bfloat16* b,
                              typename Shape::Out* out, int m, int n, int k) {
  constexpr int kWarps = Shape::kWarps;
  constexpr int kTiles = Shape::kTiles;
  constexpr int kHalves = Shape::kRows / 16;  // an instruction's rows of A
  static_assert(kTiles % kTogether == 0 && kHalves >= 1);
  extern __shared__ __align__(128) char shared[];
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  const uint32_t base = shared_address(shared);
  const uint32_t full = base + Shape::kBarriers;  // of A's ring
  const uint32_t empty = full + Shape::kStagesOfA * 8;
  if (threadIdx.x == 0) {
    for (int i = 0; i < Shape::kStagesOfA; ++i) {
      make_barrier(full + i * 8, 1);
      make_barrier(empty + i * 8, kWarps);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }

  const int k_of_part = k / gridDim.y;
  const int all_tiles = n / kTileRows;
  const int first = static_cast<int>(int64_t{all_tiles} * blockIdx.x / gridDim.x);
  Work<Shape> work;
  work.k = k;
  work.tiles = static_cast<int>(int64_t{all_tiles} * (blockIdx.x + 1) / gridDim.x) - first;
  work.passes = (work.tiles + kWarps * kTiles - 1) / (kWarps * kTiles);
  work.tiles_of_pass = work.passes == 0 ? 0 : (work.tiles + work.passes - 1) / work.passes;
  work.chunks = k_of_part / kColumns;
  work.first_chunk = blockIdx.x % work.chunks;
  a += int64_t{blockIdx.y} * k_of_part;
  b += int64_t{blockIdx.y} * k_of_part + int64_t{first} * kTileRows * k;
  out += int64_t{blockIdx.y} * m * n + first * kTileRows;

  if (warp == kWarps) {
    __syncthreads();
    wait_for_kernel_before();
    stream_a(work, a, min(m, Shape::kRows), base + Shape::kA, full, empty);
    return;
  }
  const uint32_t ring = base + warp * Shape::kStages * kStageBytes;
  WeightStream<Shape> weights(work, b, warp, ring);
  // Weights need not wait for the kernel before ("reads_before_wait").
  for (int i = 0; i < Shape::kStages; ++i) weights.load();
  __syncthreads();

  // A load gives 16 rows and 16 columns of A, or 8 rows and 32 columns of B.
  const uint32_t read_a_at = base + Shape::kA + lane % 16 * kPitchOfA + lane / 16 * 16;
  const uint32_t read_b_at = ring + lane % 8 * kColumns * 2;
  RingPosition<Shape::kStagesOfA> at;
  int stage = 0;
  for (int pass = 0; pass < work.passes; ++pass) {
    const int own = work.tiles_of(warp, pass);
    float sums[kTiles][kHalves][4] = {};
    for (int chunk = 0; chunk < work.chunks; ++chunk) {
      wait(full + at.stage * 8, at.parity);
      const uint32_t rows_of_a = read_a_at + at.stage * Shape::kRows * kPitchOfA;
#pragma unroll
      for (int tile = 0; tile < kTiles; tile += kTogether) {
        if (tile >= own) break;
        asm volatile("cp.async.wait_group %0;" ::"n"(Shape::kStages - kTogether) : "memory");
        __syncwarp();  // what other lanes have copied
        // The second may be no tile of this warp: then its sums are not used.
        uint32_t rows_of_b[kTogether];
#pragma unroll
        for (int i = 0; i < kTogether; ++i) {
          rows_of_b[i] = read_b_at + stage * kStageBytes;
          if (tile + i < own && ++stage == Shape::kStages) stage = 0;
        }
#pragma unroll
        for (int step = 0; step < kColumns / 32; ++step) {
          Vector w[kTogether];
          Vector x[2][kHalves];
#pragma unroll
          for (int i = 0; i < kTogether; ++i) {
            w[i] = load_matrices(rows_of_b[i] + ((step * 4 + lane / 8) ^ lane % 8) * 16);
          }
#pragma unroll
          for (int j = 0; j < 2; ++j) {
#pragma unroll
            for (int half = 0; half < kHalves; ++half) {
              x[j][half] = load_matrices(rows_of_a + half * 16 * kPitchOfA + (step * 2 + j) * 32);
            }
          }
#pragma unroll
          for (int j = 0; j < 2; ++j) {
#pragma unroll
            for (int i = 0; i < kTogether; ++i) {
#pragma unroll
              for (int half = 0; half < kHalves; ++half) {
                const uint32_t(&pairs)[kPairsPerVector] = x[j][half].pairs;
                multiply(sums[tile + i][half], pairs[0], pairs[1], pairs[2], pairs[3],
                         w[i].pairs[j * 2], w[i].pairs[j * 2 + 1]);
              }
            }
          }
        }
        __syncwarp();  // all have read the stages that come next
#pragma unroll
        for (int i = 0; i < kTogether; ++i) {
          if (tile + i < own) weights.load();
        }
      }
      __syncwarp();
      if (lane == 0) arrive(empty + at.stage * 8);
      at.advance();
    }
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      if (tile >= own) break;
      const int column = work.tile(pass, tile, warp) * kTileRows + lane % 4 * 2;
#pragma unroll
      for (int half = 0; half < kHalves; ++half) {
        const float(&sum)[4] = sums[tile][half];
        const int row = half * 16 + lane / 4;
        if (row < m) store_pair(out + int64_t{row} * n + column, sum[0], sum[1]);
        if (row + 8 < m) store_pair(out + int64_t{row + 8} * n + column, sum[2], sum[3]);
      }
    }
  }
}

}  // namespace
}  // namespace fibshim

// M at most the rows of the name; A [M, K], B [N, K], aligned to 16 bytes; C to 4, partial sums to 8.
#define FIBSHIM_KERNEL(name, type, ...)                                                      \
  using name##_shape = fibshim::Shape<__VA_ARGS__, type>;                                    \
  extern "C" __global__ void __launch_bounds__(name##_shape::kWarps * 32 + 32, 1)            \
      name(const __nv_bfloat16* a, const __nv_bfloat16* b, type* out, int m, int n, int k) { \
    fibshim::multiply_rows<name##_shape>(a, b, out, m, n, k);                                \
  }

//                                               warps, tiles, rows, stages, stages of A
FIBSHIM_KERNEL(gemm_wide_m16_bf16, __nv_bfloat16, 7, 4, 16, 6, 4)
FIBSHIM_KERNEL(gemm_wide_m32_bf16, __nv_bfloat16, 7, 4, 32, 6, 3)
FIBSHIM_KERNEL(gemm_wide_part_m16_bf16, float, 8, 2, 16, 5, 4)
FIBSHIM_KERNEL(gemm_wide_part_m32_bf16, float, 8, 2, 32, 5, 3)
