// This kernel does the work of two that SGLang runs before a product in fp8 with 128 x 128 blocks of weights: it merges the parts of decode
// attention as decode_combine does for sorted sequences, and quantises all rows of the output to fp8 (e4m3) with a scale for each head of 128.
//
//   decode_combine_then_quant_per_block_sorted_d128_bf16
//
// What is quantised is the output as it is stored; rows of sequences in one part are there already. least: what a head's largest
// magnitude counts as at least. The scale of a row's head is at row * scale_row_stride + head * scale_block_stride.
//
// grid = (heads / 4, rounded up; any number of blocks that share the sequences); block = 128 threads.
#include "block_scales.cuh"
#include "decode_parts.cuh"

namespace fibshim {
namespace {

constexpr int kWarps = 4;

struct Quantization {
  uint8_t* quantized;
  Scales scales;
  float least;
  bool hides_nan;
  // A head of a row, of which a lane has four elements. The warp calls it.
  __device__ void store(uint2 four, uint32_t row, uint32_t head, uint32_t heads) const {
    const float2 a = Pair<__nv_bfloat16>::unpack(four.x), b = Pair<__nv_bfloat16>::unpack(four.y);
    const float largest = fmaxf(fmaxf(fabsf(a.x), fabsf(a.y)), fmaxf(fabsf(b.x), fabsf(b.y)));
    const Floored rule(largest_in_lanes<32>(largest), least, hides_nan);
    const uint32_t lane = threadIdx.x % 32;
    if (lane == 0) scales.store(row, head, rule.scale);
    const float2 low = {rule(a.x), rule(a.y)}, high = {rule(b.x), rule(b.y)};
    const uint32_t first = __nv_cvt_float2_to_fp8x2(low, __NV_SATFINITE, __NV_E4M3);
    const uint32_t second = __nv_cvt_float2_to_fp8x2(high, __NV_SATFINITE, __NV_E4M3);
    reinterpret_cast<uint32_t*>(quantized)[(int64_t{row} * heads + head) * 32 + lane] =
        first | second << 16;
  }
};

// A warp has a head of a row. `semaphore`: as of decode_combine.
__device__ void combine_and_quantize(const DecodeParts<__nv_bfloat16>& call, int* semaphore,
                                     const Quantization& quantization, int next_may_begin) {
  let_next_begin(next_may_begin);
  const int lane = threadIdx.x % 32;
  const int head = static_cast<int>(blockIdx.x * kWarps + threadIdx.x / 32);
  wait_for_kernel_before();
  if (semaphore != nullptr && blockIdx.x + blockIdx.y + threadIdx.x == 0) *semaphore = 0;
  if (head >= call.heads) return;
  const int step = static_cast<int>(gridDim.y);  // from one sequence of the block's to the next
  // Two more turns after the sequences quantise the rows that belong to none: those after the last sequence, and before the first.
  const int all = call.batch_size + 2;
  for (int first = static_cast<int>(blockIdx.y); first < all; first += 32 * step) {
    const int of_lane = first + lane * step;
    const int place = min(of_lane, call.batch_size - 1);
    const int sequence = call.order[place];
    int parts = call.split_counts[place];
    int row = call.first_rows[sequence];
    int end_row = call.first_rows[sequence + 1];
    if (of_lane >= call.batch_size) {
      parts = 1;
      row = of_lane == call.batch_size ? call.first_rows[call.batch_size] : 0;
      end_row = of_lane == call.batch_size ? call.rows : call.first_rows[0];
    }
    const bool has_work = of_lane < all && row < end_row;
    for (uint32_t left = __ballot_sync(~0u, has_work); left != 0; left &= left - 1) {
      const int turn = __ffs(static_cast<int>(left)) - 1;
      const int parts_of_turn = __shfl_sync(~0u, parts, turn);
      const int end = __shfl_sync(~0u, end_row, turn);
      for (int at = __shfl_sync(~0u, row, turn); at < end; ++at) {
        const uint2 four =
            parts_of_turn > 1
                ? merge_and_store<128>(call, at, head, parts_of_turn, lane, true).packed()
                : *output_vector<128>(call, at, head, lane);
        quantization.store(four, at, head, call.heads);
      }
    }
  }
}

}  // namespace
}  // namespace fibshim

// partial_output must be aligned to 16 bytes, output and its stride to 8, quantized to 4.
extern "C" __global__ void __launch_bounds__(fibshim::kWarps * 32)
    decode_combine_then_quant_per_block_sorted_d128_bf16(
        const float* partial_output, const float* partial_lse, const int* first_rows,
        const int* order, const int* split_counts, __nv_bfloat16* output, float* lse,
        int* semaphore, uint8_t* quantized, float* scales, int64_t output_stride, int batch_size,
        int rows, int heads, float least, int hides_nan, int scale_row_stride,
        int scale_block_stride, int next_may_begin) {
  fibshim::combine_and_quantize(
      fibshim::DecodeParts<__nv_bfloat16>(partial_output, partial_lse, first_rows, nullptr,
                                          split_counts, order, output, lse, output_stride,
                                          batch_size, rows, heads),
      semaphore, {quantized, {scales, scale_row_stride, scale_block_stride}, least, hides_nan != 0},
      next_may_begin);
}
