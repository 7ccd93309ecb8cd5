// Softmax over a vocabulary, which replaces PyTorch's: probs = exp(x - max) / sum(exp(x - max)).
//
// Every row is read twice, not three times: the first pass computes maximum and sum together, and
// rescales the sum when the maximum grows. A block works on a row; the second read comes from L2.
// Rows may begin anywhere (GPT-2's vocabulary is odd): the elements before the first whole vector
// and after the last one are read one by one.
// grid = batch_size, block = 1024.
#include "vector.cuh"

namespace fibshim {
namespace {

constexpr int kThreads = 1024;
constexpr int kWarps = kThreads / 32;

// A vector of 16 bytes as floats.
template <class T>
struct Elements {
  static constexpr int kCount = kElementsPerVector;
  static __device__ float widen(T value) { return static_cast<float>(value); }
  static __device__ void unpack(const Vector& vector, float (&values)[kCount]) {
#pragma unroll
    for (int i = 0; i < kPairsPerVector; ++i) {
      const float2 pair = Pair<T>::unpack(vector.pairs[i]);
      values[2 * i] = pair.x;
      values[2 * i + 1] = pair.y;
    }
  }
  static __device__ Vector pack(const float (&values)[kCount]) {
    Vector vector;
#pragma unroll
    for (int i = 0; i < kPairsPerVector; ++i) {
      vector.pairs[i] = Pair<T>::pack({values[2 * i], values[2 * i + 1]});
    }
    return vector;
  }
};

template <>
struct Elements<float> {
  static constexpr int kCount = 4;
  static __device__ float widen(float value) { return value; }
  static __device__ void unpack(const Vector& vector, float (&values)[kCount]) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) values[i] = __uint_as_float(vector.pairs[i]);
  }
  static __device__ Vector pack(const float (&values)[kCount]) {
    Vector vector;
#pragma unroll
    for (int i = 0; i < kCount; ++i) vector.pairs[i] = __float_as_uint(values[i]);
    return vector;
  }
};

// The greatest of some numbers, and the sum of exp(x - greatest); -inf and 0 for no numbers.
struct Partial {
  float greatest;
  float sum;
};

// Returns exp(x - greatest). An x of -inf weighs 0, even if `greatest` is -inf, too, and the
// difference NaN: a part with only -inf, or without elements, adds nothing.
__device__ float weight_of(float x, float greatest) {
  return x == -INFINITY ? 0.0f : __expf(x - greatest);
}

__device__ Partial merge(const Partial& a, const Partial& b) {
  const float greatest = fmaxf(a.greatest, b.greatest);
  return {greatest,
          a.sum * weight_of(a.greatest, greatest) + b.sum * weight_of(b.greatest, greatest)};
}

template <int kCount>
__device__ void add(Partial& partial, const float (&values)[kCount]) {
  float greatest = values[0];
#pragma unroll
  for (int i = 1; i < kCount; ++i) greatest = fmaxf(greatest, values[i]);
  greatest = fmaxf(greatest, partial.greatest);
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kCount; ++i) sum += weight_of(values[i], greatest);
  partial = {greatest, fmaf(partial.sum, weight_of(partial.greatest, greatest), sum)};
}

// Returns the block's result, in each of its threads.
__device__ Partial merge_over_block(Partial own) {
  __shared__ Partial warps[kWarps];
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    own = merge(own, {__shfl_xor_sync(0xffffffffu, own.greatest, distance),
                      __shfl_xor_sync(0xffffffffu, own.sum, distance)});
  }
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = own;
  __syncthreads();
  own = warps[threadIdx.x % kWarps];
#pragma unroll
  for (int distance = kWarps / 2; distance > 0; distance /= 2) {
    own = merge(own, {__shfl_xor_sync(0xffffffffu, own.greatest, distance),
                      __shfl_xor_sync(0xffffffffu, own.sum, distance)});
  }
  return own;
}

template <class T>
__device__ void softmax(const T* logits, T* probs, uint32_t vocab_size) {
  constexpr int kCount = Elements<T>::kCount;
  constexpr int kUnroll = 4;
  const T* const row = logits + int64_t{blockIdx.x} * vocab_size;
  T* const to = probs + int64_t{blockIdx.x} * vocab_size;
  // Requires (logits - probs) % 16 == 0, so that both rows begin equally far from a whole vector.
  const uint32_t misaligned =
      static_cast<uint32_t>(reinterpret_cast<uintptr_t>(row) % 16 / sizeof(T));
  const uint32_t head = min(misaligned == 0 ? 0 : kCount - misaligned, vocab_size);
  const uint32_t vectors = (vocab_size - head) / kCount;
  const uint32_t tail = head + vectors * kCount;
  const uint4* const row_vectors = reinterpret_cast<const uint4*>(row + head);
  uint4* const to_vectors = reinterpret_cast<uint4*>(to + head);
  wait_for_kernel_before();

  Partial partial = {-INFINITY, 0.0f};
  for (uint32_t first = threadIdx.x; first < vectors; first += kThreads * kUnroll) {
    Vector loaded[kUnroll];
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) {
      if (first + i * kThreads < vectors) {
        loaded[i] = load_once(row_vectors + first + i * kThreads);
      }
    }
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) {
      if (first + i * kThreads < vectors) {
        float values[kCount];
        Elements<T>::unpack(loaded[i], values);
        add(partial, values);
      }
    }
  }
  // Less than a vector at each end.
  const uint32_t loose = threadIdx.x < kCount ? threadIdx.x : tail + threadIdx.x - kCount;
  const bool is_loose =
      threadIdx.x < kCount ? loose < head : threadIdx.x < 2 * kCount && loose < vocab_size;
  if (is_loose) {
    const float values[1] = {Elements<T>::widen(row[loose])};
    add(partial, values);
  }

  const Partial total = merge_over_block(partial);
  const float scale = 1.0f / total.sum;
  if (is_loose) to[loose] = T(__expf(Elements<T>::widen(row[loose]) - total.greatest) * scale);
  for (uint32_t first = threadIdx.x; first < vectors; first += kThreads * kUnroll) {
    Vector loaded[kUnroll];
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) {
      if (first + i * kThreads < vectors) {
        loaded[i] = load_once(row_vectors + first + i * kThreads);
      }
    }
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) {
      if (first + i * kThreads < vectors) {
        float values[kCount];
        Elements<T>::unpack(loaded[i], values);
#pragma unroll
        for (float& value : values) value = __expf(value - total.greatest) * scale;
        store_streaming(to_vectors + first + i * kThreads, Elements<T>::pack(values));
      }
    }
  }
}

}  // namespace
}  // namespace fibshim

#define FIBSHIM_KERNEL(dtype, T)                                        \
  extern "C" __global__ void __launch_bounds__(fibshim::kThreads, 2)    \
      softmax_##dtype(const T* logits, T* probs, uint32_t vocab_size) { \
    fibshim::softmax<T>(logits, probs, vocab_size);                     \
  }

FIBSHIM_KERNEL(bf16, __nv_bfloat16)
FIBSHIM_KERNEL(fp16, __half)
FIBSHIM_KERNEL(fp32, float)
