// Merges the parts into which the tokens of a sequence were cut for decode attention, as
// FlashAttention 3's combine kernel does: sums the parts' outputs, weighted by their lse, in fp32.
// Every sum uses that kernel's order and approximations, so the results are bit-identical.
//
//   decode_combine_d128_bf16   heads of 128: a warp has one head of a sequence
//   decode_combine_d64_bf16    heads of 64: a warp has two heads
//   decode_combine_d128_sorted_bf16, decode_combine_d64_sorted_bf16   counts of sequences in another
//                              order, which is given in place of the lengths of queries
//
// The numbers of parts are in device memory, where a replayed graph finds new values. A sequence in
// one part needs no merging, and mostly all sequences, or all but a few long ones, are in one part.
// So there are few blocks, and a warp looks at up to 32 sequences at once. The next kernel of a
// decode step is large; it can use the SMs on which no block of this kernel waits.
//
// grid = (heads / 4, or heads / 8 for heads of 64, rounded up; any number of blocks that share the
// sequences); block = 128 threads.
#include "vector.cuh"

namespace fibshim {
namespace {

constexpr int kWarps = 4;
constexpr int kAhead = 16;  // parts of a row whose loads are in flight together

struct Call {
  const float* partial_output;  // [parts, heads, rows, kHeadDim]
  const float* partial_lse;     // [parts, heads, rows], natural logarithms
  const int* first_rows;        // [batch_size + 1] each sequence's first row
  const int* query_lengths;     // [batch_size] 0: nothing to do; null if sorted
  const int* split_counts;      // [batch_size]
  const int* order;             // [batch_size] whose split_counts are; null if not sorted
  __nv_bfloat16* output;        // [rows, heads, kHeadDim]
  float* lse;                   // [heads, rows]
  int64_t output_stride;        // of a row, in elements
  int batch_size, rows, heads;
};

__device__ inline float exp_approximately(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x * 1.44269502f));
  return y;
}

__device__ inline float log2_approximately(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ inline float divide_one_approximately(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// A volatile load, which stays in order with those of load_once(): the value needed first is loaded
// first.
__device__ inline float load_lse(const float* from) {
  float lse;
  asm volatile("ld.global.f32 %0, [%1];" : "=f"(lse) : "l"(from));
  return lse;
}

// Merges one head of a row, with one lane per vector of four elements. All lanes of the warp must
// call this, with the same number of parts; lanes beyond the last head (`is_written` is false)
// compute another head and do not store it.
template <int kHeadDim>
__device__ void merge(const Call& call, int64_t row, int head, int parts, int lane,
                      bool is_written) {
  constexpr int kLanes = kHeadDim / 4;
  const int64_t part_stride = int64_t{call.heads} * call.rows;
  const int64_t at = int64_t{head} * call.rows + row;
  const float* const lses = call.partial_lse + at;
  const float* const outputs = call.partial_output + at * kHeadDim + lane * 4;

  const auto lse_of = [&](int part) {
    return part < parts ? load_lse(lses + part * part_stride) : -INFINITY;
  };
  Vector loaded[kAhead];
  const auto load = [&](int first) {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (first + i < parts) {
        loaded[i] = load_once(outputs + (first + i) * part_stride * kHeadDim);
      }
    }
  };
  // A lane has the part of its number, and every kLanes-th part after that.
  const float own = lse_of(lane);
  load(0);

  float largest = own;
#pragma unroll 1
  for (int part = lane + kLanes; part < parts; part += kLanes) {
    largest = fmaxf(largest, lse_of(part));
  }
#pragma unroll
  for (int distance = kLanes / 2; distance > 0; distance /= 2) {
    largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, distance));
  }
  const float shift = largest == -INFINITY ? 0 : largest;
  float weight = exp_approximately(own - shift);
  float weights = weight;
#pragma unroll 1
  for (int part = lane + kLanes; part < parts; part += kLanes) {
    weights += exp_approximately(lse_of(part) - shift);
  }
#pragma unroll
  for (int distance = kLanes / 2; distance > 0; distance /= 2) {
    weights += __shfl_xor_sync(~0u, weights, distance);
  }
  const float one = weights == 0 || isnan(weights) ? 0 : divide_one_approximately(weights);
  weight *= one;

  float sums[4] = {};
  for (int first = 0;;) {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const float factor = __shfl_sync(~0u, weight, first % kLanes + i, kLanes);
      // A part without weight may never have been written. Indexes past the last part have no
      // weight either.
      if (factor > 0) {
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          sums[k] = fmaf(factor, __uint_as_float(loaded[i].pairs[k]), sums[k]);
        }
      }
    }
    first += kAhead;
    if (first >= parts) break;
    load(first);
    if (first % kLanes == 0) weight = exp_approximately(lse_of(first + lane) - shift) * one;
  }

  if (!is_written) return;
  *reinterpret_cast<uint2*>(call.output + row * call.output_stride + int64_t{head} * kHeadDim +
                            lane * 4) = {Pair<__nv_bfloat16>::pack({sums[0], sums[1]}),
                                         Pair<__nv_bfloat16>::pack({sums[2], sums[3]})};
  if (lane == 0) call.lse[at] = fmaf(log2_approximately(weights), 0.693147182f, largest);
}

// `semaphore`: a counter of the forward kernel, which this kernel resets to 0; null if there is
// none.
template <int kHeadDim, bool kIsSorted>
__device__ void combine(const Call& call, int* semaphore, int next_may_begin) {
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
        merge<kHeadDim>(call, at, min(head, call.heads - 1), parts_of_turn, lane % kLanes,
                        head < call.heads);
      }
    }
  }
}

}  // namespace
}  // namespace fibshim

// partial_output must be aligned to 16 bytes, output and its stride to 8 bytes.
#define FIBSHIM_KERNEL(name, head_dim, is_sorted, of_sequences, query_lengths, order)              \
  extern "C" __global__ void __launch_bounds__(fibshim::kWarps * 32)                               \
      name(const float* partial_output, const float* partial_lse, const int* first_rows,           \
           const int* of_sequences, const int* split_counts, __nv_bfloat16* output, float* lse,    \
           int* semaphore, int64_t output_stride, int batch_size, int rows, int heads,             \
           int next_may_begin) {                                                                   \
    fibshim::combine<head_dim, is_sorted>(                                                         \
        fibshim::Call(partial_output, partial_lse, first_rows, query_lengths, split_counts, order, \
                      output, lse, output_stride, batch_size, rows, heads),                        \
        semaphore, next_may_begin);                                                                \
  }

FIBSHIM_KERNEL(decode_combine_d128_bf16, 128, false, query_lengths, query_lengths, nullptr)
FIBSHIM_KERNEL(decode_combine_d64_bf16, 64, false, query_lengths, query_lengths, nullptr)
FIBSHIM_KERNEL(decode_combine_d128_sorted_bf16, 128, true, order, nullptr, order)
FIBSHIM_KERNEL(decode_combine_d64_sorted_bf16, 64, true, order, nullptr, order)
