// Products of few tokens with the weights of their experts, which are streamed once for every 8
// choices of an expert. A choice c is one of a token's `topk`: C[c] = A[c / topk] * B[e]^T, with e
// its expert.
//
//   moe_gemm_k2048_bf16            C [choices, N] in bfloat16
//   moe_gemm_weighted_k768_bf16    the same, times the choice's weight in fp32
//   moe_gemm_silu_k2048_bf16       the first, and in `out` [choices, N / 2] silu of C's first half
//                                  times the second, rounded once (SGLang's)
//   moe_gemm_silu_vllm_k2048_bf16  the same, with silu rounded before it is multiplied (vLLM's)
//   moe_gemm_each_k2048_bf16, ...  the same for choices that are not sorted: `experts` has the
//                                  expert of each
//
// N is a multiple of 16. `sorted` holds the choices by their experts, padded with the number of
// choices to blocks of `block_size`, a multiple of 8, and `experts` the expert of each block; of -1
// the product is zero. Tiles of 16 rows of B, of all experts, are divided among the blocks.
#include "expert_choices.cuh"

namespace fibshim {
namespace {

// The sizes of a kernel. It must be launched with kBytes of shared memory (config/shared/moe_gemm).
template <class InType, Result result, bool is_sorted, int blocks, int warps, int warp_columns,
          int stages>
struct Shape {
  using In = InType;
  static constexpr bool kIsSorted = is_sorted;
  static constexpr int kBlocks = blocks;  // of an SM
  static constexpr Result kResult = result;
  static constexpr bool kActivates = result == Result::kSilu || result == Result::kSiluRounded;
  static constexpr int kWarps = warps;
  static constexpr int kWarpColumns = warp_columns;  // columns of K that a warp holds
  static constexpr int kK = warps * warp_columns;
  static constexpr int kStages = stages;
  static constexpr int kWarpSums = kRows * kTileRows;
  static constexpr int kSums = kWarps * kStages * kStageBytes;
  static constexpr int kGroups = kSums + 2 * kWarps * kWarpSums * 4;
  static constexpr int kBytes = kGroups + kMostGroups * 8;
  static_assert(kBytes <= 227 * 1024);
};

// Streams the tiles' rows of B for a warp, from one expert to the next: stages of kStageRows rows by
// kStageColumns columns, in the order of the sums.
template <class Shape>
class ExpertStream {
 public:
  __device__ ExpertStream(const typename Shape::In* b, int n, const Group* groups, int first,
                          int tiles, uint32_t ring, int column, int lane)
      : groups_(groups + first / (n / kTileRows)),
        tile_(first % (n / kTileRows)),
        tiles_left_(tiles),
        n_(n),
        b_(reinterpret_cast<const char*>(b + lane / 16 * int64_t{Shape::kK} + column +
                                         lane % 16 * 8)),
        to_(ring + lane / 16 * kStageColumns * 2 + ((lane % 16) ^ (lane / 16 * 4)) * 16) {}

  // Starts to load the next stage, if there is one, and commits one group of copies in any case.
  __device__ void load(int stage) {
    if (left_ == 0 && tiles_left_ > 0) begin_tile();
    if (left_ > 0) {
#pragma unroll
      for (int row = 0; row < kStageRows; row += 2) {
        copy_16_bytes(to_ + stage * kStageBytes + row * kStageColumns * 2, from_ + row * kPitch);
      }
      --left_;
      from_ += left_ % kSteps == 0 ? next_rows_ : kStageColumns * 2;
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
  }

  static constexpr int kSteps = Shape::kWarpColumns / kStageColumns;

 private:
  static constexpr int64_t kPitch = Shape::kK * 2;
  static constexpr int64_t kBack = (kSteps - 1) * kStageColumns * 2;

  // What activates has 8 rows of each half of B in a tile.
  __device__ void begin_tile() {
    const int expert = max(groups_->expert, 0);
    const int row = tile_ * (Shape::kActivates ? kStageRows : kTileRows);
    from_ = b_ + (int64_t{expert} * n_ + row) * kPitch;
    next_rows_ = (Shape::kActivates ? n_ / 2 : kStageRows) * kPitch - kBack;
    left_ = kTileRows / kStageRows * kSteps;
    --tiles_left_;
    if (++tile_ == n_ / kTileRows) {
      tile_ = 0;
      ++groups_;
    }
  }

  const Group* groups_;
  int tile_;  // of the group, not begun
  int tiles_left_;
  int n_;
  const char* b_;
  uint32_t to_;
  const char* from_ = nullptr;
  int64_t next_rows_ = 0;
  int left_ = 0;  // stages of the tile that is loaded
};

template <class Shape>
__device__ void multiply_choices(const typename Shape::In* a, const typename Shape::In* b,
                                 typename Shape::In* c, const float* weights,
                                 typename Shape::In* out, const Choices& choices, int topk, int n) {
  using In = typename Shape::In;
  constexpr int kWarps = Shape::kWarps;
  constexpr int kWarpColumns = Shape::kWarpColumns;
  constexpr int kStages = Shape::kStages;
  extern __shared__ __align__(128) char shared[];
  Group* const groups = reinterpret_cast<Group*>(shared + Shape::kGroups);
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  const int group = lane / 4;  // the lane's choice, and row of B, in the instruction
  const int quad = lane % 4;
  const int column = warp * kWarpColumns;

  wait_for_kernel_before();
  const int tiles_of_group = n / kTileRows;
  const int all_tiles = list_groups<Shape::kIsSorted>(choices, groups, lane) * tiles_of_group;
  const int first = static_cast<int>(int64_t{all_tiles} * blockIdx.x / gridDim.x);
  const int tiles = static_cast<int>(int64_t{all_tiles} * (blockIdx.x + 1) / gridDim.x) - first;

  const uint32_t ring = shared_address(shared) + warp * kStages * kStageBytes;
  float* const sums_of_warps = reinterpret_cast<float*>(shared + Shape::kSums);
  ExpertStream<Shape> stream(b, n, groups, first, tiles, ring, column, lane);
#pragma unroll
  for (int stage = 0; stage < kStages - 1; ++stage) stream.load(stage);

  const auto choice_of = [&](const Group& of, int row) {
    if (Shape::kIsSorted) return choices.sorted[of.place + row];
    return row == 0 ? of.place : choices.count;
  };
  // Adds up a tile's sums of all warps. `at`: the tile in its group.
  const auto add_warps = [&](int tile, const Group& of, int at) {
    const float* const buffer = sums_of_warps + tile % 2 * kWarps * Shape::kWarpSums;
    constexpr int kPairsOfThread = Shape::kActivates ? 2 : 1;
    constexpr int kThreadsOfRow = kPairs / kPairsOfThread;
    share_among_warps<kWarps, kRows * kThreadsOfRow>(tile, [&](int index) {
      const int row = index / kThreadsOfRow;
      const int pair = index % kThreadsOfRow;
      const int choice = choice_of(of, row);
      if (choice >= choices.count) return;
      In* const to = c + int64_t{choice} * n;
      float2 sum = add_up<kWarps>(buffer + sum_index(row, pair), Shape::kWarpSums);
      if (of.expert < 0) sum = {0, 0};
      if constexpr (Shape::kActivates) {
        float2 up = add_up<kWarps>(buffer + sum_index(row, pair + kPairs / 2), Shape::kWarpSums);
        if (of.expert < 0) up = {0, 0};
        const int column = at * kStageRows + pair * 2;
        store_pair(to + column, sum.x, sum.y);
        store_pair(to + n / 2 + column, up.x, up.y);
        sum = round_to<In>(sum);
        up = round_to<In>(up);
        float2 active = {__fdividef(sum.x, 1.0f + __expf(-sum.x)),
                         __fdividef(sum.y, 1.0f + __expf(-sum.y))};
        if (Shape::kResult == Result::kSiluRounded) active = round_to<In>(active);
        store_pair(out + int64_t{choice} * (n / 2) + column, active.x * up.x, active.y * up.y);
      } else {
        if (Shape::kResult == Result::kWeighted) {
          const float weight = weights[choice];
          sum = {sum.x * weight, sum.y * weight};
        }
        store_pair(to + at * kTileRows + pair * 2, sum.x, sum.y);
      }
    });
  };

  // Of every 32 columns a lane holds eight adjacent ones, of A and of B.
  Vector row_of_a[kWarpColumns / 32] = {};
  const uint32_t read_at = ring + group * kStageColumns * 2;
  int stage = 0;
  const Group* now = groups + first / tiles_of_group;
  int at = first % tiles_of_group;
  for (int tile = 0; tile < tiles; ++tile) {
    if (tile == 0 || at == 0) {
      const int choice = choice_of(*now, group);
      const In* const from = a + int64_t{choice / topk} * Shape::kK + column + quad * 8;
#pragma unroll
      for (int i = 0; i < kWarpColumns / 32; ++i) {
        row_of_a[i] = choice < choices.count ? load(from + i * 32) : Vector{};
      }
    }
    float sums[kTileRows / 8][4] = {};
#pragma unroll
    for (int eight = 0; eight < kTileRows / 8; ++eight) {
#pragma unroll
      for (int step = 0; step < ExpertStream<Shape>::kSteps; ++step) {
        asm volatile("cp.async.wait_group %0;" ::"n"(kStages - 2) : "memory");
        __syncwarp();  // other lanes' copies are there, and all have read the stage loaded next
        stream.load(stage == 0 ? kStages - 1 : stage - 1);
        multiply_stage<In>(sums[eight], row_of_a + step * (kStageColumns / 32),
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
    __syncthreads();
    add_warps(tile, *now, at);
    if (++at == tiles_of_group) {
      at = 0;
      ++now;
    }
  }
}

}  // namespace
}  // namespace fibshim

// A [choices / topk, K] and B [experts, N, K] must be aligned to 16 bytes, C and `out` to 4.
#define FIBSHIM_KERNEL(name, call, ...)                                                          \
  extern "C" __global__ void __launch_bounds__(name##_shape::kWarps * 32, name##_shape::kBlocks) \
      name(__VA_ARGS__) {                                                                        \
    fibshim::multiply_choices<name##_shape> call;                                                \
  }
#define FIBSHIM_NOTHING
#define FIBSHIM_WEIGHTS const float *weights,
#define FIBSHIM_OUT __nv_bfloat16 *out,
#define FIBSHIM_KERNEL_OF_SORTED(name, result, more, weights, out, ...)                           \
  using name##_shape = fibshim::Shape<__nv_bfloat16, fibshim::Result::result, true, __VA_ARGS__>; \
  FIBSHIM_KERNEL(                                                                                 \
      name,                                                                                       \
      (a, b, c, weights, out, {experts, choices, sorted, used, length, block_size}, topk, n),     \
      const __nv_bfloat16* a, const __nv_bfloat16* b, __nv_bfloat16* c, more const int* sorted,   \
      const int* experts, const int* used, int choices, int length, int block_size, int topk,     \
      int n)
#define FIBSHIM_KERNEL_OF_EACH(name, result, more, weights, out, ...)                              \
  using name##_shape = fibshim::Shape<__nv_bfloat16, fibshim::Result::result, false, __VA_ARGS__>; \
  FIBSHIM_KERNEL(name, (a, b, c, weights, out, {experts, choices}, topk, n),                       \
                 const __nv_bfloat16* a, const __nv_bfloat16* b, __nv_bfloat16* c,                 \
                 more const int* experts, int choices, int topk, int n)

// clang-format off
//                                                      blocks of an SM, warps, columns, stages (H200)
FIBSHIM_KERNEL_OF_SORTED(moe_gemm_k2048_bf16, kProduct, FIBSHIM_NOTHING, nullptr, nullptr, 2, 8, 256, 4)
FIBSHIM_KERNEL_OF_SORTED(moe_gemm_silu_k2048_bf16, kSilu, FIBSHIM_OUT, nullptr, out, 2, 8, 256, 4)
FIBSHIM_KERNEL_OF_SORTED(moe_gemm_silu_vllm_k2048_bf16, kSiluRounded, FIBSHIM_OUT, nullptr, out, 2, 8, 256, 4)
FIBSHIM_KERNEL_OF_SORTED(moe_gemm_weighted_k768_bf16, kWeighted, FIBSHIM_WEIGHTS, weights, nullptr, 4, 6, 128, 3)
FIBSHIM_KERNEL_OF_EACH(moe_gemm_each_k2048_bf16, kProduct, FIBSHIM_NOTHING, nullptr, nullptr, 2, 8, 256, 4)
FIBSHIM_KERNEL_OF_EACH(moe_gemm_each_silu_vllm_k2048_bf16, kSiluRounded, FIBSHIM_OUT, nullptr, out, 2, 8, 256, 4)
FIBSHIM_KERNEL_OF_EACH(moe_gemm_each_weighted_k768_bf16, kWeighted, FIBSHIM_WEIGHTS, weights, nullptr, 4, 6, 128, 3)
// clang-format on
