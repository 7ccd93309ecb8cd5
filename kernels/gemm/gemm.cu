// C = A * B^T for at most 8 rows of A: streams the weights B, which are read once.
//
//   gemm_k4096_m8_bf16, _k3072_, ...      C [M, N] in bfloat16, by K
//   gemm_k4096_m8_bias_bf16, ...          the same, with a bias [N] added to each row in fp32
//   gemm_k4096_m8_add_bf16, ...           the same, with an addend [M, N], which C may overwrite
//   gemm_part2048_m8_bf16                 partial sums [K / 2048, M, N] in fp32, of 2048 columns of K each
//   gemm_part3584_m8_bf16                 the same, of 3584
//   gemm_part4096_m8_bf16                 the same, of 4096
//
// and each with fp16 in place of bf16, but for K = 2880, 3840, 5376 and 10240, of models that run in
// bfloat16. N is a multiple of 16. The rows of B are divided among the clusters, K among the blocks
// of a cluster and gridDim.y.
//
// A stays in registers: a warp holds some columns of it for all rows, and streams the same columns
// of B's rows through its own part of shared memory. So a block reads stretches of 3 to 11 KB of
// each row of B, which DRAM delivers fastest (H200: 4.5 TB/s; 3.9 TB/s for rows cut into 128 bytes,
// as tensor maps do). Warps synchronise only to add up their sums, once for every 16 rows. Loading
// A takes L2 bandwidth in every block, about 0.023 us per KB; blocks that divide K among them load
// less of A.
#include "few_rows.cuh"

namespace fibshim {
namespace {

constexpr int kSlots = 4;  // for tiles whose sums are sent between the blocks of a cluster

// The operand that is added to the product.
enum class Operand { kNone, kBias, kAddend };

// The sizes of a kernel. It must be launched with kBytes of shared memory (config/shared/gemm).
template <class InType, class OutType, Operand more, int warps, int warp_columns, int cluster,
          int stages, int lacking = 0>
struct Shape {
  using In = InType;
  using Out = OutType;
  static constexpr Operand kMore = more;
  static constexpr int kWarps = warps;
  static constexpr int kWarpColumns = warp_columns;  // columns of K that a warp holds
  static constexpr int kCluster = cluster;           // blocks, each with a part of K
  static constexpr int kStages = stages;
  static constexpr int kLacking = lacking;  // columns of the last warp that K has not: zeros
  static constexpr int kWarpSums = kRows * kTileRows;
  static constexpr int kOwnPairs = kPairs / kCluster;  // column pairs that a block finishes
  static constexpr int kSums = kWarps * kStages * kStageBytes;
  static constexpr int kInbox = kSums + 2 * kWarps * kWarpSums * 4;
  static constexpr int kBarriers = kInbox + (kCluster > 1 ? kSlots * kRows * kTileRows * 4 : 0);
  static constexpr int kBytes = kBarriers + (kCluster > 1 ? kSlots * 8 : 0);
  static_assert(kBytes <= 227 * 1024);
  static_assert(kLacking < kWarpColumns && kLacking % 32 == 0);
};

// Sends a value to block `rank` of the cluster. `to` and `barrier` are this block's addresses of
// the same variables.
__device__ inline void send(uint32_t to, uint32_t barrier, int rank, float2 value) {
  asm volatile(
      "{\n\t.reg .b32 at, done;\n\tmapa.shared::cluster.u32 at, %0, %2;\n\t"
      "mapa.shared::cluster.u32 done, %1, %2;\n\t"
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [at], {%3, %4}, [done];\n\t}" ::
          "r"(to),
      "r"(barrier), "r"(rank), "f"(value.x), "f"(value.y)
      : "memory");
}

// Streams B's rows for a warp: stages of kStageRows rows by kStageColumns columns, in the order of
// the sums. A lane copies 16 bytes of every second row. In shared memory the halves of 64 bytes of
// odd rows are exchanged, so that the eight lanes of an access, which read two rows, use different
// banks.
template <int kWarpColumns, bool kMayLack>
class WeightStream {
 public:
  // `rows`: the number of rows from `first` on. `columns`: of K, from the warp's first on.
  template <class In>
  __device__ WeightStream(const In* first, int64_t pitch, int rows, int64_t columns, uint32_t ring,
                          int lane)
      : from_(reinterpret_cast<const char*>(first + lane / 16 * pitch + lane % 16 * 8)),
        pitch_(pitch * 2),
        to_(ring + lane / 16 * kStageColumns * 2 + ((lane % 16) ^ (lane / 16 * 4)) * 16),
        left_(rows / kStageRows * kSteps),
        columns_(static_cast<int>(columns) - lane % 16 * 8) {}

  // Starts to load the next stage, if there is one, and commits one group of copies in any case.
  __device__ void load(int stage) {
    if (left_ > 0) {
#pragma unroll
      for (int row = 0; row < kStageRows; row += 2) {
        const uint32_t to = to_ + stage * kStageBytes + row * kStageColumns * 2;
        if constexpr (kMayLack) {
          copy_16_bytes_or_zeros(to, from_ + row * pitch_, columns_ > 0);
        } else {
          copy_16_bytes(to, from_ + row * pitch_);
        }
      }
      const bool is_last_of_rows = left_ % kSteps == 1 % kSteps;
      from_ += is_last_of_rows ? kStageRows * pitch_ - (kSteps - 1) * kStageColumns * 2
                               : kStageColumns * 2;
      if constexpr (kMayLack) {
        columns_ += is_last_of_rows ? (kSteps - 1) * kStageColumns : -kStageColumns;
      }
      --left_;
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
  }

  static constexpr int kSteps = kWarpColumns / kStageColumns;

 private:
  const char* from_;
  int64_t pitch_;
  uint32_t to_;
  int left_;     // stages
  int columns_;  // of K, from the lane's next on
};

// more: the bias or the addend, or null.
template <class Shape>
__device__ void multiply_few_rows(const typename Shape::In* a, const typename Shape::In* b,
                                  const typename Shape::In* more, typename Shape::Out* out, int m,
                                  int n) {
  using In = typename Shape::In;
  constexpr int kWarps = Shape::kWarps;
  constexpr int kWarpColumns = Shape::kWarpColumns;
  constexpr int kCluster = Shape::kCluster;
  constexpr int kStages = Shape::kStages;
  constexpr int kOwnPairs = Shape::kOwnPairs;
  constexpr bool kMayLack = Shape::kLacking > 0;
  using Stream = WeightStream<kWarpColumns, kMayLack>;
  extern __shared__ __align__(128) char shared[];
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  const int group = lane / 4;  // the lane's row of A, and of B, in the instruction
  const int quad = lane % 4;

  const int rank = kCluster > 1 ? blockIdx.x % kCluster : 0;
  const int share = blockIdx.x / kCluster;
  const int shares = gridDim.x / kCluster;
  const int64_t k = int64_t{kWarps} * kWarpColumns * kCluster * gridDim.y - Shape::kLacking;
  const int column = ((blockIdx.y * kCluster + rank) * kWarps + warp) * kWarpColumns;
  const int all_tiles = n / kTileRows;
  const int first = static_cast<int>(int64_t{all_tiles} * share / shares);
  const int tiles = static_cast<int>(int64_t{all_tiles} * (share + 1) / shares) - first;
  out += int64_t{blockIdx.y} * m * n + int64_t{first} * kTileRows;
  if constexpr (Shape::kMore != Operand::kNone) more += int64_t{first} * kTileRows;

  const uint32_t ring = shared_address(shared) + warp * kStages * kStageBytes;
  float* const sums_of_warps = reinterpret_cast<float*>(shared + Shape::kSums);
  float* const inbox = reinterpret_cast<float*>(shared + Shape::kInbox);
  const uint32_t barriers = shared_address(shared) + Shape::kBarriers;
  Stream weights(b + int64_t{first} * kTileRows * k + column, k, tiles * kTileRows, k - column,
                 ring, lane);
  // Weights need not wait for the kernel before ("reads_before_wait").
#pragma unroll
  for (int stage = 0; stage < kStages - 1; ++stage) weights.load(stage);
  if constexpr (kCluster > 1) {
    if (threadIdx.x == 0) {
      for (int slot = 0; slot < kSlots; ++slot) {
        make_barrier(barriers + slot * 8, 1);
      }
      publish_barriers();
    }
    __syncwarp();
    arrive_at_cluster();
  }
  wait_for_kernel_before();

  // Of every 32 columns a lane holds eight adjacent ones, of A and of B: the order of columns does
  // not affect the sums.
  Vector row[kWarpColumns / 32] = {};
  if (group < m) {
    const In* const from = a + group * k + column + quad * 8;
#pragma unroll
    for (int i = 0; i < kWarpColumns / 32; ++i) {
      if (!kMayLack || column + i * 32 < k) row[i] = load_once(from + i * 32);
    }
  }
  if constexpr (kCluster > 1) wait_for_cluster();

  const auto add_more = [&](float2& sum, [[maybe_unused]] int row_of_a, [[maybe_unused]] int at) {
    if constexpr (Shape::kMore == Operand::kBias) {
      const float2 x = load_pair(more + at);
      sum = {sum.x + x.x, sum.y + x.y};
    } else if constexpr (Shape::kMore == Operand::kAddend) {
      const In* const from = more + int64_t{row_of_a} * n + at;
      sum = {sum.x + to_float(from[0]), sum.y + to_float(from[1])};
    }
  };
  // Adds up a tile's sums in this block, and writes them or sends them to the block that finishes
  // their columns.
  const auto add_warps = [&](int tile) {
    const float* const buffer = sums_of_warps + tile % 2 * kWarps * Shape::kWarpSums;
    share_among_warps<kWarps, kRows * kPairs>(tile, [&](int index) {
      const int row_of_a = index / kPairs;
      const int pair = index % kPairs;
      if (row_of_a >= m) return;
      float2 sum = add_up<kWarps>(buffer + sum_index(row_of_a, pair), Shape::kWarpSums);
      if constexpr (kCluster == 1) {
        add_more(sum, row_of_a, tile * kTileRows + pair * 2);
        store_pair(out + int64_t{row_of_a} * n + tile * kTileRows + pair * 2, sum.x, sum.y);
      } else {
        const int at = ((tile % kSlots * kCluster + rank) * kRows + row_of_a) * kOwnPairs;
        send(shared_address(inbox + (at + pair % kOwnPairs) * 2), barriers + tile % kSlots * 8,
             pair / kOwnPairs, sum);
      }
    });
  };
  // Adds up a tile's sums of all blocks. Before a block sends tile t, it has finished tile t - 2,
  // for which it needed the sums of every block; each had finished tile t - 4 before sending those.
  // So no slot is overwritten before it is read.
  const auto add_blocks = [&](int tile) {
    share_among_warps<kWarps, (kRows * kOwnPairs + 31) / 32 * 32>(tile, [&](int index) {
      const int row_of_a = index / kOwnPairs;
      if (row_of_a >= min(m, kRows)) return;
      const int slot = tile % kSlots;
      wait_for_bytes(barriers + slot * 8, tile / kSlots % 2);
      float2 sum = add_up<kCluster>(inbox + (slot * kCluster * kRows * kOwnPairs + index) * 2,
                                    kRows * kOwnPairs * 2);
      add_more(sum, row_of_a, tile * kTileRows + (rank * kOwnPairs + index % kOwnPairs) * 2);
      store_pair(out + int64_t{row_of_a} * n + tile * kTileRows +
                     (rank * kOwnPairs + index % kOwnPairs) * 2,
                 sum.x, sum.y);
    });
  };

  const uint32_t read_at = ring + group * kStageColumns * 2;
  int stage = 0;
  for (int tile = 0; tile < tiles; ++tile) {
    float sums[kTileRows / 8][4] = {};
#pragma unroll
    for (int eight = 0; eight < kTileRows / 8; ++eight) {
#pragma unroll
      for (int step = 0; step < Stream::kSteps; ++step) {
        asm volatile("cp.async.wait_group %0;" ::"n"(kStages - 2) : "memory");
        __syncwarp();  // other lanes' copies are there, and all have read the stage loaded next
        weights.load(stage == 0 ? kStages - 1 : stage - 1);
        multiply_stage<In>(sums[eight], row + step * (kStageColumns / 32),
                           read_at + stage * kStageBytes, group, quad);
        stage = stage + 1 == kStages ? 0 : stage + 1;
      }
    }

    // Two buffers are enough: a warp that writes one has passed the last tile's barrier, and by
    // then all warps have read the sums of the tile before that.
    float* const own = sums_of_warps + (tile % 2 * kWarps + warp) * Shape::kWarpSums;
#pragma unroll
    for (int eight = 0; eight < kTileRows / 8; ++eight) {
      store_pair(own + sum_index(group, eight * 4 + quad), sums[eight][0], sums[eight][1]);
    }
    if (kCluster > 1 && threadIdx.x == 0) {
      expect_bytes(barriers + tile % kSlots * 8, kCluster * min(m, kRows) * kOwnPairs * 8);
    }
    __syncthreads();
    add_warps(tile);
    if (kCluster > 1 && tile > 0) add_blocks(tile - 1);
  }
  if constexpr (kCluster > 1) {
    if (tiles > 0) add_blocks(tiles - 1);
    // A block must not end before the others have sent everything to its shared memory.
    __syncwarp();
    arrive_at_cluster();
    wait_for_cluster();
  }
}

}  // namespace
}  // namespace fibshim

// M is at most 8. A [M, K] and B [N, K] must be aligned to 16 bytes, C or partial sums to 8.
#define FIBSHIM_KERNEL(name, in, out_type, ...)                                            \
  using name##_shape = fibshim::Shape<in, out_type, fibshim::Operand::kNone, __VA_ARGS__>; \
  extern "C" __global__ void __launch_bounds__(name##_shape::kWarps * 32, 1)               \
      name(const in* a, const in* b, out_type* out, int m, int n) {                        \
    fibshim::multiply_few_rows<name##_shape>(a, b, nullptr, out, m, n);                    \
  }
#define FIBSHIM_KERNEL_WITH(operand, name, type, ...)                                      \
  using name##_shape = fibshim::Shape<type, type, fibshim::Operand::operand, __VA_ARGS__>; \
  extern "C" __global__ void __launch_bounds__(name##_shape::kWarps * 32, 1)               \
      name(const type* a, const type* b, const type* more, type* c, int m, int n) {        \
    fibshim::multiply_few_rows<name##_shape>(a, b, more, c, m, n);                         \
  }
#define FIBSHIM_KERNELS(name, ...)                                       \
  FIBSHIM_KERNEL(name##_bf16, __nv_bfloat16, __nv_bfloat16, __VA_ARGS__) \
  FIBSHIM_KERNEL(name##_fp16, __half, __half, __VA_ARGS__)
#define FIBSHIM_KERNELS_OF_BF16(name, ...) \
  FIBSHIM_KERNEL(name##_bf16, __nv_bfloat16, __nv_bfloat16, __VA_ARGS__)
#define FIBSHIM_KERNELS_OF_BF16_WITH_BIAS(name, ...) \
  FIBSHIM_KERNEL_WITH(kBias, name##_bias_bf16, __nv_bfloat16, __VA_ARGS__)
#define FIBSHIM_KERNELS_WITH_BIAS(name, ...)                               \
  FIBSHIM_KERNEL_WITH(kBias, name##_bias_bf16, __nv_bfloat16, __VA_ARGS__) \
  FIBSHIM_KERNEL_WITH(kBias, name##_bias_fp16, __half, __VA_ARGS__)
#define FIBSHIM_KERNELS_WITH_ADDEND(name, ...)                              \
  FIBSHIM_KERNEL_WITH(kAddend, name##_add_bf16, __nv_bfloat16, __VA_ARGS__) \
  FIBSHIM_KERNEL_WITH(kAddend, name##_add_fp16, __half, __VA_ARGS__)
#define FIBSHIM_KERNELS_OF_PARTS(name, ...)                      \
  FIBSHIM_KERNEL(name##_bf16, __nv_bfloat16, float, __VA_ARGS__) \
  FIBSHIM_KERNEL(name##_fp16, __half, float, __VA_ARGS__)

//              warps, columns, cluster, stages, columns that K lacks
FIBSHIM_KERNELS(gemm_k1536_m8, 6, 256, 1, 16)
FIBSHIM_KERNELS(gemm_k2048_m8, 8, 256, 1, 12)
FIBSHIM_KERNELS(gemm_k2560_m8, 10, 256, 1, 10)
FIBSHIM_KERNELS(gemm_k3072_m8, 12, 256, 1, 8)
FIBSHIM_KERNELS(gemm_k3584_m8, 14, 256, 1, 7)
FIBSHIM_KERNELS(gemm_k4096_m8, 16, 256, 1, 6)
FIBSHIM_KERNELS(gemm_k5120_m8, 20, 256, 1, 5)
FIBSHIM_KERNELS(gemm_k7168_m8, 14, 256, 2, 7)
FIBSHIM_KERNELS(gemm_k8192_m8, 16, 256, 2, 6)
FIBSHIM_KERNELS(gemm_k9728_m8, 19, 256, 2, 5)
FIBSHIM_KERNELS_OF_BF16(gemm_k2880_m8, 12, 256, 1, 8, 192)
FIBSHIM_KERNELS_OF_BF16(gemm_k3840_m8, 15, 256, 1, 7)
FIBSHIM_KERNELS_OF_BF16(gemm_k5376_m8, 7, 768, 1, 15)
FIBSHIM_KERNELS_OF_BF16(gemm_k10240_m8, 10, 512, 2, 10)
FIBSHIM_KERNELS_WITH_BIAS(gemm_k1536_m8, 6, 256, 1, 16)
FIBSHIM_KERNELS_WITH_BIAS(gemm_k2048_m8, 8, 256, 1, 12)
FIBSHIM_KERNELS_WITH_BIAS(gemm_k3584_m8, 14, 256, 1, 7)
FIBSHIM_KERNELS_WITH_BIAS(gemm_k4096_m8, 16, 256, 1, 6)
FIBSHIM_KERNELS_WITH_BIAS(gemm_k5120_m8, 20, 256, 1, 5)
FIBSHIM_KERNELS_WITH_BIAS(gemm_k8192_m8, 16, 256, 2, 6)
FIBSHIM_KERNELS_OF_BF16_WITH_BIAS(gemm_k2880_m8, 12, 256, 1, 8, 192)
FIBSHIM_KERNELS_WITH_ADDEND(gemm_k4096_m8, 16, 256, 1, 6)
FIBSHIM_KERNELS_WITH_ADDEND(gemm_k8192_m8, 16, 256, 2, 6)
FIBSHIM_KERNELS_OF_PARTS(gemm_part2048_m8, 8, 256, 1, 12)
FIBSHIM_KERNELS_OF_PARTS(gemm_part3584_m8, 14, 256, 1, 7)
FIBSHIM_KERNELS_OF_PARTS(gemm_part4096_m8, 16, 256, 1, 6)
