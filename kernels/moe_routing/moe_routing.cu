// Softmax routing of a few tokens to experts, which replaces two or three kernels of vLLM:
// topkGating, moe_align_block_size_kernel and count_and_sort_expert_tokens_kernel; or topkGating
// and moe_align_block_size_small_batch_expert_kernel, which vLLM uses for up to 64 experts. Or of
// SGLang: _router_triton_kernel, and what it calls moe_align_block_size_kernel and
// count_and_sort_expert_tokens_kernel, too, or _moe_align_small_numel_kernel.
//
// One block. A warp holds a token's row, or with 8 experts a thread does. The exponentials are
// added up in the engine's order, so that the weights are bit-identical: if a lane holds less than
// 16 bytes of the row, several lanes add vLLM's one after the other; SGLang's are added in pairs.
// Among equals the lowest expert wins. vLLM compares probabilities, of which those that are
// infinite or NaN count as 0; SGLang compares logits, where NaN counts as -1e30.
//
// An expert's tokens have the same order as in vLLM's small kernel. Its other kernel and one of
// SGLang's leave the order open; here the tokens then ascend. A token's place follows from a bit
// mask of the expert's tokens.
//
// grid = 1, block = 256 threads for 8 experts, else 1024.
//
// moe_topk_e128_k8_bf16, ...  the first of vLLM's kernels alone, for any number of tokens; grid =
//                             tokens / 4, rounded up, block = 128
#include <type_traits>

#include "vector.cuh"

namespace fibshim {
namespace {

constexpr uint32_t kEveryLane = 0xffffffffu;
constexpr int kMostTokens = 64;
constexpr uint32_t kNoExpert = 0xffffffffu;

template <int E>
constexpr int kThreadsFor = E < 32 ? 256 : 1024;

struct Routing {
  float* weights;             // [tokens, K]
  int* experts;               // [tokens, K]
  int* token_expert_indices;  // [tokens, K], or null; outputs that are written later may overlap it
  int* sorted_token_ids;      // [max_num_tokens_padded]
  int* expert_ids;            // [ceil(max_num_tokens_padded / block_size)]
  int* num_tokens_post_pad;   // [1]
  int* cumsum;                // [experts + 1], or null
  int num_tokens;
  int block_size;
  int max_num_tokens_padded;
  int division;  // of the weights by their sum. 0: none; 1: each is divided; 2: by its reciprocal
  const bool*
      is_padding;  // [tokens], or null: tokens whose experts are -1, and which are not sorted
};

// Loads `Count` elements, at most 16 bytes.
template <class T, int Count>
__device__ void load_chunk(const T* from, float* values) {
  if constexpr (sizeof(T) == 4) {
    if constexpr (Count == 4) {
      const float4 loaded = *reinterpret_cast<const float4*>(from);
      values[0] = loaded.x, values[1] = loaded.y, values[2] = loaded.z, values[3] = loaded.w;
    } else {
      static_assert(Count == 2);
      const float2 loaded = *reinterpret_cast<const float2*>(from);
      values[0] = loaded.x, values[1] = loaded.y;
    }
  } else {
    uint32_t pairs[Count / 2];
    if constexpr (Count == 8) {
      const uint4 loaded = *reinterpret_cast<const uint4*>(from);
      pairs[0] = loaded.x, pairs[1] = loaded.y, pairs[2] = loaded.z, pairs[3] = loaded.w;
    } else if constexpr (Count == 4) {
      const uint2 loaded = *reinterpret_cast<const uint2*>(from);
      pairs[0] = loaded.x, pairs[1] = loaded.y;
    } else {
      static_assert(Count == 2);
      pairs[0] = *reinterpret_cast<const uint32_t*>(from);
    }
#pragma unroll
    for (int i = 0; i < Count / 2; ++i) {
      const float2 pair = Pair<T>::unpack(pairs[i]);
      values[2 * i] = pair.x, values[2 * i + 1] = pair.y;
    }
  }
}

// Maps probabilities to integers in the same order; 0 is less than all of them.
struct Probabilities {
  static __device__ uint32_t rank_of(float probability) {
    const bool is_number = fabsf(probability) < __uint_as_float(0x7f800000u);
    return is_number ? __float_as_uint(probability) + 1 : 1;
  }
  static __device__ float score_of(uint32_t rank) { return __uint_as_float(rank - 1); }
};

// The same of logits.
struct Logits {
  static __device__ uint32_t rank_of(float logit) {
    const uint32_t bits = __float_as_uint(logit == logit ? logit : -1e30f);
    return bits >> 31 != 0 ? ~bits : bits | 0x80000000u;
  }
  static __device__ float score_of(uint32_t rank) {
    return __uint_as_float(rank >> 31 != 0 ? rank ^ 0x80000000u : ~rank);
  }
};

// As Triton computes them.
__device__ float exp_fast(float x) {
  float result;
  asm("ex2.approx.f32 %0, %1;" : "=f"(result) : "f"(x * 1.44269504f));
  return result;
}
__device__ float divide_fast(float x, float by) {
  float result;
  asm("div.full.f32 %0, %1, %2;" : "=f"(result) : "f"(x), "f"(by));
  return result;
}

// A row that a warp holds.
template <class T, int E, class Scores>
struct WarpRow : Scores {
  static constexpr int kLanes = 32;  // per row
  static constexpr int kElements = E / kLanes;
  static constexpr int kMostInChunk = 16 / sizeof(T);
  static constexpr int kChunk = kElements < kMostInChunk ? kElements : kMostInChunk;

  float values[kElements];
  uint32_t ranks[kElements];

  static __device__ int lane() { return threadIdx.x % kLanes; }
  static __device__ uint32_t expert_of(int i) {
    return i / kChunk * (kChunk * kLanes) + lane() * kChunk + i % kChunk;
  }

  __device__ void load(const T* row) {
#pragma unroll
    for (int i = 0; i < kElements; i += kChunk)
      load_chunk<T, kChunk>(row + expert_of(i), values + i);
  }

  __device__ float find_most() const {
    float most = values[0];
#pragma unroll
    for (int i = 1; i < kElements; ++i) most = fmaxf(most, values[i]);
#pragma unroll
    for (int distance = kLanes / 2; distance > 0; distance /= 2) {
      most = fmaxf(most, __shfl_xor_sync(kEveryLane, most, distance));
    }
    return most;
  }

  // Returns the best expert of the row, and removes it from the row.
  __device__ uint32_t take_best(float* score) {
    uint32_t best = ranks[0];
    uint32_t expert = expert_of(0);
#pragma unroll
    for (int i = 1; i < kElements; ++i) {
      if (ranks[i] <= best) continue;
      best = ranks[i];
      expert = expert_of(i);
    }
    const uint32_t highest = __reduce_max_sync(kEveryLane, best);
    expert = __reduce_min_sync(kEveryLane, best == highest ? expert : kNoExpert);
#pragma unroll
    for (int i = 0; i < kElements; ++i) {
      if (expert_of(i) == expert) ranks[i] = 0;
    }
    *score = Scores::score_of(highest);
    return expert;
  }
};

// As vLLM has it.
template <class T, int E>
struct ProbabilityRow : WarpRow<T, E, Probabilities> {
  using Base = WarpRow<T, E, Probabilities>;
  using Base::kElements, Base::kLanes, Base::kMostInChunk, Base::lane, Base::ranks, Base::values;
  // The number of lanes that together hold the elements of one thread in vLLM's kernel.
  static constexpr int kSharers = kElements < kMostInChunk ? kMostInChunk / kElements : 1;

  __device__ void make_ranks() {
    const float most = Base::find_most();
    float sum = 0;
#pragma unroll
    for (int i = 0; i < kElements; ++i) {
      values[i] = expf(values[i] - most);
      sum += values[i];
    }
#pragma unroll
    for (int sharer = 1; sharer < kSharers; ++sharer) {
      float longer = __shfl_up_sync(kEveryLane, sum, 1);
#pragma unroll
      for (int i = 0; i < kElements; ++i) longer += values[i];
      if (lane() % kSharers == sharer) sum = longer;
    }
    // Only the last of the sharers has its group's sum.
#pragma unroll
    for (int distance = kLanes / 2; distance >= kSharers; distance /= 2) {
      sum += __shfl_xor_sync(kEveryLane, sum, distance);
    }
    if constexpr (kSharers > 1) sum = __shfl_sync(kEveryLane, sum, kSharers - 1);
    const float scale = 1.0f / sum;
#pragma unroll
    for (int i = 0; i < kElements; ++i) ranks[i] = Base::rank_of(values[i] * scale);
  }
};

// As SGLang has it: of 16-bit logits, each 8 of which a thread of its kernel adds up.
template <class T, int E>
struct LogitRow : WarpRow<T, E, Logits> {
  using Base = WarpRow<T, E, Logits>;
  using Base::kElements, Base::kLanes, Base::lane, Base::ranks, Base::values;
  static_assert(sizeof(T) == 2 && kElements == 4);

  float most, sum;

  __device__ void make_ranks() {
#pragma unroll
    for (int i = 0; i < kElements; ++i) values[i] += 0.0f;  // -0 ranks as 0
    most = Base::find_most();
    sum = (exp_fast(values[0] - most) + exp_fast(values[1] - most)) +
          (exp_fast(values[2] - most) + exp_fast(values[3] - most));
    sum += __shfl_xor_sync(kEveryLane, sum, 1);
#pragma unroll
    for (int distance = kLanes / 2; distance > 1; distance /= 2) {
      sum += __shfl_xor_sync(kEveryLane, sum, distance);
    }
#pragma unroll
    for (int i = 0; i < kElements; ++i) ranks[i] = Base::rank_of(values[i]);
  }

  // Lane k has the k-th choice's logit, which becomes its weight. Returns the sum of K weights.
  template <int K>
  __device__ float make_weight(float* logit) const {
    *logit = divide_fast(exp_fast(*logit - most), sum);
    float weights = *logit;
#pragma unroll
    for (int distance = 1; distance < K; distance *= 2) {
      weights += __shfl_xor_sync(kEveryLane, weights, distance);
    }
    return weights;
  }
};

// A row that a thread holds. In vLLM's kernel two threads hold a row of eight fp32 numbers.
template <class T, int E>
struct ThreadRow : Probabilities {
  static constexpr int kLanes = 1;
  static constexpr int kChunk = 16 / sizeof(T);

  float values[E];
  uint32_t ranks[E];

  static __device__ int lane() { return 0; }

  __device__ void load(const T* row) {
#pragma unroll
    for (int i = 0; i < E; i += kChunk) load_chunk<T, kChunk>(row + i, values + i);
  }

  __device__ void make_ranks() {
    float most = values[0];
#pragma unroll
    for (int i = 1; i < E; ++i) most = fmaxf(most, values[i]);
    float sums[E / kChunk];
#pragma unroll
    for (int chunk = 0; chunk < E / kChunk; ++chunk) {
      sums[chunk] = 0;
#pragma unroll
      for (int i = chunk * kChunk; i < (chunk + 1) * kChunk; ++i) {
        values[i] = expf(values[i] - most);
        sums[chunk] += values[i];
      }
    }
    static_assert(E / kChunk <= 2);
    const float scale = 1.0f / (E / kChunk == 2 ? sums[0] + sums[E / kChunk - 1] : sums[0]);
#pragma unroll
    for (int i = 0; i < E; ++i) ranks[i] = rank_of(values[i] * scale);
  }

  __device__ uint32_t take_best(float* score) {
    uint32_t best = ranks[0];
    uint32_t expert = 0;
#pragma unroll
    for (int i = 1; i < E; ++i) {
      if (ranks[i] <= best) continue;
      best = ranks[i];
      expert = i;
    }
#pragma unroll
    for (int i = 0; i < E; ++i) {
      if (expert == i) ranks[i] = 0;
    }
    *score = score_of(best);
    return expert;
  }
};

// Sets `length` elements to `value`.
__device__ void fill(int* to, int length, int value) {
  const bool is_aligned = reinterpret_cast<uintptr_t>(to) % sizeof(int4) == 0;
  const int in_fours = is_aligned ? length / 4 : 0;
  for (int i = threadIdx.x; i < in_fours; i += blockDim.x) {
    reinterpret_cast<int4*>(to)[i] = {value, value, value, value};
  }
  for (int i = 4 * in_fours + threadIdx.x; i < length; i += blockDim.x) to[i] = value;
}

// Returns the bit of the k-th choice of a token among an expert's tokens. An expert has each token
// at most once.
template <int E, int K, bool kIsSmall>
__device__ uint32_t place_of(uint32_t token, uint32_t k, uint32_t num_tokens) {
  if constexpr (!kIsSmall) return token;
  // In vLLM's small kernel thread t takes choices t, t + kThreads, ..., and a thread's choices are
  // adjacent.
  constexpr uint32_t kThreads = E < 32 ? 32 : E;
  const uint32_t choice = token * K + k;
  const uint32_t rounds = (num_tokens * K + kThreads - 1) / kThreads;
  return choice % kThreads * rounds + choice / kThreads;
}

// Chooses a token's experts, and writes them and their weights. In a warp's row `chosen` is for lane
// k the k-th.
template <int K, class Row, int kChosen>
__device__ void choose(Row& row, int token, const Routing& out, uint32_t (&chosen)[kChosen]) {
  constexpr bool kRanksLogits = std::is_base_of_v<Logits, Row>;
  row.make_ranks();
  float sum = 0;
  float weights[kChosen] = {};
#pragma unroll
  for (int k = 0; k < K; ++k) {
    float score;
    const uint32_t expert = row.take_best(&score);
    sum += score;
    if (Row::kLanes == 1 || Row::lane() == k) {
      weights[Row::kLanes == 1 ? k : 0] = score;
      chosen[Row::kLanes == 1 ? k : 0] = expert;
    }
  }
  if constexpr (kRanksLogits) sum = row.template make_weight<K>(weights);
  const float divisor = out.division == 0 || !(sum > 0) ? 1.0f : sum;
  const float reciprocal = 1.0f / divisor;
  const bool is_padding = out.is_padding != nullptr && out.is_padding[token];
#pragma unroll
  for (int k = 0; k < kChosen; ++k) {
    const int own = Row::kLanes == 1 ? k : Row::lane();
    if (own >= K) continue;
    if (is_padding) chosen[k] = kNoExpert;
    out.weights[token * K + own] = kRanksLogits        ? divide_fast(weights[k], divisor)
                                   : out.division == 2 ? weights[k] * reciprocal
                                                       : weights[k] / divisor;
    out.experts[token * K + own] = chosen[k];
  }
}

template <class T, int E>
using VllmRow = std::conditional_t<(E < 32), ThreadRow<T, E>, ProbabilityRow<T, E>>;

template <class Row, class T, int E, int K, bool kIsSmall>
__device__ void route(const T* logits, const Routing& out, int next_may_begin) {
  constexpr bool kRanksLogits = std::is_base_of_v<Logits, Row>;
  constexpr int kThreads = kThreadsFor<E>;
  constexpr int kRowsAtATime = kThreads / Row::kLanes;
  constexpr int kRounds = (kMostTokens + kRowsAtATime - 1) / kRowsAtATime;
  // The places of the small kernel have gaps in the last round.
  constexpr int kPlaces = kIsSmall ? kMostTokens * K + (E < 32 ? 32 : E) : kMostTokens;
  constexpr int kWords = (kPlaces + 31) / 32;
  __shared__ uint32_t tokens_of[E * kWords];
  __shared__ int count_of[E];
  __shared__ int first_block_of[E + 1];

  let_next_begin(next_may_begin);
  for (int i = threadIdx.x; i < E * kWords; i += kThreads) tokens_of[i] = 0;
  if (threadIdx.x < E) count_of[threadIdx.x] = 0;
  wait_for_kernel_before();

  const int first_token = threadIdx.x / Row::kLanes;
  Row rows[kRounds];
#pragma unroll
  for (int i = 0; i < kRounds; ++i) {
    const int token = first_token + i * kRowsAtATime;
    if (token < out.num_tokens) rows[i].load(logits + token * E);
  }
  const int choices = out.num_tokens * K;
  if constexpr (!kRanksLogits) {
    for (int i = threadIdx.x; i < choices; i += kThreads) {
      out.token_expert_indices[i] = i % K * out.num_tokens + i / K;
    }
  }
  __syncthreads();

  fill(out.sorted_token_ids, out.max_num_tokens_padded, choices);
  uint32_t chosen[kRounds][Row::kLanes == 1 ? K : 1];  // in a warp's row, lane k has the k-th
#pragma unroll
  for (int i = 0; i < kRounds; ++i) {
    const int token = first_token + i * kRowsAtATime;
    if (token >= out.num_tokens) continue;
    choose<K>(rows[i], token, out, chosen[i]);
#pragma unroll
    for (int k = 0; k < (Row::kLanes == 1 ? K : 1); ++k) {
      const int own = Row::kLanes == 1 ? k : Row::lane();
      const uint32_t expert = chosen[i][k];
      if (own >= K || expert == kNoExpert) continue;
      const uint32_t place = place_of<E, K, kIsSmall>(token, own, out.num_tokens);
      atomicAdd(&count_of[expert], 1);
      atomicOr(&tokens_of[expert * kWords + place / 32], 1u << place % 32);
    }
  }
  __syncthreads();

  if (threadIdx.x < 32) {
    const bool has_cumsum = kRanksLogits ? out.cumsum != nullptr : !kIsSmall;
    constexpr int kExperts = E < 32 ? 1 : E / 32;  // per lane
    const int first = threadIdx.x * kExperts;
    int counts[kExperts], blocks[kExperts];
    int sum = 0;
#pragma unroll
    for (int i = 0; i < kExperts; ++i) {
      counts[i] = first + i < E ? count_of[first + i] : 0;
      blocks[i] = static_cast<uint32_t>(counts[i] + out.block_size - 1) / out.block_size;
      sum += blocks[i];
    }
    int end = sum;
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
      const int before = __shfl_up_sync(kEveryLane, end, distance);
      if (threadIdx.x >= distance) end += before;
    }
    int at = end - sum;
#pragma unroll
    for (int i = 0; i < kExperts; ++i) {
      if (first + i < E) {
        first_block_of[first + i] = at;
        // The value that the engines leave there: it counts up from the place of each expert's first
        // token.
        if (has_cumsum) out.cumsum[first + i] = at * out.block_size + counts[i];
      }
      at += blocks[i];
    }
    if (threadIdx.x == 31) {
      first_block_of[E] = end;
      *out.num_tokens_post_pad = end * out.block_size;
      if (has_cumsum) out.cumsum[E] = end * out.block_size;
    }
  }
  __syncthreads();

  if (threadIdx.x < E) {
    const int end = first_block_of[threadIdx.x + 1];
    for (int i = first_block_of[threadIdx.x]; i < end; ++i) out.expert_ids[i] = threadIdx.x;
  }
  const int most_blocks =
      static_cast<uint32_t>(out.max_num_tokens_padded + out.block_size - 1) / out.block_size;
  for (int i = first_block_of[E] + threadIdx.x; i < most_blocks; i += kThreads) {
    out.expert_ids[i] = -1;
  }
#pragma unroll
  for (int i = 0; i < kRounds; ++i) {
    const int token = first_token + i * kRowsAtATime;
    if (token >= out.num_tokens) continue;
#pragma unroll
    for (int k = 0; k < (Row::kLanes == 1 ? K : 1); ++k) {
      const int own = Row::kLanes == 1 ? k : Row::lane();
      const uint32_t expert = chosen[i][k];
      if (own >= K || expert == kNoExpert) continue;
      const uint32_t place = place_of<E, K, kIsSmall>(token, own, out.num_tokens);
      const uint32_t* const words = tokens_of + expert * kWords;
      int before = __popc(words[place / 32] & ((1u << place % 32) - 1));
      for (uint32_t word = 0; word < place / 32; ++word) before += __popc(words[word]);
      out.sorted_token_ids[first_block_of[expert] * out.block_size + before] = token * K + own;
    }
  }
}

constexpr int kTokensOfBlock = 4;

// Of any number of tokens, each of a warp.
template <class T, int E, int K>
__device__ void choose_experts(const T* logits, const Routing& out, int next_may_begin) {
  using Row = VllmRow<T, E>;
  const int token = blockIdx.x * kTokensOfBlock + threadIdx.x / 32;
  let_next_begin(next_may_begin);
  wait_for_kernel_before();
  if (token >= out.num_tokens) return;
  Row row;
  row.load(logits + int64_t{token} * E);
  if (Row::lane() < K) {
    out.token_expert_indices[token * K + Row::lane()] = Row::lane() * out.num_tokens + token;
  }
  uint32_t chosen[1];
  choose<K>(row, token, out, chosen);
}

}  // namespace
}  // namespace fibshim

#define FIBSHIM_MOE_TOPK(name, type, experts, k)                                                \
  extern "C" __global__ void __launch_bounds__(fibshim::kTokensOfBlock * 32)                    \
      moe_topk_e##experts##_k##k##_##name(const type* router_logits, float* topk_weights,       \
                                          int* topk_ids, int* token_expert_indices,             \
                                          int num_tokens, int division, const bool* is_padding, \
                                          int next_may_begin) {                                 \
    fibshim::choose_experts<type, experts, k>(                                                  \
        router_logits,                                                                          \
        {topk_weights, topk_ids, token_expert_indices, nullptr, nullptr, nullptr, nullptr,      \
         num_tokens, 0, 0, division, is_padding},                                               \
        next_may_begin);                                                                        \
  }
// At most 64 tokens. token_expert_indices is written first, since outputs of vLLM's later kernels
// may overlap it.
#define FIBSHIM_MOE_ROUTING(name, type, experts, k)                                              \
  extern "C" __global__ void __launch_bounds__(fibshim::kThreadsFor<experts>)                    \
      moe_routing_e##experts##_k##k##_##name(                                                    \
          const type* router_logits, float* topk_weights, int* topk_ids,                         \
          int* token_expert_indices, int* sorted_token_ids, int* expert_ids,                     \
          int* num_tokens_post_pad, int* cumsum, int num_tokens, int block_size,                 \
          int max_num_tokens_padded, int division, const bool* is_padding, int next_may_begin) { \
    fibshim::route<fibshim::VllmRow<type, experts>, type, experts, k, false>(                    \
        router_logits,                                                                           \
        {topk_weights, topk_ids, token_expert_indices, sorted_token_ids, expert_ids,             \
         num_tokens_post_pad, cumsum, num_tokens, block_size, max_num_tokens_padded, division,   \
         is_padding},                                                                            \
        next_may_begin);                                                                         \
  }
#define FIBSHIM_MOE_ROUTING_SMALL(name, type, experts, k)                                       \
  extern "C" __global__ void __launch_bounds__(fibshim::kThreadsFor<experts>)                   \
      moe_routing_small_e##experts##_k##k##_##name(                                             \
          const type* router_logits, float* topk_weights, int* topk_ids,                        \
          int* token_expert_indices, int* sorted_token_ids, int* expert_ids,                    \
          int* num_tokens_post_pad, int num_tokens, int block_size, int max_num_tokens_padded,  \
          int division, const bool* is_padding, int next_may_begin) {                           \
    fibshim::route<fibshim::VllmRow<type, experts>, type, experts, k, true>(                    \
        router_logits,                                                                          \
        {topk_weights, topk_ids, token_expert_indices, sorted_token_ids, expert_ids,            \
         num_tokens_post_pad, nullptr, num_tokens, block_size, max_num_tokens_padded, division, \
         is_padding},                                                                           \
        next_may_begin);                                                                        \
  }
// SGLang has another bucket before the experts' own, of choices that are left out: here it is empty. cumsum may be null.
#define FIBSHIM_MOE_ROUTING_BY_LOGIT(name, type, experts, k)                                      \
  extern "C" __global__ void __launch_bounds__(fibshim::kThreadsFor<experts>)                     \
      moe_routing_by_logit_e##experts##_k##k##_##name(                                            \
          const type* router_logits, float* topk_weights, int* topk_ids, int* sorted_token_ids,   \
          int* expert_ids, int* num_tokens_post_pad, int* cumsum, int num_tokens, int block_size, \
          int max_num_tokens_padded, int renormalize, int next_may_begin) {                       \
    fibshim::route<fibshim::LogitRow<type, experts>, type, experts, k, false>(                    \
        router_logits,                                                                            \
        {topk_weights, topk_ids, nullptr, sorted_token_ids, expert_ids, num_tokens_post_pad,      \
         cumsum == nullptr ? nullptr : cumsum + 1, num_tokens, block_size, max_num_tokens_padded, \
         renormalize, nullptr},                                                                   \
        next_may_begin);                                                                          \
    if (cumsum != nullptr && threadIdx.x == 0) cumsum[0] = 0;                                     \
  }

FIBSHIM_MOE_TOPK(bf16, __nv_bfloat16, 64, 8)
FIBSHIM_MOE_TOPK(fp32, float, 64, 8)
FIBSHIM_MOE_TOPK(bf16, __nv_bfloat16, 128, 8)
FIBSHIM_MOE_TOPK(fp32, float, 128, 8)
FIBSHIM_MOE_TOPK(bf16, __nv_bfloat16, 256, 8)
FIBSHIM_MOE_TOPK(fp32, float, 256, 8)
FIBSHIM_MOE_ROUTING(bf16, __nv_bfloat16, 128, 8)
FIBSHIM_MOE_ROUTING(fp32, float, 128, 8)
FIBSHIM_MOE_ROUTING(bf16, __nv_bfloat16, 256, 8)
FIBSHIM_MOE_ROUTING(fp32, float, 256, 8)
FIBSHIM_MOE_ROUTING_SMALL(bf16, __nv_bfloat16, 8, 2)
FIBSHIM_MOE_ROUTING_SMALL(fp32, float, 8, 2)
FIBSHIM_MOE_ROUTING_SMALL(bf16, __nv_bfloat16, 64, 8)
FIBSHIM_MOE_ROUTING_SMALL(fp32, float, 64, 8)
FIBSHIM_MOE_ROUTING_BY_LOGIT(bf16, __nv_bfloat16, 128, 8)
