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
// of its choices; -1: none, nor any behind it. Row c of A belongs to choice c, or with `gather` to
// token gather[c] / topk.
//
// A tile is 16 rows of B, whose 16 bytes of a lane are the operands of four tensor core instructions
// (K of 64). A block's eight warps share K: each streams its part of the tiles, and multiplies it
// with its part of up to 16 choices' rows, which lie in shared memory. The tiles of all items of
// `blocks` are divided among the thread blocks by what they cost. An SM has two of these: 264 on an
// H200, for which all of this was chosen.
#include "product.cuh"

namespace fibshim {
namespace {

constexpr int kTileRows = 16;
constexpr int kTokens = 8;  // of a tensor core instruction
constexpr int kStep = 64;   // columns of a warp's load
constexpr int kSteps = 6;   // of a warp, at most
constexpr int kWarps = 8;
constexpr int kThreads = kWarps * 32;
constexpr int kAllSteps = 45;
constexpr int kColumns = kAllSteps * kStep;
constexpr int kPitch =
    kColumns * 2 + 16;  // bytes of a row of A in shared memory: no bank conflicts
constexpr int kBlockRows = 16;
constexpr int kMostHalves = kBlockRows / kTokens;
constexpr int kSums = kTileRows * kTokens;

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

// Up to kBlockRows choices of an expert.
struct Item {
  int expert, count;
  int row;   // of the first choice
  int cost;  // of a tile; 0: no item
  int end;   // the sum of the costs up to this item
  __device__ int start() const { return end - cost; }
};

struct Shared {
  __align__(16) char rows[kBlockRows * kPitch];
  __align__(16) float sums[2][kMostHalves][kWarps][kSums];
  Item items[kThreads];
  int ends[kWarps];
  int first;
};

// A thread block's part of the costs of all tiles, which are `tiles` of each item.
struct Part {
  int begin, end;
};

// Lists the items, and finds this thread block's part and its first item.
__device__ Part divide(const Call& call, Shared& shared, int tiles, int warp, int lane) {
  Item item = {};
  const int block = threadIdx.x < call.num_blocks ? call.blocks[threadIdx.x] : -1;
  if (block >= 0) {
    item.expert = block & 0xffff;
    const int first = (block >> 16) * kBlockRows;
    item.count = min(call.counts[item.expert] - first, kBlockRows);
    item.row = call.offsets[item.expert] + first;
    item.cost = item.count > kTokens ? 4 : 3;
  }
  item.end = item.cost;
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const int before = __shfl_up_sync(~0u, item.end, distance);
    if (lane >= distance) item.end += before;
  }
  if (lane == 31) shared.ends[warp] = item.end;
  __syncthreads();
  int all = 0;
#pragma unroll
  for (int i = 0; i < kWarps; ++i) {
    if (i == warp) item.end += all;
    all += shared.ends[i];
  }
  const int64_t costs = int64_t{all} * tiles;
  const Part part = {static_cast<int>(costs * blockIdx.x / gridDim.x),
                     static_cast<int>(costs * (blockIdx.x + 1) / gridDim.x)};
  shared.items[threadIdx.x] = item;
  if (item.start() * tiles <= part.begin && part.begin < item.end * tiles) {
    shared.first = threadIdx.x;
  }
  __syncthreads();
  return part;
}

// Two floats of 4 bits of each of four registers, as bfloat16 that are too small.
__device__ void widen(uint32_t bits, uint32_t (&wide)[4]) {
  constexpr uint32_t kMask = 0x81c081c0;
  wide[0] = bits & kMask;
  wide[1] = bits << 3 & kMask;
  wide[2] = bits << 6 & kMask;
  const uint32_t signs = bits << 1;  // and, a byte too far left, the last bits
  wide[3] = (__byte_perm(signs, 0, 0x3311) & 0x80408040) | (bits >> 3 & 0x01800180);
}

// Byte i as the exponent of a float.
__device__ float scale_of(uint32_t scales, int i) {
  return __uint_as_float((i == 3 ? scales >> 1 : scales << (23 - i * 8)) & 0x7f800000);
}

// A warp's part of an expert's tiles: the load of a tile begins as soon as the same part of the tile before
// is used.
class Stream {
 public:
  __device__ Stream(const Call& call, int64_t expert, int warp, int lane)
      : call_(call),
        all_values_(call.values + expert * call.values_of_expert + lane / 8 * call.values_of_row +
                    lane % 8 / 4 * 64 + lane % 4 * 16 + first_step_of(warp) * 128),
        all_scales_(call.scales + expert * call.scales_of_expert + lane / 4 * 4 +
                    first_step_of(warp) * 64) {}

  // Moves to a tile, from which load() loads.
  __device__ void move(unsigned tile) {
    values_ = all_values_ + tile * 4 * unsigned(call_.values_of_row);
    scales_ = all_scales_ + (tile / 16 * 8 + tile % 8) * unsigned(call_.scales_of_row) +
              tile / 8 % 2 * 32;
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

__device__ void load_rows(const Call& call, const Item& item, char* rows) {
  constexpr int kVectors = kColumns / kElementsPerVector;
  for (int i = threadIdx.x; i < item.count * kVectors; i += kThreads) {
    const int choice = i / kVectors, vector = i % kVectors;
    int row = item.row + choice;
    if (call.gather != nullptr) row = __ldg(call.gather + row) / call.topk;
    Vector loaded = load(call.a + int64_t{row} * call.a_stride + vector * kElementsPerVector);
#pragma unroll
    for (uint32_t& pair : loaded.pairs) {
      asm("mul.rn.bf16x2 %0, %0, %1;" : "+r"(pair) : "r"(kLarger));
    }
    store(rows + choice * kPitch + vector * 16, loaded);
  }
}

// A thread's part of writing a tile: one sum of all warps, and what becomes of it. What it needs
// beside the sums is loaded before they are there.
template <bool kIsGated>
class Writer {
 public:
  __device__ Writer(const Call& call, const Item& item, int tile, int half)
      : token_(half * kTokens + threadIdx.x % kTokens),
        column_(tile * kTileRows + threadIdx.x % kSums / kTokens),
        bias_(call.bias[item.expert * int64_t{call.bias_of_expert} + column_]) {
    if (!kIsGated && token_ < item.count) weight_ = to_float(call.weights[item.row + token_]);
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
      if (column_ % 2 != 0 || token_ >= item.count) return;
      const float gate = fminf(sum, call.limit);
      const float activated = gate / (1 + __expf(-call.alpha * gate));
      const float clamped = fmaxf(fminf(up, call.limit), -call.limit);
      call.out[out_row + column_ / 2] = __float2bfloat16_rn(fmaf(activated, clamped, activated));
    } else if (token_ < item.count) {
      call.out[out_row + column_] = __float2bfloat16_rn(sum * weight_);
    }
  }

 private:
  int token_, column_;
  float bias_, weight_ = 1;
};

// Multiplies the tiles from `tile` to `end` with the rows of an item of up to kHalves * kTokens choices.
template <bool kIsGated, int kHalves>
__device__ void multiply_tiles(const Call& call, Shared& shared, const Item& item, int tile,
                               int end, int warp, int lane) {
  Stream stream(call, item.expert, warp, lane);
  stream.move(tile);
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    if (step < steps_of(warp)) stream.load(step);
  }
  load_rows(call, item, shared.rows);
  __syncthreads();
  const uint32_t rows = shared_address(shared.rows) + lane % 8 * kPitch + lane / 8 * 16 +
                        first_step_of(warp) * kStep * 2;
  for (; tile < end; ++tile) {
    const bool is_more = tile + 1 < end;
    if (is_more) stream.move(tile + 1);
    float sums[kHalves][4] = {};
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      if (step >= steps_of(warp)) break;
      const uint32_t scales = stream.scales(step);
#pragma unroll
      for (int block = 0; block < 2; ++block) {  // of 32 columns
        uint32_t operands[kHalves][4];
        float parts[kHalves][4] = {};
#pragma unroll
        for (int half = 0; half < kHalves; ++half) {
          load_operands(operands[half],
                        rows + half * kTokens * kPitch + step * kStep * 2 + block * 64);
        }
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          uint32_t wide[4];
          widen(stream.values(step)[block * 2 + i], wide);
#pragma unroll
          for (int half = 0; half < kHalves; ++half) {
            multiply(parts[half], wide[0], wide[1], wide[2], wide[3], operands[half][i * 2],
                     operands[half][i * 2 + 1]);
          }
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float scale = scale_of(scales, block * 2 + i / 2);
#pragma unroll
          for (int half = 0; half < kHalves; ++half) {
            sums[half][i] = fmaf(parts[half][i], scale, sums[half][i]);
          }
        }
      }
      if (is_more) stream.load(step);
    }
    // With half as many sums as threads, the halves of the thread block take turns.
    const int turn = tile % 2, own = threadIdx.x / kSums;
    const int half = kHalves == 1 ? 0 : own;
    const Writer<kIsGated> writer(call, item, tile, half);
#pragma unroll
    for (int i = 0; i < kHalves * 2; ++i) {
      *reinterpret_cast<float2*>(shared.sums[turn][i / 2][warp] + i % 2 * kSums / 2 + lane * 2) = {
          sums[i / 2][i % 2 * 2], sums[i / 2][i % 2 * 2 + 1]};
    }
    __syncthreads();  // once for each tile: by the next one, all have read the sums of this tile
    if (kHalves == 2 || own == turn) writer.write(call, item, shared.sums[turn][half]);
  }
}

template <bool kIsGated>
__device__ void multiply_experts(const Call& call) {
  extern __shared__ __align__(16) char memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  const int lane = threadIdx.x % 32;
  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);  // the compiler sees that lanes agree
  wait_for_kernel_before();
  const int tiles = call.n / kTileRows;
  const Part part = divide(call, shared, tiles, warp, lane);
  if (part.begin == part.end) return;
  for (int i = shared.first;; ++i) {
    const Item item = shared.items[i];
    const int start = item.start() * tiles;
    const int tile = (max(part.begin - start, 0) + item.cost - 1) / item.cost;
    const int end = min((part.end - start + item.cost - 1) / item.cost, tiles);
    // None, where the part begins behind the start of the item's last tile.
    if (tile < end) {
      if (item.count > kTokens) {
        multiply_tiles<kIsGated, 2>(call, shared, item, tile, end, warp, lane);
      } else {
        multiply_tiles<kIsGated, 1>(call, shared, item, tile, end, warp, lane);
      }
    }
    if (part.end <= item.end * tiles) return;
    __syncthreads();  // all have read the rows
  }
}

}  // namespace
}  // namespace fibshim

// a, a_stride, values and their strides must be aligned to 16 bytes, scales and theirs to 4;
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
