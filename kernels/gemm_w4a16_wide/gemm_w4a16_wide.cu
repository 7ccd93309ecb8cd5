// C = A * B^T for up to 64 rows of A in bfloat16 or fp16 and weights B in 4 bits as vLLM's Machete prepacks them: B is read once.
//
//   gemm_w4a16_wide_m32_bf16, _m64_bf16       up to so many rows of A; weights are (q - 8) * scale
//   gemm_w4a16_wide_m32_offsets_bf16, ...     weights are q * scale + offset
//   gemm_w4a16_wide_four_m32_bf16, ...        the same with four warpgroups in place of three
//
// and each with fp16 in place of bf16.
//
// How: four_bits.cuh. A warpgroup multiplies four strips of B, from registers, with 128 columns of A at a time, which stream through shared memory
// in chunks of 512. The blocks of a cluster, which divide K among them, add up their sums.
#include "four_bits.cuh"

namespace fibshim {
namespace {

constexpr int kChunkGroups = 4;
constexpr int kChunkColumns = kChunkGroups * kGroupColumns;
constexpr int kChunkVectors = kChunkColumns / 8;  // of 16 bytes
constexpr int kTileRowBytes = 128;                // 64 columns of A

template <class InType, bool has_offsets, int rows, int warpgroups, int cluster, int stages>
struct Shape : FourBitShape<InType, has_offsets, rows, warpgroups * 4, 1, cluster, stages> {
  static constexpr int kTileBytes = rows * kTileRowBytes;
  static constexpr int kChunkBytes = kChunkColumns / kBlockColumns * kTileBytes;
  // Behind the ring, at a multiple of 1024 bytes, as the instructions' layout of A asks.
  static constexpr int kChunksAt = (warpgroups * 4 * stages * kStageBytes + 1023) / 1024 * 1024;
  static constexpr int kSumsOfA = kChunksAt + 2 * kChunkBytes;
  static constexpr int kBarriers = kSumsOfA + kChunkGroups * rows * 4;
  static constexpr int kBytes =
      kBarriers + 16;  // of shared memory (config/shared/gemm_w4a16/wide_rows.table)
  // Sums take the place of what was multiplied.
  static_assert(warpgroups * 4 * rows * kSumPitch * 4 <= kSumsOfA);
  static_assert(cluster > 1 && kBytes <= 227 * 1024);
};

// Returns where 16 bytes of a row of A are in a tile: the instructions' layout in lines of 128 bytes.
__device__ inline uint32_t in_tile(int row, int sixteen) {
  return row * kTileRowBytes + (sixteen ^ row % 8) * 16;
}

// Returns the descriptor of an operand in shared memory.
__device__ inline uint64_t operand_at(uint32_t shared) {
  constexpr uint64_t kEightRows = 8 * kTileRowBytes / 16;
  return uint64_t{1} << 62 | kEightRows << 32 | uint64_t{1} << 16 | shared / 16;
}

// Chooses one of the following by its type.
template <class In>
struct Of {};
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
#define FIBSHIM_8(i)                                                                          \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), \
      "+f"(d[i + 6]), "+f"(d[i + 7])
#define FIBSHIM_LIST_16 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define FIBSHIM_LIST_32                                                           \
  FIBSHIM_LIST_16                                                                 \
  ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, " \
  "%31"
#define FIBSHIM_MULTIPLY_OF(type, kind)                                                       \
  FIBSHIM_MULTIPLY(type, 32, kind, FIBSHIM_LIST_16, "%16", "%17", "%18", "%19", "%20", "%21", \
                   FIBSHIM_8(0), FIBSHIM_8(8))                                                \
  FIBSHIM_MULTIPLY(type, 64, kind, FIBSHIM_LIST_32, "%32", "%33", "%34", "%35", "%36", "%37", \
                   FIBSHIM_8(0), FIBSHIM_8(8), FIBSHIM_8(16), FIBSHIM_8(24))
FIBSHIM_MULTIPLY_OF(__nv_bfloat16, "k16.f32.bf16.bf16")
FIBSHIM_MULTIPLY_OF(__half, "k16.f32.f16.f16")

// Keeps the compiler from moving reads or writes of the sums across this point.
template <int kCount>
__device__ inline void fence_sums(float (&sums)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(sums[i])::"memory");
}

// Multiplies a group of a warpgroup's strips. `a`: of the group's first 64 columns of A.
template <class Shape>
__device__ inline void multiply_group(float (&part)[Shape::kRows / 2], uint32_t stage, uint64_t a) {
  using In = typename Shape::In;
  const uint32_t words_at = stage + threadIdx.x % 32 * 16;
  fence_sums(part);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    uint32_t words[4];
    load_words(words, words_at + half * kStripBytes);
    uint32_t values[4][4];
#pragma unroll
    for (int i = 0; i < 4; ++i) expand_word<In>(values[i], words[i]);
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
    const uint64_t at = a + half * (Shape::kTileBytes / 16);
    if (half == 0) {
      multiply_tile<false>(Of<In>{}, part, values[0], at);
    } else {
      multiply_tile<true>(Of<In>{}, part, values[0], at);
    }
#pragma unroll
    for (int i = 1; i < 4; ++i) multiply_tile<true>(Of<In>{}, part, values[i], at + i * 2);
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
  }
  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
  fence_sums(part);
}

template <class Shape>
__device__ void multiply_rows(const typename Shape::In* a, const void* b,
                              const typename Shape::In* scales, const typename Shape::In* offsets,
                              typename Shape::In* out, int m, int n, int k) {
  using In = typename Shape::In;
  constexpr int kThreads = Shape::kWarps * 32;
  extern __shared__ __align__(1024) char shared[];
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  const Part<Shape> part(m, n, k);
  const uint32_t chunks_at = shared_address(shared) + Shape::kChunksAt;
  float* const sums_of_a = reinterpret_cast<float*>(shared + Shape::kSumsOfA);
  const uint32_t barriers = shared_address(shared) + Shape::kBarriers;

  const uint32_t ring = shared_address(shared) + warp * Shape::kStages * kStageBytes;
  auto stream = part.stream(b, scales, offsets, warp, 0, ring);
  // Weights need not wait for the kernel before ("reads_before_wait").
#pragma unroll
  for (int stage = 0; stage < Shape::kStages - 1; ++stage) stream.load(stage);
  if (threadIdx.x == 0) {
    make_barrier(barriers, kThreads);
    make_barrier(barriers + 8, kThreads);
    publish_barriers();
  }
  __syncthreads();
  wait_for_kernel_before();

  const auto copy_chunk = [&](int chunk) {
    const uint32_t to = chunks_at + chunk % 2 * Shape::kChunkBytes;
    const int vectors = min(kChunkColumns, part.columns - chunk * kChunkColumns) / 8;
    const In* const from = a + part.rank * part.columns + chunk * kChunkColumns;
    for (int i = threadIdx.x; i < part.rows * kChunkVectors; i += kThreads) {
      const int row = i / kChunkVectors;
      const int vector = i % kChunkVectors;
      if (vector >= vectors) continue;
      copy_16_bytes(to + vector / 8 * Shape::kTileBytes + in_tile(row, vector % 8),
                    from + int64_t{row} * k + vector * 8);
    }
    asm volatile(
        "cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barriers + chunk % 2 * 8)
        : "memory");
  };
  copy_chunk(0);

  const int chunks = (part.groups + kChunkGroups - 1) / kChunkGroups;
  Sums<Shape::kEights> sums = {};
  int stage = 0;
  for (int chunk = 0; chunk < chunks; ++chunk) {
    wait_for_bytes(barriers + chunk % 2 * 8, chunk / 2 % 2);
    __syncthreads();  // all have read the chunk before
    if (chunk + 1 < chunks) copy_chunk(chunk + 1);
    const uint32_t chunk_at = chunks_at + chunk % 2 * Shape::kChunkBytes;
    const int groups = min(kChunkGroups, part.groups - chunk * kChunkGroups);
    for (int i = warp; i < groups * Shape::kEights; i += Shape::kWarps) {
      const int group = i / Shape::kEights;
      const int eight = i % Shape::kEights;
      const uint32_t at = chunk_at + group * 2 * Shape::kTileBytes;
      add_columns<In>(sums_of_a + group * Shape::kRows + eight * 8, [&](int column) {
        return at + column / kBlockColumns * Shape::kTileBytes +
               in_tile(eight * 8 + lane % 8, column % kBlockColumns / 8 + lane / 8);
      });
    }
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    for (int group = 0; group < groups; ++group) {
      advance(stream, stage);
      float products[Shape::kRows / 2];
      multiply_group<Shape>(products, ring + stage * kStageBytes,
                            operand_at(chunk_at + group * 2 * Shape::kTileBytes));
      add_scaled<Shape>(sums, products, ring + stage * kStageBytes,
                        sums_of_a + group * Shape::kRows + lane % 4 * 2);
      stage = stage + 1 == Shape::kStages ? 0 : stage + 1;
    }
  }

  __syncthreads();  // what was multiplied makes place for sums
  float* const sums_of_strips = reinterpret_cast<float*>(shared);
  if (warp < part.strips)
    store_sums<Shape::kEights>(sums_of_strips + warp * Shape::kSums, sums, lane);
  part.add_blocks(out, sums_of_strips);
}

}  // namespace
}  // namespace fibshim

// M is at most the number of rows in the name. A, B, scales and offsets must be aligned to 16 bytes, C to 4. A cluster has at most as many strips
// as a block has warps.
#define FIBSHIM_KERNELS(name, ...) FIBSHIM_FOUR_BIT_KERNELS(Shape, multiply_rows, name, __VA_ARGS__)

//                                       rows, warpgroups, cluster, stages
FIBSHIM_KERNELS(gemm_w4a16_wide_m32, 32, 3, 4, 5)
FIBSHIM_KERNELS(gemm_w4a16_wide_four_m32, 32, 4, 4, 5)
FIBSHIM_KERNELS(gemm_w4a16_wide_m64, 64, 3, 4, 5)
FIBSHIM_KERNELS(gemm_w4a16_wide_four_m64, 64, 4, 4, 5)
