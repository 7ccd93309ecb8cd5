// Merges the parts into which the tokens of a sequence were cut for decode attention, as
// FlashAttention 3's combine kernel does: sums the parts' outputs, weighted by their lse, in fp32.
// Every sum uses that kernel's order and approximations, so the results are bit-identical.
//
//   decode_combine_d128_bf16   heads of 128: a warp has one head of a sequence
//   decode_combine_d64_bf16    heads of 64: a warp has two heads
//   decode_combine_d128_sorted_bf16, decode_combine_d64_sorted_bf16   counts of sequences in another
//                              order, which is given in place of the lengths of queries
//   decode_combine_d128_fp16, ...   each in fp16
//
// The numbers of parts are in device memory, where a replayed graph finds new values. A sequence in
// one part needs no merging, and mostly all sequences, or all but a few long ones, are in one part.
// So there are few blocks, and a warp looks at up to 32 sequences at once. The next kernel of a
// decode step is large; it can use the SMs on which no block of this kernel waits.
//
// grid = (heads / 4, or heads / 8 for heads of 64, rounded up; any number of blocks that share the
// sequences); block = 128 threads.
#include "decode_parts.cuh"

namespace fibshim {
namespace {

constexpr int kWarps = 4;

// `semaphore`: a counter of the forward kernel, which this kernel resets to 0; null if there is
// none.
template <int kHeadDim, bool kIsSorted, class T>
__device__ void combine(const DecodeParts<T>& call, int* semaphore, int next_may_begin) {
  constexpr int kLanes = kHeadDim / 4;
  constexpr int kHeads = 32 / kLanes;  // per warp
  let_next_begin(next_may_begin);
  const int lane = threadIdx.x % 32;
  const int first_head = static_cast<int>(blockIdx.x * kWarps + threadIdx.x / 32) * kHeads;
  const int head = first_head + lane / kLanes;
  wait_for_kernel_before();
  if (semaphore != nullptr && blockIdx.x + blockIdx.y + threadIdx.x == 0) *semaphore = 0;
  if (first_head >= call.heads) return;
  const int step = static_cast<int>(gridDim.y);  // from one sequence of the block's to the next
  for (int first = static_cast<int>(blockIdx.y); first < call.batch_size; first += 32 * step) {
    const int of_lane = first + lane * step;
    const int place = min(of_lane, call.batch_size - 1);
    const int sequence = kIsSorted ? call.order[place] : place;
    const int query_length = kIsSorted ? 1 : call.query_lengths[place];
    const int parts = call.split_counts[place];
    const int row = call.first_rows[sequence];
    const int end_row = call.first_rows[sequence + 1];
    const bool has_work =
        of_lane < call.batch_size && query_length > 0 && parts > 1 && row < end_row;
    for (uint32_t left = __ballot_sync(~0u, has_work); left != 0; left &= left - 1) {
      const int turn = __ffs(static_cast<int>(left)) - 1;
      const int parts_of_turn = __shfl_sync(~0u, parts, turn);
      const int end = __shfl_sync(~0u, end_row, turn);
      for (int at = __shfl_sync(~0u, row, turn); at < end; ++at) {
        merge_and_store<kHeadDim>(call, at, min(head, call.heads - 1), parts_of_turn, lane % kLanes,
                                  head < call.heads);
      }
    }
  }
}

}  // namespace
}  // namespace fibshim

// partial_output must be aligned to 16 bytes, output and its stride to 8 bytes.
#define FIBSHIM_KERNEL_OF(T, name, head_dim, is_sorted, of_sequences, query_lengths, order)        \
  extern "C" __global__ void __launch_bounds__(fibshim::kWarps * 32) name(                         \
      const float* partial_output, const float* partial_lse, const int* first_rows,                \
      const int* of_sequences, const int* split_counts, T* output, float* lse, int* semaphore,     \
      int64_t output_stride, int batch_size, int rows, int heads, int next_may_begin) {            \
    fibshim::combine<head_dim, is_sorted>(                                                         \
        fibshim::DecodeParts<T>(partial_output, partial_lse, first_rows, query_lengths,            \
                                split_counts, order, output, lse, output_stride, batch_size, rows, \
                                heads),                                                            \
        semaphore, next_may_begin);                                                                \
  }

#define FIBSHIM_KERNEL(name, ...)                            \
  FIBSHIM_KERNEL_OF(__nv_bfloat16, name##_bf16, __VA_ARGS__) \
  FIBSHIM_KERNEL_OF(__half, name##_fp16, __VA_ARGS__)

FIBSHIM_KERNEL(decode_combine_d128, 128, false, query_lengths, query_lengths, nullptr)
FIBSHIM_KERNEL(decode_combine_d64, 64, false, query_lengths, query_lengths, nullptr)
FIBSHIM_KERNEL(decode_combine_d128_sorted, 128, true, order, nullptr, order)
FIBSHIM_KERNEL(decode_combine_d64_sorted, 64, true, order, nullptr, order)
