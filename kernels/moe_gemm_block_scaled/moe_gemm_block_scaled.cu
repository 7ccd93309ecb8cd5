// Products of few tokens with the weights of their experts, in fp8 (e4m3) with a scale for each block of 128 x 128 of the weights and for each 128
// elements of a row of A. A choice c is one of a token's `topk`: C[c] = A[c / topk] * B[e]^T, with e its expert, in bfloat16.
//
//   moe_gemm_block_scaled_k2048                  C [choices, N]
//   moe_gemm_block_scaled_weighted_k768          the same, times the choice's weight in fp32
//   moe_gemm_block_scaled_silu_vllm_k2048        the first, and in `out` [choices, N / 2] silu of C's first half, rounded, times the second (vLLM's)
//   moe_gemm_block_scaled_each_k2048, ...        the same for choices that are not sorted: `experts` has the expert of each
// and of A in bfloat16, which is quantised first, to `quantized` and `scale_a`:
//   quant_then_moe_gemm_block_scaled_silu_k2048  as SGLang quantises (block_scales.cuh); silu is not rounded
//   quant_then_moe_gemm_block_scaled_weighted_k768
//   quant_then_moe_gemm_block_scaled_ue8m0_...   as vLLM does, with scales that are powers of two
//
// N is a multiple of 128, and of 256 where it is halved. Of -1 an expert's product is zero. Weights are streamed once for every 8 choices of an expert:
// tiles of 16 rows of B, of all experts, are divided among the blocks. A warp has some columns of K, of which every 128 are summed by themselves on the
// tensor cores, then scaled and added.
#include <type_traits>

#include "block_scales.cuh"
#include "expert_choices.cuh"

namespace fibshim {
namespace {

using Fp8 = uint8_t;
using Type = __nv_bfloat16;

constexpr int kBlockOfScale = 128;  // columns of K, and rows of B
constexpr int kChunk = 64;          // columns of which a lane holds 16 adjacent ones
constexpr int kChunks = kBlockOfScale / kChunk;
constexpr int kPieceBytes =
    kTileRows * kBlockOfScale + 16;  // a tile's rows in the ring, and behind them their two scales
constexpr int kSumPitch = 20;  // of a choice's sums, so that a warp's stores go to different banks
constexpr int kSums = kRows * kSumPitch;

// Of a group, for the warps that add up its sums. Only what multiplies by weights has them.
struct Chosen {
  int choices[kRows];
  float weights[kRows];
};

// The sizes of a kernel. It must be launched with kBytes of shared memory (config/shared/moe_gemm_block_scaled).
template <Result result, bool is_sorted, int blocks, int warps, int blocks_of_warp, int pieces>
struct Shape {
  static constexpr bool kIsSorted = is_sorted;
  static constexpr int kBlocks = blocks;  // of an SM
  static constexpr Result kResult = result;
  static constexpr bool kActivates = result == Result::kSilu || result == Result::kSiluRounded;
  static constexpr int kWarps = warps;
  static constexpr int kBlocksOfWarp = blocks_of_warp;  // of 128 columns of K
  static constexpr int kK = warps * blocks_of_warp * kBlockOfScale;
  static constexpr int kPieces = pieces;  // in a warp's ring
  static constexpr int kSumsAt = kWarps * kPieces * kPieceBytes;
  static constexpr int kGroups = kSumsAt + 2 * kWarps * kSums * 4;
  static constexpr int kChosen = kGroups + kMostGroups * 8;
  static constexpr int kBytes = kChosen + 2 * sizeof(Chosen);
  static_assert(kBytes <= 227 * 1024);
};

// Walks over the tiles of the groups.
struct Tile {
  const Group* group;
  int at;  // in the group
  __device__ void advance(int tiles_of_group) {
    if (++at == tiles_of_group) {
      at = 0;
      ++group;
    }
  }
};

// Streams the tiles' rows of B for a warp, by 128 columns. What activates has 8 rows of each half of B in a tile.
template <class Shape>
class WeightStream {
 public:
  // scales: [experts, N / 128, K / 128].
  __device__ WeightStream(const Fp8* b, const float* scales, int n, Tile first, int tiles,
                          uint32_t ring, int column, int lane)
      : tile_(first),
        tiles_left_(tiles),
        n_(n),
        b_(b + lane / 8 * int64_t{Shape::kK} + column + lane % 8 * 16),
        scales_(scales + column / kBlockOfScale),
        ring_(ring),
        to_(lane / 8 * kBlockOfScale + ((lane % 8) ^ (lane / 8 % 2 * 4)) * 16) {}

  // Starts to load the next piece, if there is one, and commits one group of copies in any case.
  __device__ void load(int piece) {
    if (left_ == 0 && tiles_left_ > 0) begin_tile();
    if (left_ > 0) {
      const uint32_t to = ring_ + piece * kPieceBytes;
#pragma unroll
      for (int row = 0; row < kTileRows; row += 4) {
        copy_16_bytes(to + to_ + row * kBlockOfScale,
                      from_ + row % 8 * int64_t{Shape::kK} + (row < 8 ? 0 : second_half_));
      }
      const int lane = threadIdx.x % 32;
      if (lane < 2) copy_4_bytes(to + kTileRows * kBlockOfScale + lane * 4, scale_);
      --left_;
      from_ += kBlockOfScale;
      ++scale_;
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
  }

 private:
  static constexpr int kScalesOfRow = Shape::kK / kBlockOfScale;

  __device__ static void copy_4_bytes(uint32_t to, const void* from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(from) : "memory");
  }
  __device__ void begin_tile() {
    const int expert = max(tile_.group->expert, 0);
    const int row = tile_.at * (Shape::kActivates ? 8 : kTileRows);
    from_ = b_ + (int64_t{expert} * n_ + row) * Shape::kK;
    second_half_ = int64_t{Shape::kActivates ? n_ / 2 : 8} * Shape::kK;
    const int of_row = expert * (n_ / kBlockOfScale) + row / kBlockOfScale;
    const int further = Shape::kActivates ? n_ / 2 / kBlockOfScale : 0;
    scale_ = scales_ + int64_t{of_row + (threadIdx.x % 2) * further} * kScalesOfRow;
    left_ = Shape::kBlocksOfWarp;
    --tiles_left_;
    tile_.advance(n_ / kTileRows);
  }

  Tile tile_;  // not begun
  int tiles_left_;
  int n_;
  const Fp8* b_;
  const float* scales_;
  uint32_t ring_;
  uint32_t to_;
  const Fp8* from_ = nullptr;
  const float* scale_ =
      nullptr;  // of the first half of the tile's rows in even lanes, of the second in odd ones
  int64_t second_half_ = 0;
  int left_ = 0;  // pieces of the tile that is loaded
};

// 16 elements as fp16, which has all numbers of fp8: Hopper's instructions for warps multiply nothing smaller.
struct Wide {
  uint32_t pairs[8];
};

__device__ inline Wide widen(const Vector& fp8) {
  Wide wide;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const __half2_raw pair = __nv_cvt_fp8x2_to_halfraw2(
        static_cast<__nv_fp8x2_storage_t>(fp8.pairs[i / 2] >> i % 2 * 16), __NV_E4M3);
    wide.pairs[i] = pair.x | uint32_t{pair.y} << 16;
  }
  return wide;
}

// What a lane has of a group's rows of A: of every 64 columns 16 adjacent ones of one choice, and the scales of two.
template <class Shape>
struct Rows {
  Wide wide[Shape::kBlocksOfWarp * kChunks];
  float2 scales[Shape::kBlocksOfWarp];

  // `scale`: of the lane's choice. The lane makes sums of the choices 2 * quad and 2 * quad + 1.
  __device__ void set_scale(int block, float scale, int quad) {
    scales[block] = {__shfl_sync(~0u, scale, quad * 8), __shfl_sync(~0u, scale, quad * 8 + 4)};
  }
  // `at`: where row `group` of a piece begins in shared memory. The order of columns does not affect the sums. The halves of 64 bytes of odd rows are
  // exchanged, so that the eight lanes of an access, which read two rows, use different banks.
  __device__ void multiply(float (&sums)[4], int block, uint32_t at, int group, int quad) const {
    float scale_b[2];  // of the tile's halves
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];"
                 : "=f"(scale_b[0]), "=f"(scale_b[1])
                 : "r"(at + (kTileRows - group) * kBlockOfScale));
    float part[4] = {};
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
      const uint32_t from = at + ((i * 4 + quad) ^ (group % 2 * 4)) * 16;
      const Wide upper = widen(load_from_shared(from));
      const Wide lower = widen(load_from_shared(from + 8 * kBlockOfScale));
      const Wide& x = wide[block * kChunks + i];
#pragma unroll
      for (int j = 0; j < 8; j += 2) {
        multiply_pairs<__half>(part, upper.pairs[j], lower.pairs[j], upper.pairs[j + 1],
                               lower.pairs[j + 1], x.pairs[j], x.pairs[j + 1]);
      }
    }
    sums[0] = fmaf(part[0], scales[block].x * scale_b[0], sums[0]);
    sums[1] = fmaf(part[1], scales[block].y * scale_b[0], sums[1]);
    sums[2] = fmaf(part[2], scales[block].x * scale_b[1], sums[2]);
    sums[3] = fmaf(part[3], scales[block].y * scale_b[1], sums[3]);
  }
};

template <class Shape>
struct QuantizedRows : Rows<Shape> {
  const Fp8* a;
  Scales of_a;

  __device__ QuantizedRows(const Fp8* a, const Scales& of_a) : a(a), of_a(of_a) {}
  // The warp calls it. A row that is not there is zero.
  __device__ void load(int row, bool is_there, int column, int quad) {
    const Fp8* const from = a + int64_t{row} * Shape::kK + column + quad * 16;
#pragma unroll
    for (int i = 0; i < Shape::kBlocksOfWarp * kChunks; ++i) {
      this->wide[i] = widen(is_there ? fibshim::load(from + i * kChunk) : Vector{});
    }
#pragma unroll
    for (int i = 0; i < Shape::kBlocksOfWarp; ++i) {
      this->set_scale(i, is_there ? of_a.load(row, column / kBlockOfScale + i) : 0.0f, quad);
    }
  }
  __device__ void store_all(int, int, int, int) {}
};

template <class Shape, class Rule>
struct RowsToQuantize : Rows<Shape> {
  const Type* a;
  Fp8* quantized;
  Scales of_a;
  float least;
  bool hides_nan;

  __device__ RowsToQuantize(const Type* a, Fp8* quantized, const Scales& of_a, float least,
                            bool hides_nan)
      : a(a), quantized(quantized), of_a(of_a), least(least), hides_nan(hides_nan) {}
  // As QuantizedRows.
  __device__ void load(int row, bool is_there, int column, int quad) {
    quantize_row(row, is_there, column, quad,
                 [&](int block, const Vector(&fp8)[kChunks], float scale) {
#pragma unroll
                   for (int i = 0; i < kChunks; ++i)
                     this->wide[block * kChunks + i] = widen(fp8[i]);
                   this->set_scale(block, scale, quad);
                 });
  }
  // Blocks take eight rows each to store what all make of them for themselves.
  __device__ void store_all(int rows, int column, int group, int quad) {
    for (int first = blockIdx.x * kRows; first < rows; first += gridDim.x * kRows) {
      const int row = first + group;
      Fp8* const to = quantized + int64_t{row} * Shape::kK + column + quad * 16;
      quantize_row(row, row < rows, column, quad,
                   [&](int block, const Vector(&fp8)[kChunks], float scale) {
                     if (row >= rows) return;
#pragma unroll
                     for (int i = 0; i < kChunks; ++i)
                       store(to + (block * kChunks + i) * kChunk, fp8[i]);
                     if (quad == 0) of_a.store(row, column / kBlockOfScale + block, scale);
                   });
    }
  }

 private:
  __device__ Rule rule_for(float largest) const {
    if constexpr (std::is_same_v<Rule, Floored>) {
      return {largest, least, hides_nan};
    } else {
      return {largest, least};
    }
  }
  __device__ static uint2 quantize_by(const Rule& rule, const Vector& vector) {
    float2 scaled[kPairsPerVector];
#pragma unroll
    for (int i = 0; i < kPairsPerVector; ++i) {
      const float2 pair = Pair<Type>::unpack(vector.pairs[i]);
      scaled[i] = {rule(pair.x), rule(pair.y)};
    }
    return quantize(scaled);
  }
  // Calls `take(block, fp8, scale)` for each of the warp's blocks of a row. The warp calls it.
  template <class Take>
  __device__ void quantize_row(int row, bool is_there, int column, int quad, Take take) const {
    const Type* const from = a + int64_t{row} * Shape::kK + column + quad * 16;
    Vector plain[Shape::kBlocksOfWarp][kChunks][2];
#pragma unroll
    for (int i = 0; i < Shape::kBlocksOfWarp * kChunks; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        plain[i / kChunks][i % kChunks][half] =
            is_there ? fibshim::load(from + i * kChunk + half * 8) : Vector{};
      }
    }
#pragma unroll
    for (int block = 0; block < Shape::kBlocksOfWarp; ++block) {
      float largest = 0;
#pragma unroll
      for (const auto& chunk : plain[block]) {
        largest = fmaxf(largest, fmaxf(largest_of<Type>(chunk[0]), largest_of<Type>(chunk[1])));
      }
      const Rule rule = rule_for(largest_in_lanes<4>(largest));
      Vector fp8[kChunks];
#pragma unroll
      for (int i = 0; i < kChunks; ++i) {
        const uint2 low = quantize_by(rule, plain[block][i][0]);
        const uint2 high = quantize_by(rule, plain[block][i][1]);
        fp8[i] = {{low.x, low.y, high.x, high.y}};
      }
      take(block, fp8, rule.scale);
    }
  }
};

template <class Shape>
using FlooredRows = RowsToQuantize<Shape, Floored>;
template <class Shape>
using Ue8m0Rows = RowsToQuantize<Shape, MultipliedOrLowest<true>>;

template <class Shape, class RowsOfA>
__device__ void multiply_choices(RowsOfA rows, const Fp8* b, const float* scale_b, Type* c,
                                 const float* weights, Type* out, const Choices& choices, int topk,
                                 int n) {
  constexpr int kWarps = Shape::kWarps;
  constexpr int kPieces = Shape::kPieces;
  extern __shared__ __align__(128) char shared[];
  Group* const groups = reinterpret_cast<Group*>(shared + Shape::kGroups);
  Chosen* const chosen = reinterpret_cast<Chosen*>(shared + Shape::kChosen);  // two take turns
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  const int group = lane / 4;  // the lane's choice, and rows of B, in the instruction
  const int quad = lane % 4;
  const int column = warp * Shape::kBlocksOfWarp * kBlockOfScale;

  wait_for_kernel_before();
  const int tiles_of_group = n / kTileRows;
  const int all_tiles = list_groups<Shape::kIsSorted>(choices, groups, lane) * tiles_of_group;
  const int first = static_cast<int>(int64_t{all_tiles} * blockIdx.x / gridDim.x);
  const int tiles = static_cast<int>(int64_t{all_tiles} * (blockIdx.x + 1) / gridDim.x) - first;

  const uint32_t ring = shared_address(shared) + warp * kPieces * kPieceBytes;
  float* const sums_of_warps = reinterpret_cast<float*>(shared + Shape::kSumsAt);
  Tile now = {groups + first / tiles_of_group, first % tiles_of_group};
  WeightStream<Shape> stream(b, scale_b, n, now, tiles, ring, column, lane);
#pragma unroll
  for (int piece = 0; piece < kPieces - 1; ++piece) stream.load(piece);
  rows.store_all(choices.count / topk, column, group, quad);

  const auto choice_of = [&](const Group& of, int row) {
    if (Shape::kIsSorted) return choices.sorted[of.place + row];
    return row == 0 ? of.place : choices.count;
  };
  // Adds up a tile's sums of all warps.
  const auto add_warps = [&](int index_of_tile, const Chosen& of_group) {
    const float* const buffer = sums_of_warps + index_of_tile % 2 * kWarps * kSums;
    constexpr int kPairsOfThread = Shape::kActivates ? 2 : 1;
    constexpr int kThreadsOfRow = kPairs / kPairsOfThread;
    share_among_warps<kWarps, kRows * kThreadsOfRow>(index_of_tile, [&](int index) {
      const int row = index / kThreadsOfRow;
      const int pair = index % kThreadsOfRow;
      const int choice = of_group.choices[row];
      if (choice >= choices.count) return;
      Type* const to = c + int64_t{choice} * n;
      const float* const from = buffer + row * kSumPitch + pair * 2;
      float2 sum = add_up<kWarps>(from, kSums);
      if (now.group->expert < 0) sum = {0, 0};
      if constexpr (Shape::kActivates) {
        float2 up = add_up<kWarps>(from + kPairs, kSums);
        if (now.group->expert < 0) up = {0, 0};
        const int column = now.at * 8 + pair * 2;
        store_pair(to + column, sum.x, sum.y);
        store_pair(to + n / 2 + column, up.x, up.y);
        sum = round_to<Type>(sum);
        up = round_to<Type>(up);
        float2 active = {__fdividef(sum.x, 1.0f + __expf(-sum.x)),
                         __fdividef(sum.y, 1.0f + __expf(-sum.y))};
        if (Shape::kResult == Result::kSiluRounded) active = round_to<Type>(active);
        store_pair(out + int64_t{choice} * (n / 2) + column, active.x * up.x, active.y * up.y);
      } else {
        if (Shape::kResult == Result::kWeighted) {
          sum = {sum.x * of_group.weights[row], sum.y * of_group.weights[row]};
        }
        store_pair(to + now.at * kTileRows + pair * 2, sum.x, sum.y);
      }
    });
  };

  int piece = 0;
  int turn = 0;
  for (int tile = 0; tile < tiles; ++tile) {
    const bool begins_group = tile == 0 || now.at == 0;
    int choice = 0;
    float weight = 0;
    if (begins_group) {
      turn ^= 1;
      choice = choice_of(*now.group, group);
      if (Shape::kResult == Result::kWeighted && choice < choices.count) weight = weights[choice];
      rows.load(choice / topk, choice < choices.count, column, quad);
    }
    float sums[4] = {};
#pragma unroll
    for (int block = 0; block < Shape::kBlocksOfWarp; ++block) {
      asm volatile("cp.async.wait_group %0;" ::"n"(kPieces - 2) : "memory");
      __syncwarp();  // other lanes' copies are there, and all have read the piece loaded next
      stream.load(piece == 0 ? kPieces - 1 : piece - 1);
      rows.multiply(sums, block, ring + piece * kPieceBytes + group * kBlockOfScale, group, quad);
      piece = piece + 1 == kPieces ? 0 : piece + 1;
    }

    // Two buffers are enough: a warp that writes one has passed the last tile's barrier, and by
    // then all warps have read the sums of the tile before that.
    float* const own = sums_of_warps + (tile % 2 * kWarps + warp) * kSums + quad * 2 * kSumPitch;
    own[group] = sums[0];
    own[group + kSumPitch] = sums[1];
    own[group + 8] = sums[2];
    own[group + 8 + kSumPitch] = sums[3];
    if (begins_group && warp == 0 && quad == 0) {
      chosen[turn].choices[group] = choice;
      chosen[turn].weights[group] = weight;
    }
    __syncthreads();
    add_warps(tile, chosen[turn]);
    now.advance(tiles_of_group);
  }
}

}  // namespace
}  // namespace fibshim

// A [choices / topk, K], B [experts, N, K] and `quantized` must be aligned to 16 bytes, C and `out` to 4. The scale of a row's block of A is at row * scale_row_stride + block * scale_block_stride.
// clang-format off
#define FIBSHIM_A_QUANTIZED const uint8_t *a, const float *scale_a
#define FIBSHIM_A_PLAIN const __nv_bfloat16 *a, uint8_t *quantized, float *scale_a, float least, int hides_nan
#define FIBSHIM_ROWS_QUANTIZED {a, {const_cast<float*>(scale_a), scale_row_stride, scale_block_stride}}
#define FIBSHIM_ROWS_PLAIN {a, quantized, {scale_a, scale_row_stride, scale_block_stride}, least, hides_nan != 0}
#define FIBSHIM_PARAMETER_NONE
#define FIBSHIM_PARAMETER_WEIGHTS const float *weights,
#define FIBSHIM_PARAMETER_OUT __nv_bfloat16 *out,
#define FIBSHIM_POINTERS_NONE nullptr, nullptr
#define FIBSHIM_POINTERS_WEIGHTS weights, nullptr
#define FIBSHIM_POINTERS_OUT nullptr, out
#define FIBSHIM_CHOICES_SORTED const int *sorted, const int *experts, const int *used, int choices, int length, int block_size
#define FIBSHIM_CHOICES_EACH const int *experts, int choices
#define FIBSHIM_STRUCT_SORTED {experts, choices, sorted, used, length, block_size}
#define FIBSHIM_STRUCT_EACH {experts, choices}
#define FIBSHIM_KERNEL(name, of_a, rows, more, of_choices, result, ...)                                                                      \
  struct name##_shape : fibshim::Shape<fibshim::Result::result, __VA_ARGS__> {};                                                              \
  extern "C" __global__ void __launch_bounds__(name##_shape::kWarps * 32, name##_shape::kBlocks)                                              \
      name(FIBSHIM_A_##of_a, int scale_row_stride, int scale_block_stride, const uint8_t* b, const float* scale_b, __nv_bfloat16* c,          \
           FIBSHIM_PARAMETER_##more FIBSHIM_CHOICES_##of_choices, int topk, int n) {                                                          \
    const fibshim::rows<name##_shape> of FIBSHIM_ROWS_##of_a;                                                                                             \
    fibshim::multiply_choices<name##_shape>(of, b, scale_b, c, FIBSHIM_POINTERS_##more, FIBSHIM_STRUCT_##of_choices, topk, n);             \
  }

//                                                                                                         sorted, blocks of an SM, warps, blocks of a warp, pieces
FIBSHIM_KERNEL(moe_gemm_block_scaled_k2048, QUANTIZED, QuantizedRows, NONE, SORTED, kProduct,                  true, 2, 8, 2, 3)
FIBSHIM_KERNEL(moe_gemm_block_scaled_weighted_k768, QUANTIZED, QuantizedRows, WEIGHTS, SORTED, kWeighted,      true, 4, 6, 1, 3)
FIBSHIM_KERNEL(moe_gemm_block_scaled_silu_vllm_k2048, QUANTIZED, QuantizedRows, OUT, SORTED, kSiluRounded,     true, 2, 8, 2, 3)
FIBSHIM_KERNEL(moe_gemm_block_scaled_each_k2048, QUANTIZED, QuantizedRows, NONE, EACH, kProduct,               false, 2, 8, 2, 3)
FIBSHIM_KERNEL(moe_gemm_block_scaled_each_weighted_k768, QUANTIZED, QuantizedRows, WEIGHTS, EACH, kWeighted,   false, 4, 6, 1, 3)
FIBSHIM_KERNEL(moe_gemm_block_scaled_each_silu_vllm_k2048, QUANTIZED, QuantizedRows, OUT, EACH, kSiluRounded,  false, 2, 8, 2, 3)
FIBSHIM_KERNEL(quant_then_moe_gemm_block_scaled_silu_k2048, PLAIN, FlooredRows, OUT, SORTED, kSilu,            true, 2, 8, 2, 3)
FIBSHIM_KERNEL(quant_then_moe_gemm_block_scaled_weighted_k768, PLAIN, FlooredRows, WEIGHTS, SORTED, kWeighted, true, 4, 6, 1, 3)
FIBSHIM_KERNEL(quant_then_moe_gemm_block_scaled_ue8m0_weighted_k768, PLAIN, Ue8m0Rows, WEIGHTS, SORTED, kWeighted, true, 4, 6, 1, 3)
FIBSHIM_KERNEL(quant_then_moe_gemm_block_scaled_ue8m0_each_weighted_k768, PLAIN, Ue8m0Rows, WEIGHTS, EACH, kWeighted, false, 4, 6, 1, 3)
// clang-format on
