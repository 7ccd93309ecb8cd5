// Applies RMSNorm to the heads of query and key, rotates them, and writes the new keys and values
// into a paged cache. It replaces four kernels of vLLM: rms_norm twice, rotary_embedding, and
// reshape_and_cache_flash. The variant without norms replaces three kernels of vLLM's default mode:
// Inductor's rotation of the query's heads and of the key's, and reshape_and_cache_flash. A third
// replaces three kernels of SGLang, which norm and rotate the rows in place: fused_qknorm,
// fused_rope and store_kvcache; a fourth the last two, of models without norms of the heads. A
// fifth replaces Inductor's norms and rotations of the heads, and reshape_and_cache_flash; the last
// its rotations and its sum of rows and a bias, in place, and reshape_and_cache_flash.
//
// A lane has eight elements of a head of 128, of 64 where there are no norms, or of 256 where they
// are Inductor's. Every intermediate
// result is rounded where the replaced kernels stored it, and the squares are added up in the order
// of the replaced norm. vLLM's rms_norm: eight
// elements one after the other, then lanes at doubling distance. SGLang's: the first and the last
// four elements apart, each over lanes at halving distance, then both. Products of the rotation are
// fused as in the replaced kernel. So the results are bit-identical. Inductor rounds nothing
// between the row and the rotated head, but for a query's sums of row and bias, which it stores
// before; and it adds up in an order that its block sizes change: here it is that of the block sizes
// which vLLM chose on an H200.
//
// grid = (tokens, heads of query, key and value together / 8, of 64 / 16, of 256 / 4), block = 128
// threads.
#include "vector.cuh"

namespace fibshim {
namespace {

constexpr int kThreads = 128;
constexpr int kNormedHead = 128;
constexpr int kLanesOfNorm = kNormedHead / kElementsPerVector;

template <class T>
__device__ float sum_of_squares(const Vector& x) {
  float sum = 0;
#pragma unroll
  for (const uint32_t bits : x.pairs) {
    const float2 pair = Pair<T>::unpack(bits);
    sum = fmaf(pair.x, pair.x, sum);
    sum = fmaf(pair.y, pair.y, sum);
  }
#pragma unroll
  for (int distance = 1; distance < kLanesOfNorm; distance *= 2) {
    sum += __shfl_xor_sync(0xffffffffu, sum, distance);
  }
  return sum;
}

template <class T>
__device__ float sum_of_squares_by_halves(const Vector& x) {
  float sums[2] = {};
#pragma unroll
  for (int i = 0; i < kPairsPerVector; ++i) {
    const float2 pair = Pair<T>::unpack(x.pairs[i]);
    float& sum = sums[i / (kPairsPerVector / 2)];
    sum = fmaf(pair.x, pair.x, sum);
    sum = fmaf(pair.y, pair.y, sum);
  }
#pragma unroll
  for (int distance = kLanesOfNorm / 2; distance > 0; distance /= 2) {
    sums[0] += __shfl_xor_sync(0xffffffffu, sums[0], distance);
    sums[1] += __shfl_xor_sync(0xffffffffu, sums[1], distance);
  }
  return sums[0] + sums[1];
}

// Adds up over lanes at halving distance, from `distance` on.
template <int distance>
__device__ float sum_over_lanes(float sum) {
#pragma unroll
  for (int at = distance; at > 0; at /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, at);
  return sum;
}

// The same element of both halves, then the eight sums one after the other, then lanes: with
// PyTorch 2.11. Both products are exact, so that both lanes have the same sum.
template <class T, int kLanes>
__device__ float sum_of_squares_of_halves(const Vector& x, const Vector& of_other_half) {
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kPairsPerVector; ++i) {
    const float2 a = Pair<T>::unpack(x.pairs[i]);
    const float2 b = Pair<T>::unpack(of_other_half.pairs[i]);
    sum += fmaf(a.x, a.x, b.x * b.x);
    sum += fmaf(a.y, a.y, b.y * b.y);
  }
  return sum_over_lanes<kLanes / 4>(sum);
}

// Two neighbours, two of these sums, two of those, then lanes: with PyTorch 2.14.
template <class T, int kLanes>
__device__ float sum_of_squares_by_pairs(const Vector& x) {
  float sums[kPairsPerVector];
#pragma unroll
  for (int i = 0; i < kPairsPerVector; ++i) {
    const float2 pair = Pair<T>::unpack(x.pairs[i]);
    sums[i] = fmaf(pair.x, pair.x, pair.y * pair.y);
  }
  return sum_over_lanes<kLanes / 2>((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

template <class T>
__device__ Vector normalize(const Vector& x, const Vector& weight, float squares, float eps) {
  const float rstd = rsqrtf(squares * (1.0f / kNormedHead) + eps);
  Vector normal;
#pragma unroll
  for (int i = 0; i < kPairsPerVector; ++i) {
    const float2 value = Pair<T>::unpack(x.pairs[i]);
    const float2 scale = Pair<T>::unpack(weight.pairs[i]);
    normal.pairs[i] = Pair<T>::pack({value.x * rstd * scale.x, value.y * rstd * scale.y});
  }
  return normal;
}

// A lane of the head's first half has x and computes x cos - y sin; one of the second half has y
// and computes y cos + x sin.
template <class T, int kLanes>
__device__ Vector rotate(const Vector& own, const Vector& cosines, const Vector& sines,
                         bool is_first_half) {
  Vector rotated;
#pragma unroll
  for (int i = 0; i < kPairsPerVector; ++i) {
    const uint32_t bits = __shfl_xor_sync(0xffffffffu, own.pairs[i], kLanes / 2);
    const float2 a = Pair<T>::unpack(own.pairs[i]);
    const float2 b = Pair<T>::unpack(bits);
    const float2 cos = Pair<T>::unpack(cosines.pairs[i]);
    float2 sin = Pair<T>::unpack(sines.pairs[i]);
    if (is_first_half) sin = {-sin.x, -sin.y};
    rotated.pairs[i] = Pair<T>::pack({a.x * cos.x + b.x * sin.x, a.y * cos.y + b.y * sin.y});
  }
  return rotated;
}

struct Floats {
  float values[kElementsPerVector];
};

// The same with cosines and sines in fp32. The product with the cosine is exact when the other is
// added to it.
template <class T, int kLanes>
__device__ Vector rotate(const Vector& own, const Floats& cosines, const Floats& sines,
                         bool is_first_half) {
  Vector rotated;
#pragma unroll
  for (int i = 0; i < kPairsPerVector; ++i) {
    const uint32_t bits = __shfl_xor_sync(0xffffffffu, own.pairs[i], kLanes / 2);
    const float2 a = Pair<T>::unpack(own.pairs[i]);
    const float2 b = Pair<T>::unpack(bits);
    float2 of_b = {__fmul_rn(sines.values[2 * i], b.x), __fmul_rn(sines.values[2 * i + 1], b.y)};
    if (is_first_half) of_b = {-of_b.x, -of_b.y};
    rotated.pairs[i] = Pair<T>::pack({__fmaf_rn(cosines.values[2 * i], a.x, of_b.x),
                                      __fmaf_rn(cosines.values[2 * i + 1], a.y, of_b.y)});
  }
  return rotated;
}

// A lane's elements of a head, and those of its other half, which another lane has.
struct BothHalves {
  Vector own;
  Vector other;
};

template <int kLanes>
__device__ Vector of_other_half(const Vector& own) {
  Vector other;
#pragma unroll
  for (int i = 0; i < kPairsPerVector; ++i) {
    other.pairs[i] = __shfl_xor_sync(0xffffffffu, own.pairs[i], kLanes / 2);
  }
  return other;
}

template <class T, bool kIsGemma>
__device__ float2 unrounded_normal(uint32_t bits, uint32_t weight_bits, float rstd) {
  const float2 value = Pair<T>::unpack(bits);
  float2 scale = Pair<T>::unpack(weight_bits);
  if (kIsGemma) scale = {1 + scale.x, 1 + scale.y};
  return {__fmul_rn(__fmul_rn(value.x, rstd), scale.x),
          __fmul_rn(__fmul_rn(value.y, rstd), scale.y)};
}

// Norm and rotation. Only the product with the cosine is exact when the other is added to it.
template <class T, int kHeadSize, bool kIsGemma>
__device__ Vector normalize_and_rotate(const BothHalves& x, const BothHalves& weight, float squares,
                                       float eps, const Vector& cosines, const Vector& sines,
                                       bool is_first_half) {
  const float rstd = rsqrtf(squares * (1.0f / kHeadSize) + eps);
  Vector rotated;
#pragma unroll
  for (int i = 0; i < kPairsPerVector; ++i) {
    const float2 a = unrounded_normal<T, kIsGemma>(x.own.pairs[i], weight.own.pairs[i], rstd);
    const float2 b = unrounded_normal<T, kIsGemma>(x.other.pairs[i], weight.other.pairs[i], rstd);
    const float2 cos = Pair<T>::unpack(cosines.pairs[i]);
    const float2 sin = Pair<T>::unpack(sines.pairs[i]);
    float2 of_b = {__fmul_rn(b.x, sin.x), __fmul_rn(b.y, sin.y)};
    if (is_first_half) of_b = {-of_b.x, -of_b.y};
    rotated.pairs[i] =
        Pair<T>::pack({__fmaf_rn(a.x, cos.x, of_b.x), __fmaf_rn(a.y, cos.y, of_b.y)});
  }
  return rotated;
}

template <class T>
__device__ Vector load_angles(const T* from) {
  return load_shared_by_rows(from);
}

__device__ Floats load_angles(const float* from) {
  Floats to;
#pragma unroll
  for (int i = 0; i < kElementsPerVector; i += 4) {
    const float4 part = __ldg(reinterpret_cast<const float4*>(from + i));
    to.values[i] = part.x;
    to.values[i + 1] = part.y;
    to.values[i + 2] = part.z;
    to.values[i + 3] = part.w;
  }
  return to;
}

// What a thread has of a token: some elements of a head. The heads of query, key and value are
// numbered one behind the other.
template <int kHeadSize>
struct Part {
  static constexpr int kLanes = kHeadSize / kElementsPerVector;
  static constexpr int kHeadsAtATime = kThreads / kLanes;

  int64_t token = blockIdx.x;
  int lane = threadIdx.x % kLanes;
  int element = lane * kElementsPerVector;  // the first
  uint32_t head = blockIdx.y * kHeadsAtATime + threadIdx.x / kLanes;
  // Lanes past the last head still take part in the shuffles.
  bool is_head;
  bool is_query;
  bool is_value;

  __device__ Part(uint32_t num_q_heads, uint32_t num_kv_heads)
      : is_head(head < num_q_heads + 2 * num_kv_heads),
        is_query(head < num_q_heads),
        is_value(head >= num_q_heads + num_kv_heads) {}
};

// Element by element: choosing between two vectors would put both into local memory.
__device__ void assign_if(bool condition, const Vector& from, Vector* to) {
#pragma unroll
  for (int i = 0; i < kPairsPerVector; ++i) {
    if (condition) to->pairs[i] = from.pairs[i];
  }
}

template <class T>
struct Heads {
  const T* query;
  const T* key;
  const T* value;
  int64_t query_stride;  // from token to token, in elements
  int64_t key_stride;
  int64_t value_stride;
  uint32_t num_q_heads;
  uint32_t num_kv_heads;
};

template <class T>
struct Weights {
  const T* query;
  const T* key;
  float eps;
};

template <class T>
struct Angles {
  const T* cos_sin_cache;
  const int64_t* positions;
};

template <class T>
struct Outputs {
  T* query;
  T* key;
  float* query_sums;  // of squares, by head; of kOnceByHalves
  float* key_sums;
};

// How the heads of query and key are normed: not at all, with a result that is rounded, or without
// rounding it and with the squares added up as PyTorch 2.11 does, or as 2.14 does.
enum class Norm { kNone, kRounded, kOnceByHalves, kOnceByPairs };

template <class T>
struct PagedCache {
  T* key;
  T* value;
  const int64_t* slot_mapping;
  int64_t page_stride;
  int64_t slot_stride;
  int64_t head_stride;
  int page_size;

  __device__ int64_t place_of(int64_t slot) const {
    return slot / page_size * page_stride + slot % page_size * slot_stride;
  }
};

template <class T, Norm kNorm, int kHeadSize = kNormedHead, bool kIsGemma = false, class Angle = T>
__device__ void rotate_and_append(const Heads<T>& heads, const Weights<T>& weights,
                                  const Angles<Angle>& angles, const Outputs<T>& out,
                                  const PagedCache<T>& cache, int next_may_begin) {
  let_next_begin(next_may_begin);
  const auto [token, lane, element, all_head, is_head, is_query, is_value] =
      Part<kHeadSize>(heads.num_q_heads, heads.num_kv_heads);
  constexpr int kLanes = Part<kHeadSize>::kLanes;
  constexpr bool kHasNorms = kNorm != Norm::kNone;
  constexpr bool kRoundsOnce = kNorm == Norm::kOnceByHalves || kNorm == Norm::kOnceByPairs;
  const uint32_t head =
      all_head - (is_query ? 0 : heads.num_q_heads) - (is_value ? heads.num_kv_heads : 0);

  Vector weight;
  Vector other_weight;
  if constexpr (kHasNorms) {
    static_assert(kRoundsOnce || kHeadSize == kNormedHead);
    const T* const all_weights = is_query ? weights.query : weights.key;
    weight = load_shared_by_rows(all_weights + element);
    if constexpr (kRoundsOnce) {
      other_weight = load_shared_by_rows(all_weights + (element ^ (kHeadSize / 2)));
    }
  }
  const int64_t slot = __ldg(cache.slot_mapping + token);
  const Angle* const angle = angles.cos_sin_cache + __ldg(angles.positions + token) * kHeadSize +
                             element % (kHeadSize / 2);
  const auto cosines = load_angles(angle);
  const auto sines = load_angles(angle + kHeadSize / 2);
  const int64_t place = cache.place_of(slot);
  wait_for_kernel_before();

  const T* const rows = is_query ? heads.query : is_value ? heads.value : heads.key;
  const int64_t stride = is_query   ? heads.query_stride
                         : is_value ? heads.value_stride
                                    : heads.key_stride;
  Vector x = {};
  if (is_head) x = load_once(rows + token * stride + head * kHeadSize + element);
  Vector rotated = x;
  float squares = 0;
  if constexpr (kRoundsOnce) {
    const Vector other = of_other_half<kLanes>(x);
    squares = kNorm == Norm::kOnceByHalves ? sum_of_squares_of_halves<T, kLanes>(x, other)
                                           : sum_of_squares_by_pairs<T, kLanes>(x);
    rotated = normalize_and_rotate<T, kHeadSize, kIsGemma>({x, other}, {weight, other_weight},
                                                           squares, weights.eps, cosines, sines,
                                                           lane < kLanes / 2);
  } else {
    if constexpr (kHasNorms) rotated = normalize<T>(x, weight, sum_of_squares<T>(x), weights.eps);
    rotated = rotate<T, kLanes>(rotated, cosines, sines, lane < kLanes / 2);
  }
  if (!is_head) return;
  if (!is_value) {
    const uint32_t count = is_query ? heads.num_q_heads : heads.num_kv_heads;
    store((is_query ? out.query : out.key) + (token * count + head) * kHeadSize + element, rotated);
    if (kNorm == Norm::kOnceByHalves && lane == 0) {
      (is_query ? out.query_sums : out.key_sums)[token * count + head] = squares;
    }
  }
  if (is_query || slot < 0) return;
  assign_if(is_value, x, &rotated);
  store((is_value ? cache.value : cache.key) + place + head * cache.head_stride + element, rotated);
}

// Adds a bias to the rows of qkv, in place, and rotates. A row is the heads of query, key and value,
// one behind the other. As Inductor does, the key is rotated before its sums are rounded.
template <class T, int kHeadSize>
__device__ void add_bias_rotate_and_append(T* qkv, const T* bias, uint32_t num_q_heads,
                                           uint32_t num_kv_heads, const Angles<T>& angles,
                                           const Outputs<T>& out, const PagedCache<T>& cache,
                                           int next_may_begin) {
  let_next_begin(next_may_begin);
  const auto [token, lane, element, all_head, is_head, is_query, is_value] =
      Part<kHeadSize>(num_q_heads, num_kv_heads);
  constexpr int kLanes = Part<kHeadSize>::kLanes;
  const uint32_t head = all_head - (is_query ? 0 : num_q_heads) - (is_value ? num_kv_heads : 0);
  const int64_t slot = __ldg(cache.slot_mapping + token);
  const T* const angle = angles.cos_sin_cache + __ldg(angles.positions + token) * kHeadSize +
                         element % (kHeadSize / 2);
  const Vector cosines = load_shared_by_rows(angle);
  const Vector sines = load_shared_by_rows(angle + kHeadSize / 2);
  const uint32_t in_row = all_head * kHeadSize + element;
  Vector added = {};
  if (is_head) added = load_shared_by_rows(bias + in_row);
  const int64_t place = cache.place_of(slot);
  wait_for_kernel_before();

  T* const row = qkv + token * (num_q_heads + 2 * num_kv_heads) * kHeadSize;
  Vector x = {};
  if (is_head) x = load_once(row + in_row);
  Vector biased;
  Vector rotated;
  const bool is_first_half = lane < kLanes / 2;
#pragma unroll
  for (int i = 0; i < kPairsPerVector; ++i) {
    const float2 of_row = Pair<T>::unpack(x.pairs[i]);
    const float2 of_bias = Pair<T>::unpack(added.pairs[i]);
    float2 a = {of_row.x + of_bias.x, of_row.y + of_bias.y};
    biased.pairs[i] = Pair<T>::pack(a);
    if (is_query) a = Pair<T>::unpack(biased.pairs[i]);
    const float2 b = {__shfl_xor_sync(0xffffffffu, a.x, kLanes / 2),
                      __shfl_xor_sync(0xffffffffu, a.y, kLanes / 2)};
    const float2 cos = Pair<T>::unpack(cosines.pairs[i]);
    float2 sin = Pair<T>::unpack(sines.pairs[i]);
    if (is_first_half) sin = {-sin.x, -sin.y};
    rotated.pairs[i] = Pair<T>::pack({a.x * cos.x + b.x * sin.x, a.y * cos.y + b.y * sin.y});
  }
  if (!is_head) return;
  store(row + in_row, biased);
  if (!is_value) {
    const uint32_t count = is_query ? num_q_heads : num_kv_heads;
    store((is_query ? out.query : out.key) + (token * count + head) * kHeadSize + element, rotated);
  }
  if (is_query || slot < 0) return;
  assign_if(is_value, biased, &rotated);
  store((is_value ? cache.value : cache.key) + place + head * cache.head_stride + element, rotated);
}

struct SlotCache {
  char* key;
  char* value;
  const int64_t* slots;
  int64_t key_stride;  // from slot to slot, in bytes
  int64_t value_stride;
  int64_t reserved_slot;
};

// A row of qkv is the heads of query, key and value, one behind the other.
template <class T, bool kHasNorms, int kHeadSize = kNormedHead>
__device__ void rotate_in_place_and_store(T* qkv, uint32_t num_q_heads, uint32_t num_kv_heads,
                                          const Weights<T>& weights, const float* cos_sin_cache,
                                          const int64_t* positions, const SlotCache& cache,
                                          int next_may_begin) {
  let_next_begin(next_may_begin);
  const auto [token, lane, element, head, is_head, is_query, is_value] =
      Part<kHeadSize>(num_q_heads, num_kv_heads);
  constexpr int kLanes = Part<kHeadSize>::kLanes;
  const uint32_t all_heads = num_q_heads + 2 * num_kv_heads;

  Vector weight;
  if constexpr (kHasNorms) {
    static_assert(kHeadSize == kNormedHead);
    weight = load_shared_by_rows((is_query ? weights.query : weights.key) + element);
  }
  const int64_t slot = __ldg(cache.slots + token);
  const float* const angle =
      cos_sin_cache + __ldg(positions + token) * kHeadSize + element % (kHeadSize / 2);
  const Floats cosines = load_angles(angle);
  const Floats sines = load_angles(angle + kHeadSize / 2);
  wait_for_kernel_before();

  T* const place = qkv + (token * all_heads + head) * kHeadSize + element;
  Vector x = {};
  if (is_head) x = load_once(place);
  Vector rotated = x;
  if constexpr (kHasNorms) {
    rotated = normalize<T>(x, weight, sum_of_squares_by_halves<T>(x), weights.eps);
  }
  rotated = rotate<T, kLanes>(rotated, cosines, sines, lane < kLanes / 2);
  if (!is_head) return;
  if (!is_value) store(place, rotated);
  if (is_query || slot < 0 || slot == cache.reserved_slot) return;
  assign_if(is_value, x, &rotated);
  const uint32_t cached = head - num_q_heads - (is_value ? num_kv_heads : 0);
  store((is_value ? cache.value + slot * cache.value_stride : cache.key + slot * cache.key_stride) +
            sizeof(T) * (cached * kHeadSize + element),
        rotated);
}

}  // namespace
}  // namespace fibshim

// Strides are in elements, from token to token, in the cache from head to head, too; the outputs of
// query and key are dense. A token with a negative slot is not written into the cache. Weights,
// positions, angles and slots do not depend on the kernel before ("reads_before_wait").
extern "C" __global__ void __launch_bounds__(fibshim::kThreads) qk_rope_append_d128_bf16(
    const __nv_bfloat16* query, const __nv_bfloat16* key, const __nv_bfloat16* value,
    const __nv_bfloat16* query_weight, const __nv_bfloat16* key_weight,
    const __nv_bfloat16* cos_sin_cache, const int64_t* positions, const int64_t* slot_mapping,
    __nv_bfloat16* query_out, __nv_bfloat16* key_out, __nv_bfloat16* key_cache,
    __nv_bfloat16* value_cache, int64_t query_stride, int64_t key_stride, int64_t value_stride,
    int64_t page_stride, int64_t slot_stride, int64_t head_stride, float eps, int page_size,
    uint32_t num_q_heads, uint32_t num_kv_heads, int next_may_begin) {
  fibshim::rotate_and_append<__nv_bfloat16, fibshim::Norm::kRounded>(
      {query, key, value, query_stride, key_stride, value_stride, num_q_heads, num_kv_heads},
      {query_weight, key_weight, eps}, {cos_sin_cache, positions}, {query_out, key_out},
      {key_cache, value_cache, slot_mapping, page_stride, slot_stride, head_stride, page_size},
      next_may_begin);
}

// The same without norms. A row of qkv begins with the heads of the query, followed by those of the
// key; the values may be anywhere. _float: with cosines and sines in fp32.
#define FIBSHIM_ROPE_APPEND(form, head_size, dtype, T, Angle)                                      \
  extern "C" __global__ void __launch_bounds__(fibshim::kThreads)                                  \
      rope_append##form##_d##head_size##_##dtype(                                                  \
          const T* qkv, const T* value, const Angle* cos_sin_cache, const int64_t* positions,      \
          const int64_t* slot_mapping, T* query_out, T* key_out, T* key_cache, T* value_cache,     \
          int64_t row_size, int64_t value_stride, int64_t page_stride, int64_t slot_stride,        \
          int64_t head_stride, int page_size, uint32_t num_q_heads, uint32_t num_kv_heads,         \
          int next_may_begin) {                                                                    \
    fibshim::rotate_and_append<T, fibshim::Norm::kNone, head_size, false, Angle>(                  \
        {qkv, qkv + num_q_heads * head_size, value, row_size, row_size, value_stride, num_q_heads, \
         num_kv_heads},                                                                            \
        {}, {cos_sin_cache, positions}, {query_out, key_out},                                      \
        {key_cache, value_cache, slot_mapping, page_stride, slot_stride, head_stride, page_size},  \
        next_may_begin);                                                                           \
  }

FIBSHIM_ROPE_APPEND(, 64, bf16, __nv_bfloat16, __nv_bfloat16)
FIBSHIM_ROPE_APPEND(, 128, bf16, __nv_bfloat16, __nv_bfloat16)
FIBSHIM_ROPE_APPEND(, 128, fp16, __half, __half)
FIBSHIM_ROPE_APPEND(_float, 64, bf16, __nv_bfloat16, float)

// The same of rows that lack their bias, which they get in place; the values are those of the rows.
// The bias does not depend on the kernel before, either.
#define FIBSHIM_BIAS_ROPE_APPEND(head_size, dtype, T)                                             \
  extern "C" __global__ void __launch_bounds__(fibshim::kThreads)                                 \
      bias_rope_append_d##head_size##_##dtype(                                                    \
          T* qkv, const T* bias, const T* cos_sin_cache, const int64_t* positions,                \
          const int64_t* slot_mapping, T* query_out, T* key_out, T* key_cache, T* value_cache,    \
          int64_t page_stride, int64_t slot_stride, int64_t head_stride, int page_size,           \
          uint32_t num_q_heads, uint32_t num_kv_heads, int next_may_begin) {                      \
    fibshim::add_bias_rotate_and_append<T, head_size>(                                            \
        qkv, bias, num_q_heads, num_kv_heads, {cos_sin_cache, positions}, {query_out, key_out},   \
        {key_cache, value_cache, slot_mapping, page_stride, slot_stride, head_stride, page_size}, \
        next_may_begin);                                                                          \
  }

FIBSHIM_BIAS_ROPE_APPEND(64, bf16, __nv_bfloat16)
FIBSHIM_BIAS_ROPE_APPEND(64, fp16, __half)
FIBSHIM_BIAS_ROPE_APPEND(128, bf16, __nv_bfloat16)
FIBSHIM_BIAS_ROPE_APPEND(128, fp16, __half)

// With norms that are not rounded. The first has the sums of the heads' squares, which Inductor's
// kernels of PyTorch 2.11 pass on in memory; the second adds them up as PyTorch 2.14 does, and
// passes on none, as 2.13. Weights of gemma_ are less by 1.
#define FIBSHIM_ONCE_APPEND(prefix, head_size, is_gemma, dtype, T)                                 \
  extern "C" __global__ void __launch_bounds__(fibshim::kThreads)                                  \
      prefix##qk_rope_once_append_sums_d##head_size##_##dtype(                                     \
          const T* qkv, const T* value, const T* query_weight, const T* key_weight,                \
          const T* cos_sin_cache, const int64_t* positions, const int64_t* slot_mapping,           \
          T* query_out, T* key_out, T* key_cache, T* value_cache, float* query_sums,               \
          float* key_sums, int64_t row_size, int64_t value_stride, int64_t page_stride,            \
          int64_t slot_stride, int64_t head_stride, float eps, int page_size,                      \
          uint32_t num_q_heads, uint32_t num_kv_heads, int next_may_begin) {                       \
    fibshim::rotate_and_append<T, fibshim::Norm::kOnceByHalves, head_size, is_gemma>(              \
        {qkv, qkv + num_q_heads * head_size, value, row_size, row_size, value_stride, num_q_heads, \
         num_kv_heads},                                                                            \
        {query_weight, key_weight, eps}, {cos_sin_cache, positions},                               \
        {query_out, key_out, query_sums, key_sums},                                                \
        {key_cache, value_cache, slot_mapping, page_stride, slot_stride, head_stride, page_size},  \
        next_may_begin);                                                                           \
  }                                                                                                \
  extern "C" __global__ void __launch_bounds__(fibshim::kThreads)                                  \
      prefix##qk_rope_once_append_d##head_size##_##dtype(                                          \
          const T* qkv, const T* value, const T* query_weight, const T* key_weight,                \
          const T* cos_sin_cache, const int64_t* positions, const int64_t* slot_mapping,           \
          T* query_out, T* key_out, T* key_cache, T* value_cache, int64_t row_size,                \
          int64_t value_stride, int64_t page_stride, int64_t slot_stride, int64_t head_stride,     \
          float eps, int page_size, uint32_t num_q_heads, uint32_t num_kv_heads,                   \
          int next_may_begin) {                                                                    \
    fibshim::rotate_and_append<T, fibshim::Norm::kOnceByPairs, head_size, is_gemma>(               \
        {qkv, qkv + num_q_heads * head_size, value, row_size, row_size, value_stride, num_q_heads, \
         num_kv_heads},                                                                            \
        {query_weight, key_weight, eps}, {cos_sin_cache, positions}, {query_out, key_out},         \
        {key_cache, value_cache, slot_mapping, page_stride, slot_stride, head_stride, page_size},  \
        next_may_begin);                                                                           \
  }

FIBSHIM_ONCE_APPEND(, 128, false, bf16, __nv_bfloat16)
FIBSHIM_ONCE_APPEND(, 128, false, fp16, __half)
FIBSHIM_ONCE_APPEND(gemma_, 128, true, bf16, __nv_bfloat16)
FIBSHIM_ONCE_APPEND(gemma_, 256, true, bf16, __nv_bfloat16)

// In place. Strides are in bytes, from slot to slot. A token with the reserved slot, or with one
// below zero, is not written into the cache; -1: no slot is reserved.
extern "C" __global__ void __launch_bounds__(fibshim::kThreads)
    qk_rope_store_d128_bf16(__nv_bfloat16* qkv, const __nv_bfloat16* query_weight,
                            const __nv_bfloat16* key_weight, const float* cos_sin_cache,
                            const int64_t* positions, const int64_t* slots, void* key_cache,
                            void* value_cache, int64_t key_slot_stride, int64_t value_slot_stride,
                            int64_t reserved_slot, float eps, uint32_t num_q_heads,
                            uint32_t num_kv_heads, int next_may_begin) {
  fibshim::rotate_in_place_and_store<__nv_bfloat16, true>(
      qkv, num_q_heads, num_kv_heads, {query_weight, key_weight, eps}, cos_sin_cache, positions,
      {static_cast<char*>(key_cache), static_cast<char*>(value_cache), slots, key_slot_stride,
       value_slot_stride, reserved_slot},
      next_may_begin);
}

// The same without norms.
#define FIBSHIM_ROPE_STORE(head_size)                                                             \
  extern "C" __global__ void __launch_bounds__(fibshim::kThreads) rope_store_d##head_size##_bf16( \
      __nv_bfloat16* qkv, const float* cos_sin_cache, const int64_t* positions,                   \
      const int64_t* slots, void* key_cache, void* value_cache, int64_t key_slot_stride,          \
      int64_t value_slot_stride, int64_t reserved_slot, uint32_t num_q_heads,                     \
      uint32_t num_kv_heads, int next_may_begin) {                                                \
    fibshim::rotate_in_place_and_store<__nv_bfloat16, false, head_size>(                          \
        qkv, num_q_heads, num_kv_heads, {}, cos_sin_cache, positions,                             \
        {static_cast<char*>(key_cache), static_cast<char*>(value_cache), slots, key_slot_stride,  \
         value_slot_stride, reserved_slot},                                                       \
        next_may_begin);                                                                          \
  }

FIBSHIM_ROPE_STORE(64)
FIBSHIM_ROPE_STORE(128)
