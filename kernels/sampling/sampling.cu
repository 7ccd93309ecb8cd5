// Samples one token of each row of probabilities, which replaces FlashInfer's kernels of the same
// names: the same uniform numbers, sums in the same order, and so the same tokens.
//
//   sampling_from_probs    of all tokens
//   top_k_sampling         of the k most probable
//   top_p_sampling         of the most probable whose sum reaches p
//   top_k_top_p_sampling   of those that both keep
//   min_p_sampling         of those with at least p times the greatest probability
//
// ..._one_limit: with one k or p for all rows.
// ..._tokens: the tokens of sgl-kernel 0.3, which has FlashInfer's kernels of before 0.5. They do not
// say whether there is a token, have pivots in double, and add up chunk by chunk also what is above
// a pivot.
//
// FlashInfer's block of 1024 threads reads a row twice for each token that it tries, in chunks of
// 4096 with several barriers each. Here a cluster holds the row in shared memory. Its blocks
// together have 1024 threads, which stand for FlashInfer's: a thread holds the four elements that
// the thread of its number reads of each chunk. A sum over a chunk is then one over all blocks.
// The sums of all chunks are made at once, and each block gets those of all warps, so that every
// block decides by itself, alike.
//
// To be compiled with -ftz=true, as FlashInfer's are.
//
// cluster = 8, block = 128, grid = 8 * rows; vocab_size % 4 == 0. Dynamic shared memory: 1024 bytes,
// and 2304 for each chunk of a row.
#include <type_traits>

#include "product.cuh"

namespace fibshim {
namespace {

constexpr uint32_t kEveryLane = 0xffffffffu;
constexpr int kBlocks = 8;  // of a cluster
constexpr int kThreads = 128;
constexpr int kOwnWarps = kThreads / 32;
constexpr int kWarps = kBlocks * kOwnWarps;
constexpr int kChunk = kBlocks * kThreads * 4;
constexpr int kNone = 0x7fffffff;
static_assert(kWarps == 32, "a lane for each warp");

enum class Filter { kNone, kTopK, kTopP, kTopKTopP, kMinP };
enum class Form { kOfRows, kOneLimit, kTokens };

struct Limits {
  const int* top_k;
  const float* p;
  int top_k_of_all;  // of kOneLimit
  float p_of_all;
};

struct Random {
  const uint64_t* seeds;  // or null: `seed`
  uint64_t seed;
  const uint64_t* offsets;  // or null: `offset`
  uint64_t offset;
  uint32_t seed_stride;
  uint32_t offset_stride;
};

// What warps send to all blocks of their cluster.
struct Exchange {
  int4 found[kWarps];    // a token and the bits of its probability
  float4 above[kWarps];  // sums above two pivots, and the numbers of tokens as bits
};

// In shared memory: Exchange, the sums of all chunks by warps, the row.
extern __shared__ __align__(16) unsigned char shared_memory[];

__device__ Exchange& exchange() { return *reinterpret_cast<Exchange*>(shared_memory); }

__device__ void synchronize_cluster() {
  arrive_at_cluster();
  wait_for_cluster();
}

template <class T>
__device__ uint32_t address_in(const T* own, uint32_t block) {
  uint32_t to;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
               : "=r"(to)
               : "r"(shared_address(own)), "r"(block));
  return to;
}

// Lane i sends to block i.
__device__ void send(const int4* own, int4 value) {
  const uint32_t lane = threadIdx.x % 32;
  if (lane >= kBlocks) return;
  asm volatile("st.shared::cluster.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(address_in(own, lane)),
               "r"(value.x), "r"(value.y), "r"(value.z), "r"(value.w)
               : "memory");
}

// Philox4x32-10, as cuRAND numbers its results: `index` is the offset plus the number of those drawn
// before.
__device__ float uniform(uint64_t seed, uint32_t sequence, uint64_t index) {
  const uint64_t block = index / 4;
  uint4 counter{static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32), sequence, 0};
  uint2 key{static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)};
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    constexpr uint32_t kFirst = 0xD2511F53u, kSecond = 0xCD9E8D57u;
    counter = {__umulhi(kSecond, counter.z) ^ counter.y ^ key.x, kSecond * counter.z,
               __umulhi(kFirst, counter.x) ^ counter.w ^ key.y, kFirst * counter.x};
    key.x += 0x9E3779B9u;
    key.y += 0xBB67AE85u;
  }
  const uint32_t which = index % 4;
  const uint32_t bits = which == 0   ? counter.x
                        : which == 1 ? counter.y
                        : which == 2 ? counter.z
                                     : counter.w;
  return __fmaf_rn(static_cast<float>(bits), 0x1p-32f, 0x1p-33f);
}

// Neither flushes numbers below the normal ones.
__device__ float midpoint(float a, float b) {
  float sum, half;
  asm("add.rn.f32 %0, %1, %2;" : "=f"(sum) : "f"(a), "f"(b));
  asm("mul.rn.f32 %0, %1, %2;" : "=f"(half) : "f"(sum), "f"(0.5f));
  return half;
}

// Adds up 32 values over the lanes, neighbours first. Lane i gets the sum of the value whose number
// has the bits of i in reverse.
template <int count = 16>
__device__ float sum_each(float (&values)[32]) {
  constexpr int kDistance = 16 / count;
  const bool is_upper = threadIdx.x & kDistance;
#pragma unroll
  for (int i = 0; i < count; ++i) {
    const float own = is_upper ? values[i + count] : values[i];
    const float other = is_upper ? values[i] : values[i + count];
    values[i] = own + __shfl_xor_sync(kEveryLane, other, kDistance);
  }
  if constexpr (count > 1) return sum_each<count / 2>(values);
  return values[0];
}

template <class T>
__device__ T sum_over_lanes(T value) {
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    value += __shfl_xor_sync(kEveryLane, value, distance);
  }
  return value;
}

// The sum of the lanes before this one: up a tree of neighbours, and down again.
__device__ float sum_before(float value) {
  const int place = threadIdx.x % 32 + 1;
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const float other = __shfl_up_sync(kEveryLane, value, distance);
    if (place % (distance * 2) == 0) value += other;
  }
  if (place == 32) value = 0;
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    const float other = __shfl_xor_sync(kEveryLane, value, distance);
    if (place % (distance * 2) == 0) {
      value = other + value;
    } else if (place % (distance * 2) == distance) {
      value = other;
    }
  }
  return value;
}

// A row of probabilities that a cluster holds.
template <Filter filter>
struct Row {
  int width;
  int chunks;
  uint32_t rank;  // of the block in its cluster
  float* sums;    // of chunks by warps: of four added in pairs, then of four added one by one
  float4* own;    // this thread's part of each chunk

  __device__ Row(int width) : width(width), chunks((width + kChunk - 1) / kChunk) {
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    sums = reinterpret_cast<float*>(shared_memory + sizeof(Exchange));
    own = reinterpret_cast<float4*>(sums + 2 * kWarps * chunks) + threadIdx.x;
  }

  __device__ int lane() const { return threadIdx.x % 32; }
  __device__ int warp() const { return static_cast<int>(rank) * kOwnWarps + threadIdx.x / 32; }
  __device__ int first_of(int chunk) const {
    return chunk * kChunk + (static_cast<int>(rank) * kThreads + static_cast<int>(threadIdx.x)) * 4;
  }

  __device__ void load(const float* row) {
    for (int chunk = 0; chunk < chunks; ++chunk) {
      float4* const to = own + chunk * kThreads;
      const int first = first_of(chunk);
      if (first < width) {
        copy_16_bytes(shared_address(to), row + first);
      } else {
        *to = float4{};
      }
    }
    asm volatile("cp.async.wait_all;" ::: "memory");
  }

  // Whether a token is still to be chosen from, where tokens up to `limit` are not.
  static __device__ bool is_kept(float probability, float limit) {
    return filter == Filter::kMinP ? probability >= limit : probability > limit;
  }

  __device__ void send_chunk_sums(float limit) {
    for (int first = 0; first < chunks; first += 32) {
      float by_pairs[32], one_by_one[32];
#pragma unroll
      for (int i = 0; i < 32; ++i) {
        float4 part{};
        if (first + i < chunks) part = own[(first + i) * kThreads];
        part.x = is_kept(part.x, limit) ? part.x : 0;
        part.y = is_kept(part.y, limit) ? part.y : 0;
        part.z = is_kept(part.z, limit) ? part.z : 0;
        part.w = is_kept(part.w, limit) ? part.w : 0;
        by_pairs[i] = (part.x + part.y) + (part.z + part.w);
        one_by_one[i] = part.x + part.y + part.z + part.w;
      }
      send_sums(first, by_pairs, one_by_one);
    }
  }

  // Sends both sums of each of the 32 chunks from `first` on to all blocks.
  __device__ void send_sums(int first, float (&of_threads)[32], float (&others)[32]) {
    const int chunk = first + static_cast<int>(__brev(lane()) >> 27);
    const float sum = sum_each(of_threads), other = sum_each(others);
    if (chunk >= chunks) return;
#pragma unroll
    for (uint32_t block = 0; block < kBlocks; ++block) {
      const uint32_t to = address_in(sums + warp() * chunks + chunk, block);
      asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(to), "f"(sum) : "memory");
      asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(to + kWarps * chunks * 4), "f"(other)
                   : "memory");
    }
  }

  // Adds up all chunks, of which `warps` has the sum of each warp.
  __device__ float sum_of_chunks(const float* warps) const {
    float sum = 0;
    for (int first = 0; first < chunks; first += 32) {
      const int chunk = first + lane();
      float own_sum = 0;
      if (chunk < chunks) {
        own_sum = warps[chunk];
#pragma unroll
        for (int i = 1; i < kWarps; ++i) own_sum += warps[i * chunks + chunk];
      }
      const int count = min(32, chunks - first);
      for (int i = 0; i < count; ++i) sum += __shfl_sync(kEveryLane, own_sum, i);
    }
    return sum;
  }

  // The first chunk with which the sum of the chunks is above `aim`, and the sum before it. Returns
  // false if there is none.
  __device__ bool find_chunk(float aim, int* found, float* before) const {
    float sum = 0;
    for (int first = 0; first < chunks; first += 32) {
      const int chunk = first + lane();
      float own_sum = 0;
      if (chunk < chunks) {
        own_sum = sums[chunk];
#pragma unroll
        for (int i = 1; i < kWarps; ++i) own_sum += sums[i * chunks + chunk];
      }
      const int count = min(32, chunks - first);
#pragma unroll
      for (int i = 0; i < 32; ++i) {
        const float with = sum + __shfl_sync(kEveryLane, own_sum, i);
        if (i < count && with > aim) {
          *found = first + i;
          *before = sum;
          return true;
        }
        sum = with;
      }
    }
    return false;
  }

  // Sends the first token of the chunk with which the sum is above `aim`.
  __device__ void send_token(float limit, float aim, int chunk, float before) const {
    const float before_warps = sum_before(sums[(kWarps + lane()) * chunks + chunk]);
    const float4 part = own[chunk * kThreads];
    const float values[4] = {part.x, part.y, part.z, part.w};
    float up_to[4], sum = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) up_to[i] = sum += is_kept(values[i], limit) ? values[i] : 0;
    const float before_own = __shfl_sync(kEveryLane, before_warps, warp()) + sum_before(sum);
    int token = kNone;
    float probability = 0;
#pragma unroll
    for (int i = 3; i >= 0; --i) {
      if (before_own + up_to[i] + before > aim && is_kept(values[i], limit) &&
          first_of(chunk) + i < width) {
        token = first_of(chunk) + i;
        probability = values[i];
      }
    }
    send_found(token, probability, __reduce_min_sync(kEveryLane, token));
  }

  __device__ void send_found(int token, float probability, int chosen) const {
    const uint32_t who = __ballot_sync(kEveryLane, token == chosen);
    probability = __shfl_sync(kEveryLane, probability, __ffs(who) - 1);
    send(exchange().found + warp(), {chosen, __float_as_int(probability), 0, 0});
  }

  // Sends the last token that is kept in the chunks up to `last`; -1: none.
  __device__ void send_last(float limit, int last) const {
    int token = -1;
    float probability = 0;
    for (int chunk = 0; chunk <= last; ++chunk) {
      const float4 part = own[chunk * kThreads];
      const float values[4] = {part.x, part.y, part.z, part.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (!is_kept(values[i], limit) || first_of(chunk) + i >= width) continue;
        token = first_of(chunk) + i;
        probability = values[i];
      }
    }
    send_found(token, probability, __reduce_max_sync(kEveryLane, token));
  }

  // Draws a token of those that `limit` keeps. Returns -1 if there are none.
  __device__ int draw(float limit, float aim, float* probability) {
    send_chunk_sums(limit);
    synchronize_cluster();
    int chunk = chunks - 1;
    float before = 0;
    if (find_chunk(aim, &chunk, &before)) {
      send_token(limit, aim, chunk, before);
    } else {
      send_found(kNone, 0, kNone);
    }
    synchronize_cluster();
    const int2 found = *reinterpret_cast<const int2*>(exchange().found + lane());
    int token = __reduce_min_sync(kEveryLane, found.x);
    uint32_t who = __ballot_sync(kEveryLane, found.x == token);
    int bits = found.y;
    if (token == kNone) {     // the sums were rounded down
      synchronize_cluster();  // all blocks have read
      send_last(limit, chunk);
      synchronize_cluster();
      const int2 last = *reinterpret_cast<const int2*>(exchange().found + lane());
      token = __reduce_max_sync(kEveryLane, last.x);
      who = __ballot_sync(kEveryLane, last.x == token);
      bits = last.y;
    }
    *probability = __int_as_float(__shfl_sync(kEveryLane, bits, __ffs(who) - 1));
    return token;
  }

  struct Above {
    float sum;
    int count;
  };

  // Sums and numbers of the tokens above two limits, or from `low` on for min_p.
  __device__ void add_up(float low, float high, Above* above_low, Above* above_high) const {
    float sum_low = 0, sum_high = 0;
    int count_low = 0, count_high = 0;
#pragma unroll 4
    for (int chunk = 0; chunk < chunks; ++chunk) {
      const float4 part = own[chunk * kThreads];
      const float values[4] = {part.x, part.y, part.z, part.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (is_kept(values[i], low)) sum_low += values[i], ++count_low;
        if (is_kept(values[i], high)) sum_high += values[i], ++count_high;
      }
    }
    send(reinterpret_cast<const int4*>(exchange().above + warp()),
         {__float_as_int(sum_over_lanes(sum_low)), __float_as_int(sum_over_lanes(sum_high)),
          sum_over_lanes(count_low), sum_over_lanes(count_high)});
    synchronize_cluster();
    // Lanes 0 and 1 add up the sums, 2 and 3 the numbers.
    const float* const values = &exchange().above[0].x + lane() % 4;
    float sum = values[0];
    int count = __float_as_int(sum);
#pragma unroll
    for (int i = 1; i < kWarps; ++i) {
      sum += values[4 * i];
      count += __float_as_int(values[4 * i]);
    }
    *above_low = {__shfl_sync(kEveryLane, sum, 0), __shfl_sync(kEveryLane, count, 2)};
    *above_high = {__shfl_sync(kEveryLane, sum, 1), __shfl_sync(kEveryLane, count, 3)};
  }

  // Adds up a thread's values as CUB does: plain floats in pairs, values with a count one by one.
  static __device__ float sum_of_four(const float (&values)[4]) {
    if (filter == Filter::kTopP) return (values[0] + values[1]) + (values[2] + values[3]);
    return values[0] + values[1] + values[2] + values[3];
  }

  // The same, chunk by chunk. The sums of the two limits take the memory of those that draw() uses.
  __device__ void add_up_by_chunks(float low, float high, Above* above_low, Above* above_high) {
    int count_low = 0, count_high = 0;
    for (int first = 0; first < chunks; first += 32) {
      float sums_low[32], sums_high[32];
#pragma unroll
      for (int i = 0; i < 32; ++i) {
        float4 part{};
        if (first + i < chunks) part = own[(first + i) * kThreads];
        const float values[4] = {part.x, part.y, part.z, part.w};
        float kept_low[4] = {}, kept_high[4] = {};
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          if (is_kept(values[j], low)) kept_low[j] = values[j], ++count_low;
          if (is_kept(values[j], high)) kept_high[j] = values[j], ++count_high;
        }
        sums_low[i] = sum_of_four(kept_low);
        sums_high[i] = sum_of_four(kept_high);
      }
      send_sums(first, sums_low, sums_high);
    }
    send(reinterpret_cast<const int4*>(exchange().above + warp()),
         {sum_over_lanes(count_low), sum_over_lanes(count_high), 0, 0});
    synchronize_cluster();
    const int2 counts = *reinterpret_cast<const int2*>(exchange().above + lane());
    *above_low = {sum_of_chunks(sums), sum_over_lanes(counts.x)};
    *above_high = {sum_of_chunks(sums + kWarps * chunks), sum_over_lanes(counts.y)};
    synchronize_cluster();  // all blocks have read
  }

  // The sum of what min_p keeps, chunk by chunk.
  __device__ float sum_of_kept(float limit) {
    send_chunk_sums(limit);
    synchronize_cluster();
    const float sum = sum_of_chunks(sums);
    synchronize_cluster();  // all blocks have read
    return sum;
  }

  __device__ float greatest() const {
    float most = 0;
    for (int chunk = 0; chunk < chunks; ++chunk) {
      const float4 part = own[chunk * kThreads];
      most = fmaxf(fmaxf(fmaxf(most, part.x), fmaxf(part.y, part.z)), part.w);
    }
    // None is negative, so that their bits have the same order.
    send_found(0, __uint_as_float(__reduce_max_sync(kEveryLane, __float_as_uint(most))), 0);
    synchronize_cluster();
    return __int_as_float(__reduce_max_sync(kEveryLane, exchange().found[lane()].y));
  }
};

// The greatest float that is no greater: no float lies between the two.
__device__ float rounded_down(float value) { return value; }
__device__ float rounded_down(double value) { return __double2float_rd(value); }

__device__ double midpoint(float a, double b) { return (static_cast<double>(a) + b) / 2; }

template <Filter filter, Form form = Form::kOfRows>
__device__ void sample(const float* probs, int* samples, bool* valid, const Limits& limits,
                       const Random& random, uint32_t width, int next_may_begin) {
  let_next_begin(next_may_begin);
  wait_for_kernel_before();
  using ThisRow = Row<filter>;
  ThisRow row(static_cast<int>(width));
  const uint32_t number = blockIdx.x / kBlocks;
  arrive_at_cluster();
  row.load(probs + static_cast<size_t>(number) * width);
  const uint64_t seed = random.seeds ? random.seeds[number * random.seed_stride] : random.seed;
  const uint64_t offset =
      random.offsets ? random.offsets[number * random.offset_stride] : random.offset;
  constexpr bool has_k = filter == Filter::kTopK || filter == Filter::kTopKTopP;
  constexpr bool has_p = filter == Filter::kTopP || filter == Filter::kTopKTopP;
  constexpr bool is_one = form == Form::kOneLimit, is_by_chunks = form == Form::kTokens;
  const uint32_t k =
      !has_k ? 0 : static_cast<uint32_t>(is_one ? limits.top_k_of_all : limits.top_k[number]);
  const float p = !has_p && filter != Filter::kMinP ? 0
                  : is_one                          ? limits.p_of_all
                                                    : limits.p[number];
  wait_for_cluster();  // all blocks have begun

  using Pivot = std::conditional_t<is_by_chunks, double, float>;
  Pivot low = 0, high = 1;
  float rest = 1, probability;
  typename ThisRow::Above above, above_middle;
  int token;
  if constexpr (filter == Filter::kMinP) {
    const float least = row.greatest() * p;
    low = least;
    if constexpr (is_by_chunks) {
      rest = row.sum_of_kept(least);
    } else {
      row.add_up(least, least, &above, &above_middle);
      rest = above.sum;
    }
  }
  for (uint32_t round = 0;; ++round) {
    token = row.draw(rounded_down(low), uniform(seed, number, offset + round) * rest, &probability);
    if (token < 0 || !(has_k || has_p)) break;
    const Pivot middle = midpoint(probability, high);
    if constexpr (is_by_chunks) {
      row.add_up_by_chunks(probability, rounded_down(middle), &above, &above_middle);
    } else {
      row.add_up(probability, middle, &above, &above_middle);
    }
    const auto is_enough = [&](const typename ThisRow::Above& some) {
      return (!has_k || static_cast<uint32_t>(some.count) < k) && (!has_p || some.sum < p);
    };
    if (is_enough(above)) break;
    if (is_enough(above_middle)) {
      low = probability;
      high = middle;
      rest = above.sum;
    } else {
      low = middle;
      rest = above_middle.sum;
    }
    if (!(low < high)) break;
  }
  if (row.rank == 0 && threadIdx.x == 0) {
    samples[number] = max(token, 0);
    if (form != Form::kTokens) valid[number] = token >= 0;
  }
}

}  // namespace
}  // namespace fibshim

#define FIBSHIM_RANDOM                                                            \
  const uint64_t *seeds, uint64_t seed, const uint64_t *offsets, uint64_t offset, \
      uint32_t seed_stride, uint32_t offset_stride, uint32_t vocab_size, int next_may_begin

#define FIBSHIM_SAMPLE(filter, top_k, p)    \
  fibshim::sample<fibshim::Filter::filter>( \
      probs, samples, valid, {top_k, p},    \
      {seeds, seed, offsets, offset, seed_stride, offset_stride}, vocab_size, next_may_begin)

#define FIBSHIM_SAMPLE_ONE(filter, top_k, p)                          \
  fibshim::sample<fibshim::Filter::filter, fibshim::Form::kOneLimit>( \
      probs, samples, valid, {nullptr, nullptr, top_k, p},            \
      {seeds, seed, offsets, offset, seed_stride, offset_stride}, vocab_size, next_may_begin)

#define FIBSHIM_TOKENS(filter, top_k, p)                                                       \
  fibshim::sample<fibshim::Filter::filter, fibshim::Form::kTokens>(                            \
      probs, samples, nullptr, {top_k, p}, {nullptr, seed, nullptr, offset, 0, 0}, vocab_size, \
      next_may_begin)

extern "C" {

__global__ __launch_bounds__(128, 3) void sampling_from_probs(const float* probs, int* samples,
                                                              bool* valid, FIBSHIM_RANDOM) {
  FIBSHIM_SAMPLE(kNone, nullptr, nullptr);
}

__global__ __launch_bounds__(128, 3) void top_k_sampling(const float* probs, int* samples,
                                                         bool* valid, const int* top_k,
                                                         FIBSHIM_RANDOM) {
  FIBSHIM_SAMPLE(kTopK, top_k, nullptr);
}

__global__ __launch_bounds__(128, 3) void top_p_sampling(const float* probs, int* samples,
                                                         bool* valid, const float* top_p,
                                                         FIBSHIM_RANDOM) {
  FIBSHIM_SAMPLE(kTopP, nullptr, top_p);
}

__global__ __launch_bounds__(128, 3) void top_k_top_p_sampling(const float* probs, int* samples,
                                                               bool* valid, const int* top_k,
                                                               const float* top_p, FIBSHIM_RANDOM) {
  FIBSHIM_SAMPLE(kTopKTopP, top_k, top_p);
}

__global__ __launch_bounds__(128, 3) void min_p_sampling(const float* probs, int* samples,
                                                         bool* valid, const float* min_p,
                                                         FIBSHIM_RANDOM) {
  FIBSHIM_SAMPLE(kMinP, nullptr, min_p);
}

__global__ __launch_bounds__(128, 3) void top_k_sampling_one_limit(const float* probs, int* samples,
                                                                   bool* valid, int top_k,
                                                                   FIBSHIM_RANDOM) {
  FIBSHIM_SAMPLE_ONE(kTopK, top_k, 0);
}

__global__ __launch_bounds__(128, 3) void top_p_sampling_one_limit(const float* probs, int* samples,
                                                                   bool* valid, float top_p,
                                                                   FIBSHIM_RANDOM) {
  FIBSHIM_SAMPLE_ONE(kTopP, 0, top_p);
}

__global__ __launch_bounds__(128, 3) void top_k_top_p_sampling_one_limit(const float* probs,
                                                                         int* samples, bool* valid,
                                                                         int top_k, float top_p,
                                                                         FIBSHIM_RANDOM) {
  FIBSHIM_SAMPLE_ONE(kTopKTopP, top_k, top_p);
}

__global__ __launch_bounds__(128, 3) void min_p_sampling_one_limit(const float* probs, int* samples,
                                                                   bool* valid, float min_p,
                                                                   FIBSHIM_RANDOM) {
  FIBSHIM_SAMPLE_ONE(kMinP, 0, min_p);
}

__global__ __launch_bounds__(128, 3) void sampling_from_probs_tokens(const float* probs,
                                                                     int* samples, uint64_t seed,
                                                                     uint64_t offset,
                                                                     uint32_t vocab_size,
                                                                     int next_may_begin) {
  FIBSHIM_TOKENS(kNone, nullptr, nullptr);
}

__global__ __launch_bounds__(128, 3) void top_k_sampling_tokens(const float* probs, int* samples,
                                                                const int* top_k, uint64_t seed,
                                                                uint64_t offset,
                                                                uint32_t vocab_size,
                                                                int next_may_begin) {
  FIBSHIM_TOKENS(kTopK, top_k, nullptr);
}

__global__ __launch_bounds__(128, 3) void top_p_sampling_tokens(const float* probs, int* samples,
                                                                const float* top_p, uint64_t seed,
                                                                uint64_t offset,
                                                                uint32_t vocab_size,
                                                                int next_may_begin) {
  FIBSHIM_TOKENS(kTopP, nullptr, top_p);
}

__global__ __launch_bounds__(128, 3) void top_k_top_p_sampling_tokens(
    const float* probs, int* samples, const int* top_k, const float* top_p, uint64_t seed,
    uint64_t offset, uint32_t vocab_size, int next_may_begin) {
  FIBSHIM_TOKENS(kTopKTopP, top_k, top_p);
}

__global__ __launch_bounds__(128, 3) void min_p_sampling_tokens(const float* probs, int* samples,
                                                                const float* min_p, uint64_t seed,
                                                                uint64_t offset,
                                                                uint32_t vocab_size,
                                                                int next_may_begin) {
  FIBSHIM_TOKENS(kMinP, nullptr, min_p);
}
}
