// C = A * B^T for at most eight rows of A: a stream of the weights B, which are read once.
//
//   gemm_k4096_m8_bf16        C [M, N] in bfloat16; K = 4096
//   gemm_part2048_m8_bf16     partial sums [K / 2048, M, N] in fp32, of 2048 columns of K each
//   gemm_part3584_m8_bf16     the same, of 3584
//   gemm_part4096_m8_bf16     the same, of 4096
//
// N is a multiple of 16. gridDim.x blocks share the rows of B, gridDim.y blocks share K.
//
// A stays in registers: a warp holds 256 columns of it for all rows, and streams the same columns of B's rows
// through its own part of shared memory. So a block reads whole stretches of 4 to 8 KB of each row of B, which DRAM
// delivers fastest (H200: 4.5 TB/s; rows cut into 128 bytes, as tensor maps do, 3.9), and warps meet only where
// their sums are added up, once for every 16 rows.
#include "vector.cuh"

namespace fibshim {
namespace {

constexpr int kWarpColumns = 256;   // of K, that a warp holds
constexpr int kStageColumns = 128;  // of them, in one stage of its ring
constexpr int kStageRows = 8;       // of B
constexpr int kStageBytes = kStageRows * kStageColumns * 2;
constexpr int kRows = 8;                  // of A at most
constexpr int kTileRows = 16;             // of B, whose sums are added up together
constexpr int kSumPitch = kTileRows + 8;  // in floats: rows of sums begin in different banks
constexpr int kWarpSums = kRows * kSumPitch;

// The launch must give as much (config/shared/gemm).
template <int kWarps>
constexpr int kStages = kWarps == 16   ? 6
                        : kWarps == 14 ? 7
                        : kWarps == 12 ? 8
                                       : 12;

__device__ inline uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

__device__ inline void copy_16_bytes(uint32_t to, const void* from) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(to), "l"(from)
               : "memory");
}

__device__ inline Vector load_from_shared(uint32_t at) {
  Vector v;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.pairs[0]), "=r"(v.pairs[1]), "=r"(v.pairs[2]), "=r"(v.pairs[3])
               : "r"(at));
  return v;
}

// sums [8 rows of A, 8 rows of B] += 16 columns. Rows 8 to 15 of the instruction's A are zero.
__device__ inline void multiply(float (&sums)[4], uint32_t a0, uint32_t a1, uint32_t b0,
                                uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %6, %5, %6}, "
      "{%7, %8}, {%0, %1, %2, %3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(a0), "r"(a1), "r"(0), "r"(b0), "r"(b1));
}

__device__ inline void store_pair(__nv_bfloat16* to, float2 value) {
  *reinterpret_cast<__nv_bfloat162*>(to) = __floats2bfloat162_rn(value.x, value.y);
}
__device__ inline void store_pair(float* to, float2 value) {
  *reinterpret_cast<float2*>(to) = value;
}

// B's rows as a warp reads them: stages of kStageRows rows by kStageColumns columns, in the order of the sums.
// A lane copies 16 bytes of every second row. In shared memory odd rows have their halves of 64 bytes exchanged,
// so that the eight lanes of an access, which read two rows, meet different banks.
class WeightStream {
 public:
  // `rows`: how many rows from `first` on.
  __device__ WeightStream(const __nv_bfloat16* first, int64_t pitch, int rows, uint32_t ring,
                          int lane)
      : from_(reinterpret_cast<const char*>(first + lane / 16 * pitch + lane % 16 * 8)),
        pitch_(pitch * 2),
        to_(ring + lane / 16 * kStageColumns * 2 + ((lane % 16) ^ (lane / 16 * 4)) * 16),
        left_(rows / kStageRows * kSteps) {}

  // Starts to load the next stage, if there is one, and counts as one group of copies.
  __device__ void load(int stage) {
    if (left_ > 0) {
#pragma unroll
      for (int row = 0; row < kStageRows; row += 2) {
        copy_16_bytes(to_ + stage * kStageBytes + row * kStageColumns * 2, from_ + row * pitch_);
      }
      const bool is_last_of_rows = left_ % kSteps == 1 % kSteps;
      from_ += is_last_of_rows ? kStageRows * pitch_ - (kSteps - 1) * kStageColumns * 2
                               : kStageColumns * 2;
      --left_;
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
  }

  static constexpr int kSteps = kWarpColumns / kStageColumns;

 private:
  const char* from_;
  int64_t pitch_;
  uint32_t to_;
  int left_;  // stages
};

template <int kWarps, class Out>
__device__ void multiply_few_rows(const __nv_bfloat16* a, const __nv_bfloat16* b, Out* out, int m,
                                  int n) {
  extern __shared__ __align__(128) char shared[];
  constexpr int kStageCount = kStages<kWarps>;
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  const int group = lane / 4;  // of the instruction: a row of A, and of B
  const int quad = lane % 4;

  const int64_t k = int64_t{kWarps} * kWarpColumns * gridDim.y;
  const int column = (blockIdx.y * kWarps + warp) * kWarpColumns;
  const int all_tiles = n / kTileRows;
  const int first = static_cast<int>(int64_t{all_tiles} * blockIdx.x / gridDim.x);
  const int tiles = static_cast<int>(int64_t{all_tiles} * (blockIdx.x + 1) / gridDim.x) - first;

  const uint32_t ring = shared_address(shared) + warp * kStageCount * kStageBytes;
  float* const sums_of_warps =
      reinterpret_cast<float*>(shared + kWarps * kStageCount * kStageBytes);
  WeightStream weights(b + int64_t{first} * kTileRows * k + column, k, tiles * kTileRows, ring,
                       lane);
  wait_for_kernel_before();
#pragma unroll
  for (int stage = 0; stage < kStageCount - 1; ++stage) weights.load(stage);

  // Of every 32 columns a lane holds eight neighbours, of A as of B: sums do not care for the order.
  Vector row[kWarpColumns / 32] = {};
  if (group < m) {
#pragma unroll
    for (int i = 0; i < kWarpColumns / 32; ++i) {
      row[i] = load_once(a + group * k + column + i * 32 + quad * 8);
    }
  }

  const uint32_t read_at = ring + group * kStageColumns * 2;
  int stage = 0;
  for (int tile = 0; tile < tiles; ++tile) {
    float sums[kTileRows / 8][4] = {};
#pragma unroll
    for (int half = 0; half < kTileRows / 8; ++half) {
#pragma unroll
      for (int step = 0; step < WeightStream::kSteps; ++step) {
        asm volatile("cp.async.wait_group %0;" ::"n"(kStageCount - 2) : "memory");
        __syncwarp();  // what other lanes have copied; and all have read the stage that comes next
        weights.load(stage == 0 ? kStageCount - 1 : stage - 1);
#pragma unroll
        for (int i = 0; i < kStageColumns / 32; ++i) {
          const Vector w = load_from_shared(read_at + stage * kStageBytes +
                                            ((i * 4 + quad) ^ (group % 2 * 4)) * 16);
          const Vector& x = row[step * (kStageColumns / 32) + i];
          multiply(sums[half], x.pairs[0], x.pairs[1], w.pairs[0], w.pairs[1]);
          multiply(sums[half], x.pairs[2], x.pairs[3], w.pairs[2], w.pairs[3]);
        }
        stage = stage + 1 == kStageCount ? 0 : stage + 1;
      }
    }

    // Two buffers: who writes the second has left the first barrier, and the others' sums of it are read by then.
    float* const buffer = sums_of_warps + tile % 2 * kWarps * kWarpSums;
#pragma unroll
    for (int half = 0; half < kTileRows / 8; ++half) {
      store_pair(buffer + warp * kWarpSums + group * kSumPitch + half * 8 + quad * 2,
                 float2{sums[half][0], sums[half][1]});
    }
    __syncthreads();
    // Two warps add up, and write; they take turns, since it delays their streams.
    constexpr int kPairs = kTileRows / 2;
    constexpr int kAdding = kRows * kPairs / 32;
    const int turn = (warp + tile * (kWarps - kAdding)) % kWarps;
    const int index = turn * 32 + lane;
    const int row_of_a = index / kPairs;
    if (row_of_a < m) {
      const float* const from = buffer + row_of_a * kSumPitch + index % kPairs * 2;
      float2 sum = {0, 0};
#pragma unroll
      for (int other = 0; other < kWarps; ++other) {
        const float2 part = *reinterpret_cast<const float2*>(from + other * kWarpSums);
        sum.x += part.x;
        sum.y += part.y;
      }
      store_pair(out + (int64_t{blockIdx.y} * m + row_of_a) * n + (first + tile) * kTileRows +
                     index % kPairs * 2,
                 sum);
    }
  }
}

}  // namespace
}  // namespace fibshim

// M at most 8; A [M, K], B [N, K], aligned to 16 bytes; C or partial sums to 8.
#define FIBSHIM_KERNEL(name, warps, type)                                             \
  extern "C" __global__ void __launch_bounds__(warps * 32, 1)                         \
      name(const __nv_bfloat16* a, const __nv_bfloat16* b, type* out, int m, int n) { \
    fibshim::multiply_few_rows<warps>(a, b, out, m, n);                               \
  }

FIBSHIM_KERNEL(gemm_k4096_m8_bf16, 16, __nv_bfloat16)
FIBSHIM_KERNEL(gemm_part2048_m8_bf16, 8, float)
FIBSHIM_KERNEL(gemm_part3584_m8_bf16, 14, float)
FIBSHIM_KERNEL(gemm_part4096_m8_bf16, 16, float)
