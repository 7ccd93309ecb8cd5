// Rotary position embedding with a cos/sin cache, for all heads of query and key, which replaces
// FlashInfer's, SGLang's and vLLM's: the first half of a head is rotated with the second (half-split, not
// interleaved). The cache holds, for every position, the cosines and then the sines.
//
// One kernel per head size, type and type of the positions: rope_cos_sin_cache_d128_bf16_pos32 with
// a cache in fp32, rope_cos_sin_cache_d128_bf16_pos64_cache16 with a cache of the heads' type, as
// in vLLM.
// A thread keeps its cosines and sines and goes from head to head. It reads both elements of a pair
// before it writes them, so query_out may be query.
// grid = (nnz, parts of the heads), block = 128 threads: kLanes of them share a head.
#include "vector.cuh"

namespace fibshim {
namespace {

constexpr int kThreads = 128;

// Strides in elements.
struct Heads {
  int64_t token_stride;
  int64_t head_stride;
};

struct Cosines {
  float cos[kElementsPerVector];
  float sin[kElementsPerVector];
};

__device__ void load_angles(const float* from, float (&to)[kElementsPerVector]) {
#pragma unroll
  for (int i = 0; i < kElementsPerVector; i += 4) {
    const float4 values = __ldg(reinterpret_cast<const float4*>(from + i));
    to[i] = values.x, to[i + 1] = values.y;
    to[i + 2] = values.z, to[i + 3] = values.w;
  }
}

template <class T>
__device__ void load_angles(const T* from, float (&to)[kElementsPerVector]) {
  const Vector values = load_shared_by_rows(from);
#pragma unroll
  for (int i = 0; i < kPairsPerVector; ++i) {
    const float2 pair = Pair<T>::unpack(values.pairs[i]);
    to[2 * i] = pair.x, to[2 * i + 1] = pair.y;
  }
}

template <class T, int kHeadSize>
__device__ void rotate(const T* from, T* to, const Cosines& angles) {
  const Vector first = load_once(from);
  const Vector second = load_once(from + kHeadSize / 2);
  Vector rotated_first;
  Vector rotated_second;
#pragma unroll
  for (int i = 0; i < kPairsPerVector; ++i) {
    const float2 a = Pair<T>::unpack(first.pairs[i]);
    const float2 b = Pair<T>::unpack(second.pairs[i]);
    const float2 cos = {angles.cos[2 * i], angles.cos[2 * i + 1]};
    const float2 sin = {angles.sin[2 * i], angles.sin[2 * i + 1]};
    rotated_first.pairs[i] = Pair<T>::pack({a.x * cos.x - b.x * sin.x, a.y * cos.y - b.y * sin.y});
    rotated_second.pairs[i] = Pair<T>::pack({b.x * cos.x + a.x * sin.x, b.y * cos.y + a.y * sin.y});
  }
  store_whole(to, rotated_first);
  store_whole(to + kHeadSize / 2, rotated_second);
}

// kReadsAnglesEarly: reads the angles before the wait ("reads_before_wait").
template <class T, int kHeadSize, bool kReadsAnglesEarly = false, class Cache, class Position>
__device__ void apply_rope(const T* query, const T* key, T* query_out, T* key_out,
                           const Cache* cos_sin_cache, const Position* positions,
                           uint32_t num_q_heads, uint32_t num_k_heads, Heads query_heads,
                           Heads key_heads, Heads query_out_heads, Heads key_out_heads) {
  constexpr int kLanes = kHeadSize / 2 / kElementsPerVector;  // per head
  constexpr int kHeadsAtATime = kThreads / kLanes;
  const int64_t token = blockIdx.x;
  const int first_element = threadIdx.x % kLanes * kElementsPerVector;
  const uint32_t first_head = blockIdx.y * kHeadsAtATime + threadIdx.x / kLanes;
  if constexpr (!kReadsAnglesEarly) wait_for_kernel_before();

  Cosines angles;
  const Cache* const cache =
      cos_sin_cache + static_cast<int64_t>(positions[token]) * kHeadSize + first_element;
  load_angles(cache, angles.cos);
  load_angles(cache + kHeadSize / 2, angles.sin);
  if constexpr (kReadsAnglesEarly) wait_for_kernel_before();

  query += token * query_heads.token_stride + first_element;
  query_out += token * query_out_heads.token_stride + first_element;
  key += token * key_heads.token_stride + first_element;
  key_out += token * key_out_heads.token_stride + first_element;
  const uint32_t step = gridDim.y * kHeadsAtATime;
  for (uint32_t head = first_head; head < num_q_heads + num_k_heads; head += step) {
    if (head < num_q_heads) {
      rotate<T, kHeadSize>(query + head * query_heads.head_stride,
                           query_out + head * query_out_heads.head_stride, angles);
    } else {
      const uint32_t key_head = head - num_q_heads;
      rotate<T, kHeadSize>(key + key_head * key_heads.head_stride,
                           key_out + key_head * key_out_heads.head_stride, angles);
    }
  }
}

}  // namespace
}  // namespace fibshim

#define FIBSHIM_KERNEL(head_size, dtype, T, name, Position, Cache)                                \
  extern "C" __global__ void __launch_bounds__(fibshim::kThreads)                                 \
      rope_cos_sin_cache_d##head_size##_##dtype##_##name(                                         \
          const T* query, const T* key, T* query_out, T* key_out, const Cache* cos_sin_cache,     \
          const Position* positions, uint32_t num_q_heads, uint32_t num_k_heads,                  \
          int64_t query_token_stride, int64_t query_head_stride, int64_t key_token_stride,        \
          int64_t key_head_stride, int64_t query_out_token_stride, int64_t query_out_head_stride, \
          int64_t key_out_token_stride, int64_t key_out_head_stride) {                            \
    fibshim::apply_rope<T, head_size>(                                                            \
        query, key, query_out, key_out, cos_sin_cache, positions, num_q_heads, num_k_heads,       \
        {query_token_stride, query_head_stride}, {key_token_stride, key_head_stride},             \
        {query_out_token_stride, query_out_head_stride},                                          \
        {key_out_token_stride, key_out_head_stride});                                             \
  }
#define FIBSHIM_KERNELS_OF(head_size, dtype, T)              \
  FIBSHIM_KERNEL(head_size, dtype, T, pos32, int32_t, float) \
  FIBSHIM_KERNEL(head_size, dtype, T, pos64, int64_t, float) \
  FIBSHIM_KERNEL(head_size, dtype, T, pos64_cache16, int64_t, T)
#define FIBSHIM_KERNELS(head_size)                   \
  FIBSHIM_KERNELS_OF(head_size, bf16, __nv_bfloat16) \
  FIBSHIM_KERNELS_OF(head_size, fp16, __half)

// Rotates some heads of rows that hold query, key and value, into an output that holds only these
// heads.
#define FIBSHIM_SLICE(head_size)                                                                  \
  extern "C" __global__ void __launch_bounds__(fibshim::kThreads) rope_slice_d##head_size##_bf16( \
      const __nv_bfloat16* qkv, __nv_bfloat16* output, const __nv_bfloat16* cos_sin_cache,        \
      const int64_t* positions, int64_t row_stride, int64_t first, uint32_t num_heads,            \
      int next_may_begin) {                                                                       \
    const fibshim::Heads out = {int64_t{num_heads} * head_size, head_size};                       \
    fibshim::let_next_begin(next_may_begin);                                                      \
    fibshim::apply_rope<__nv_bfloat16, head_size, true>(qkv + first, qkv, output, output,         \
                                                        cos_sin_cache, positions, num_heads, 0,   \
                                                        {row_stride, head_size}, {}, out, out);   \
  }

FIBSHIM_SLICE(64)
FIBSHIM_SLICE(128)
FIBSHIM_KERNELS(64)
FIBSHIM_KERNELS(128)
FIBSHIM_KERNELS(256)
