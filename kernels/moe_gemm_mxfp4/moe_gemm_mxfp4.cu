// Products of few tokens with the weights of their experts in mxfp4, as gpt-oss has them: 4-bit
// floats (e2m1) with a power of two for each 32 along K, in the layouts that triton_kernels makes
// for Hopper. They replace its matmul_ogs and read what its routing wrote.
//
//   moe_gemm_mxfp4_swiglu_k2880_bf16  out [choices, N / 2] = swiglu of A * B^T + bias, whose even
//                                     columns are the gates: with g = min(gate, limit) and
//                                     u = clamp(up, -limit, limit), out = g * sigmoid(alpha * g) *
//                                     (u + 1)
//   moe_gemm_mxfp4_weighted_k2880_bf16
//                                     out [choices, N] = (A * B^T + bias) times the choice's weight
//
// A choice is one of a token's experts; choices lie sorted by their experts: counts[e] of them from
// offsets[e] on. blocks[i] is an expert and, in its upper half, the number of a block of kBlockRows
// of its choices; -1: none. Row c of A belongs to choice c, or with `gather` to token
// gather[c] / topk.
//
// A tile is 16 rows of B, whose 16 bytes of a lane are the operands of four tensor core instructions
// (K of 64). A block's eight warps share K: each holds its part of eight choices' rows in registers,
// and streams its part of the tiles. The tiles of all (expert, eight choices) are divided evenly
// among the blocks, of which an SM has two: 264 on an H200, for which all of this was chosen.
#include "product.cuh"

namespace fibshim {
namespace {

constexpr int kTileRows = 16;
constexpr int kTokens = 8;
constexpr int kStep = 64;  // columns of a warp's load
constexpr int kSteps = 6;  // of a warp, at most
constexpr int kWarps = 8;
constexpr int kAllSteps = 45;
constexpr int kBlockRows = 16;
constexpr int kMostBlocks = 256;
constexpr int kSums = kTileRows * kTokens;
constexpr int kWriters = kSums / 32;  // warps

struct Call {
  const __nv_bfloat16* a;        // [tokens or choices, K]
  const char* values;            // [experts, N / 4, 2 * K] bytes
  const char* scales;            // [experts, N / 32, K], N padded to 256 and K / 32 to 4
  const float* bias;             // [experts, N]
  const int* gather;             // [choices]; null: row c
  const __nv_bfloat16* weights;  // [choices]
  const int* counts;             // [experts]
  const int* offsets;            // [experts]
  const int* blocks;             // [num_blocks]
  __nv_bfloat16* out;
  float alpha, limit;
  int num_blocks, n, topk, a_stride, out_stride;
  int values_of_expert, values_of_row, scales_of_expert, scales_of_row, bias_of_expert;
};

// The 4 bits' exponents stay as they are in bfloat16, whose bias is another: their values are too
// small by 2 to the 126th. So that sums are not too small for fp32, A is made larger, exactly.
// Numbers of A from 2 to the 63rd on become infinite; a norm's or swiglu's output has none.
constexpr uint32_t kLarger = 0x5f805f80;  // 2 to the 64th, as two bfloat16
constexpr float kRest = 0x1p62f;

// The last three warps have a step less; the processors of an SM get about as many each.
__device__ int steps_of(int warp) { return kSteps - (warp >= kWarps - 3); }
__device__ int first_step_of(int warp) { return warp * kSteps - max(0, warp - (kWarps - 3)); }
static_assert(kWarps * kSteps - 3 == kAllSteps);

// Up to kTokens choices of an expert.
struct Item {
  int expert_and_count;  // the count in the upper half
  int row;               // of the first choice
  __device__ int expert() const { return expert_and_count & 0xffff; }
  __device__ int count() const { return expert_and_count >> 16; }
};

struct Shared {
  Item items[kMostBlocks * (kBlockRows / kTokens)];
  int ends[kWarps];
  __align__(16) float sums[2][kWarps][kSums];
};

// Lists the items. Returns their number.
__device__ int list_items(const Call& call, Shared& shared, int warp, int lane) {
  int items = 0, expert = 0, count = 0, row = 0;
  if (threadIdx.x < call.num_blocks) {
    const int block = call.blocks[threadIdx.x];
    if (block >= 0) {
      expert = block & 0xffff;
      const int first = (block >> 16) * kBlockRows;
      count = min(call.counts[expert] - first, kBlockRows);
      row = call.offsets[expert] + first;
      items = (count + kTokens - 1) / kTokens;
    }
  }
  int end = items;
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const int before = __shfl_up_sync(~0u, end, distance);
    if (lane >= distance) end += before;
  }
  if (lane == 31) shared.ends[warp] = end;
  __syncthreads();
  int all = 0;
#pragma unroll
  for (int i = 0; i < kWarps; ++i) {
    if (i == warp) end += all;
    all += shared.ends[i];
  }
  for (int i = 0; i < items; ++i) {
    shared.items[end - items + i] = {expert | min(count - i * kTokens, kTokens) << 16,
                                     row + i * kTokens};
  }
  __syncthreads();
  return all;
}

// Two floats of 4 bits of each of four registers, as bfloat16 that are too small.
__device__ void widen(uint32_t bits, uint32_t (&wide)[4]) {
  constexpr uint32_t kMask = 0x81c081c0;
  wide[0] = bits & kMask;
  wide[1] = bits << 3 & kMask;
  wide[2] = bits << 6 & kMask;
  wide[3] = (bits << 1 & 0x80008000) | (bits >> 3 & 0x01800180) | (bits >> 7 & 0x00400040);
}

// Byte i as the exponent of a float.
__device__ float scale_of(uint32_t scales, int i) {
  return __uint_as_float((i == 3 ? scales >> 1 : scales << (23 - i * 8)) & 0x7f800000);
}

// A warp's part of the tiles: the load of a tile begins as soon as the same part of the tile before
// is used.
class Stream {
 public:
  __device__ Stream(const Call& call, int warp, int lane)
      : call_(call),
        all_values_(call.values + lane / 8 * call.values_of_row + lane % 8 / 4 * 64 +
                    lane % 4 * 16 + first_step_of(warp) * 128),
        all_scales_(call.scales + lane / 4 * 4 + first_step_of(warp) * 64) {}

  // Moves to a tile of an expert, from which load() loads.
  __device__ void move(int64_t expert, int tile) {
    values_ = all_values_ + expert * call_.values_of_expert + tile * 4 * call_.values_of_row;
    scales_ = all_scales_ + expert * call_.scales_of_expert +
              (tile / 16 * 8 + tile % 8) * call_.scales_of_row + tile / 8 % 2 * 32;
  }
  __device__ void load(int step) {
    loaded_[step] = load_once(values_ + step * 128);
    loaded_scales_[step] = __ldg(reinterpret_cast<const uint32_t*>(scales_ + step * 64));
  }
  __device__ const uint32_t* values(int step) const { return loaded_[step].pairs; }
  __device__ uint32_t scales(int step) const { return loaded_scales_[step]; }

 private:
  const Call& call_;
  const char* const all_values_;
  const char* const all_scales_;
  const char* values_;
  const char* scales_;
  Vector loaded_[kSteps];
  uint32_t loaded_scales_[kSteps];
};

// Loads a warp's part of the rows of A. Lane 4 * g + i has the columns of choice g that an
// instruction wants of it.
__device__ void load_rows(const Call& call, const Item& item, int warp, int lane,
                          uint32_t (&rows)[kSteps][8]) {
  const bool is_there = lane / 4 < item.count();
  int row = item.row + lane / 4;
  if (is_there && call.gather != nullptr) row = call.gather[row] / call.topk;
  const __nv_bfloat16* const from =
      call.a + int64_t{row} * call.a_stride + first_step_of(warp) * kStep + lane % 4 * 2;
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      rows[step][i] = 0;
      if (!is_there || step >= steps_of(warp)) continue;
      rows[step][i] = *reinterpret_cast<const uint32_t*>(from + step * kStep + i * 8);
      asm("mul.rn.bf16x2 %0, %0, %1;" : "+r"(rows[step][i]) : "r"(kLarger));
    }
  }
}

// A thread's part of writing a tile: one sum of all warps, and what becomes of it. What it needs
// beside the sums is loaded before they are there. The first and the second kSums threads of the block take turns.
template <bool kIsGated>
class Writer {
 public:
  __device__ Writer(const Call& call, const Item& item, int tile)
      : token_(threadIdx.x % kTokens),
        column_(tile * kTileRows + threadIdx.x % kSums / kTokens),
        bias_(call.bias[item.expert() * int64_t{call.bias_of_expert} + column_]) {
    if (!kIsGated && token_ < item.count()) weight_ = to_float(call.weights[item.row + token_]);
  }

  __device__ void write(const Call& call, const Item& item,
                        const float (&sums)[kWarps][kSums]) const {
    float sum = 0;
#pragma unroll
    for (int warp = 0; warp < kWarps; ++warp) sum += sums[warp][threadIdx.x % kSums];
    sum = fmaf(sum, kRest, bias_);
    const int64_t out_row = int64_t{item.row + token_} * call.out_stride;
    if constexpr (kIsGated) {
      const float up = __shfl_down_sync(~0u, sum, kTokens);
      if (column_ % 2 != 0 || token_ >= item.count()) return;
      const float gate = fminf(sum, call.limit);
      const float activated = gate / (1 + __expf(-call.alpha * gate));
      const float clamped = fmaxf(fminf(up, call.limit), -call.limit);
      call.out[out_row + column_ / 2] = __float2bfloat16_rn(fmaf(activated, clamped, activated));
    } else if (token_ < item.count()) {
      call.out[out_row + column_] = __float2bfloat16_rn(sum * weight_);
    }
  }

 private:
  int token_, column_;
  float bias_, weight_ = 1;
};

template <bool kIsGated>
__device__ void multiply_experts(const Call& call) {
  __shared__ Shared shared;
  const int lane = threadIdx.x % 32;
  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);  // the compiler sees that lanes agree
  wait_for_kernel_before();
  const int tiles = call.n / kTileRows;
  const int64_t all = int64_t{list_items(call, shared, warp, lane)} * tiles;
  const int begin = static_cast<int>(all * blockIdx.x / gridDim.x);
  int left = static_cast<int>(all * (blockIdx.x + 1) / gridDim.x) - begin;
  if (left == 0) return;
  const Item* item = shared.items + begin / tiles;
  int tile = begin % tiles;
  Stream stream(call, warp, lane);
  stream.move(item->expert(), tile);
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    if (step < steps_of(warp)) stream.load(step);
  }
  uint32_t rows[kSteps][8];
  load_rows(call, *item, warp, lane, rows);
  while (true) {
    const bool is_last_of_item = tile + 1 == tiles, is_more = --left > 0;
    if (is_more) stream.move(item[is_last_of_item].expert(), is_last_of_item ? 0 : tile + 1);
    float sums[4] = {};
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      if (step >= steps_of(warp)) break;
      const uint32_t scales = stream.scales(step);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float part[4] = {};  // of 32 columns
#pragma unroll
        for (int i = half * 2; i < half * 2 + 2; ++i) {
          uint32_t wide[4];
          widen(stream.values(step)[i], wide);
          multiply(part, wide[0], wide[1], wide[2], wide[3], rows[step][i * 2],
                   rows[step][i * 2 + 1]);
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          sums[i] = fmaf(part[i], scale_of(scales, half * 2 + i / 2), sums[i]);
        }
      }
      if (is_more) stream.load(step);
    }
    const Writer<kIsGated> writer(call, *item, tile);
    float(&to)[kSums] = shared.sums[left % 2][warp];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      *reinterpret_cast<float2*>(to + half * kSums / 2 + lane * 2) = {sums[half * 2],
                                                                      sums[half * 2 + 1]};
    }
    __syncthreads();  // once for each tile: by the next one, all have read the sums of this tile
    if (warp / kWriters == left % (kWarps / kWriters))
      writer.write(call, *item, shared.sums[left % 2]);
    if (!is_more) return;
    ++tile;
    if (is_last_of_item) {
      tile = 0;
      load_rows(call, *++item, warp, lane, rows);
    }
  }
}

}  // namespace
}  // namespace fibshim

// a and a_stride must be aligned to 4 bytes, values and their strides to 16, scales and theirs to 4;
// num_blocks is at most 256, N a multiple of 16.
extern "C" __global__ void __launch_bounds__(256, 2)
    moe_gemm_mxfp4_swiglu_k2880_bf16(const __nv_bfloat16* a, const char* values, const char* scales,
                                     const float* bias, const int* gather, const int* counts,
                                     const int* offsets, const int* blocks, __nv_bfloat16* out,
                                     float alpha, float limit, int num_blocks, int n, int topk,
                                     int a_stride, int out_stride, int values_of_expert,
                                     int values_of_row, int scales_of_expert, int scales_of_row,
                                     int bias_of_expert) {
  fibshim::multiply_experts<true>(
      fibshim::Call(a, values, scales, bias, gather, nullptr, counts, offsets, blocks, out, alpha,
                    limit, num_blocks, n, topk, a_stride, out_stride, values_of_expert,
                    values_of_row, scales_of_expert, scales_of_row, bias_of_expert));
}

extern "C" __global__ void __launch_bounds__(256, 2) moe_gemm_mxfp4_weighted_k2880_bf16(
    const __nv_bfloat16* a, const char* values, const char* scales, const float* bias,
    const __nv_bfloat16* weights, const int* counts, const int* offsets, const int* blocks,
    __nv_bfloat16* out, int num_blocks, int n, int a_stride, int out_stride, int values_of_expert,
    int values_of_row, int scales_of_expert, int scales_of_row, int bias_of_expert) {
  fibshim::multiply_experts<false>(
      fibshim::Call(a, values, scales, bias, nullptr, weights, counts, offsets, blocks, out, 0, 0,
                    num_blocks, n, 1, a_stride, out_stride, values_of_expert, values_of_row,
                    scales_of_expert, scales_of_row, bias_of_expert));
}
