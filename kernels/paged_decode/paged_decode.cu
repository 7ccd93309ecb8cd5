// Attention of one query token per sequence over a paged cache of keys and values: GQA with at most
// eight query heads per KV head, in bfloat16 or fp16. It replaces FlashAttention 3's forward kernel
// and keeps its contract.
//
//   paged_decode_d128_w6_bf16        heads of 128, six warps per block
//   paged_decode_d128_w4_bf16        four warps, for a few more blocks than the SMs have room for
//   paged_decode_d128_w6_pair_bf16   clusters of two blocks, for long sequences
//   paged_decode_d64_w6_bf16, paged_decode_d64_w6_pair_bf16   heads of 64
//   paged_decode_d128_w6_token_bf16, ..._w4_token, ..._w6_pair_token   pages of one token
//   paged_decode_d64_w6_sink_bf16    with sinks
//   paged_decode_d64_w6_window_bf16, paged_decode_d128_w6_window_bf16   a window, maybe with sinks
//
// planned_decode_d128_bf16 and planned_decode_d64_bf16 replace FlashInfer's decode kernel and
// follow its plan. Each has a twin in fp16, such as planned_decode_d64_fp16.
//
// A block works on one (sequence, KV head, part of the tokens) at a time. The inputs that determine
// the work are in device memory, where a replayed graph finds new values: lengths, first rows of Q,
// and the number of parts of each sequence. For a sequence in one part the block writes output and
// lse; otherwise it writes partial_output and partial_lse, which decode_combine or FlashAttention's
// combine kernel merges. FlashAttention may have sorted the sequences: then order[i] is the sequence
// to which query_lengths[i] and split_counts[i] belong. In clusters, the two blocks share parts that
// are much longer than the rest, and long parts come first; otherwise the longest part would
// determine the time of the launch.
//
// gridDim.x is the number of KV heads. gridDim.y may be any multiple of the cluster's size. Best is
// the number of all parts, or the number of blocks that fit on the GPU at once, if that is enough
// for all sequences.
//
// A warp processes 16 tokens at a time. Their keys and values go from global memory straight into
// the registers of tensor core instructions. With pages of one token, the warp meanwhile reads the
// next tile's part of the page table: 4 bytes for 256 or 512 of a KV head. The order of the columns
// that a product sums over does not matter, so a lane loads 16 adjacent bytes of a row for two
// instructions, each of which needs two pairs of elements. All loads of a tile are in flight at once, and twelve warps per SM cover
// their latency. Variants with fewer registers, or that load ahead, were slower (H200).
//
// Its solutions have no `pdl`: a block that begins before the kernel before it has ended finds few
// SMs free, shares an SM while another one stays empty, and has less L1 for its loads, since an SM
// keeps the split of L1 and shared memory that a matrix product before it asked for.
#include "product.cuh"

namespace fibshim {
namespace {

constexpr int kTile = 16;           // tokens, all in one page
constexpr int kHeads = 8;           // query heads that share a KV head, at most
constexpr int kMaxSequences = 256;  // further ones are ignored
constexpr int kCluster = 2;         // blocks
constexpr int kBlocks = 256;        // about as many as an H200 has room for

// In clusters: the fewest tokens for which a part is moved to the front, since the block that gets
// it guesses wrong, and the fewest for which two blocks share a part, since they wait for each
// other.
constexpr uint32_t kFewestFirst = 512;
constexpr uint32_t kFewestShared = 768;

template <class T>
struct Call {
  const T* q;  // [rows, kv_heads * group, kHeadDim]
  const T* k;  // by page, token and head
  const T* v;
  const int* page_table;     // [batch_size, max_pages]
  const int* lengths;        // [batch_size] tokens of K and V
  const int* first_rows;     // [batch_size + 1] of Q
  const int* query_lengths;  // [batch_size] 0: nothing to do
  const int* split_counts;   // [batch_size]; null: 1
  const int* order;          // [batch_size]; null: the sequences in their own order
  T* output;                 // as q
  float* lse;                // [kv_heads * group, rows], natural logarithms
  float* partial_output;     // [parts, kv_heads * group, rows, kHeadDim]
  float* partial_lse;        // [parts, kv_heads * group, rows]
  int64_t q_stride, output_stride, page_stride, token_stride, head_stride, table_stride;
  float scale_log2;
  int batch_size, rows, kv_heads, group, page_size, max_pages;
};

// The sequence at a place of query_lengths and split_counts.
template <bool kIsSorted, class T>
__device__ int sequence_at(const Call<T>& call, int place) {
  return kIsSorted ? call.order[place] : place;
}

struct Work {
  int place;  // of its sequence
  uint32_t part, parts;
};

__device__ inline float exp2_approximately(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Finds part number `index`. A lane has every 32nd place, and its i-th has `count_of(i)` parts.
// Returns false if there are not so many parts.
template <class Count>
__device__ bool find_part(int index, int lane, Work* work, const Count& count_of) {
#pragma unroll
  for (int i = 0; i < kMaxSequences / 32; ++i) {
    const int count = count_of(i);
    int end = count;  // the sum of the counts up to this lane's
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
      const int before = __shfl_up_sync(~0u, end, distance);
      if (lane >= distance) end += before;
    }
    const uint32_t beyond = __ballot_sync(~0u, end > index);
    if (beyond != 0) {
      const int found = __ffs(beyond) - 1;
      work->place = i * 32 + found;
      work->parts = __shfl_sync(~0u, count, found);
      work->part = index - (__shfl_sync(~0u, end, found) - work->parts);
      return true;
    }
    index -= __shfl_sync(~0u, end, 31);
  }
  return false;
}

// The order of the work: one part of a sequence after the other. Sequences in several parts come
// first, since theirs are the longest. If every sequence is in one part, and as a guess before the
// counts are known, work i is that of place i.
class Schedule {
 public:
  __device__ Schedule(const int* split_counts, int batch_size, int lane)
      : batch_size_(batch_size), lane_(lane) {
#pragma unroll
    for (int i = 0; i < kMaxSequences / 32; ++i) {
      const int place = i * 32 + lane;
      parts_[i] = 0;
      if (place < batch_size) {
        parts_[i] = split_counts == nullptr ? 1 : max(split_counts[place], 1);
      }
    }
  }

  // Waits for the counts. Returns the number of all parts.
  __device__ int count() {
    int all = 0, of_several = 0;
#pragma unroll
    for (int parts : parts_) {
      all += parts;
      of_several += parts > 1 ? parts : 0;
    }
    parts_of_several_ = __reduce_add_sync(~0u, of_several);
    return __reduce_add_sync(~0u, all);
  }

  __device__ bool find(int index, Work* work) const {
    if (parts_of_several_ == 0) {
      *work = {index, 0, 1};
      return index < batch_size_;
    }
    const bool is_of_several = index < parts_of_several_;
    if (!is_of_several) index -= parts_of_several_;
    return find_part(index, lane_, work,
                     [&](int i) { return (parts_[i] > 1) == is_of_several ? parts_[i] : 0; });
  }

 private:
  int batch_size_, lane_;
  int parts_[kMaxSequences / 32];  // of every 32nd place
  int parts_of_several_ = 0;
};

// The order of the work in clusters. First come the parts that are much longer than the rest, which
// the two blocks of a cluster share; then one part of a sequence after the other for each block,
// the longer ones first. As a guess before the counts are known, work i is that of place i.
template <bool kIsSorted>
class PairSchedule {
 public:
  template <class T>
  __device__ PairSchedule(const Call<T>& call, int lane)
      : batch_size_(call.batch_size), lane_(lane) {
#pragma unroll
    for (int i = 0; i < kMaxSequences / 32; ++i) {
      const int place = i * 32 + lane;
      parts_[i] = 0;
      tokens_[i] = 0;
      if (place < batch_size_) {
        parts_[i] = call.split_counts == nullptr ? 1 : max(call.split_counts[place], 1);
        tokens_[i] = static_cast<uint32_t>(call.lengths[sequence_at<kIsSorted>(call, place)]);
      }
    }
  }

  // Waits for the counts. `blocks`: the number of blocks of the launch.
  __device__ void count(int kv_heads, int blocks) {
    uint32_t tokens = 0, parts = 0;
#pragma unroll
    for (int i = 0; i < kMaxSequences / 32; ++i) {
      tokens += tokens_[i];
      parts += parts_[i];
    }
    all_ = static_cast<int>(__reduce_add_sync(~0u, parts));
    if (!__any_sync(~0u, find_longer(kFewestFirst) != 0)) return;
    // The tokens of a block if all blocks had equally many.
    const uint32_t mean = __reduce_add_sync(~0u, tokens) * static_cast<uint32_t>(kv_heads) /
                          static_cast<uint32_t>(min(blocks, kBlocks));
    const uint32_t longest = find_longer(max(mean / 4 * 5, kFewestShared));
    const int works = all_ * kv_heads;
    const int rounds = (works + kBlocks - 1) / kBlocks;
    // Sharing gains nothing if all parts are alike and the rounds leave few blocks idle.
    if (__any_sync(~0u, longest != 0) || works * 6 < rounds * kBlocks * 5) {
      is_shared_ = find_longer(max(mean / 2, kFewestShared));
      is_first_ = longest;
    }
    is_long_ = find_longer(max(mean / 2, kFewestFirst));
    shared_ = count_parts(is_shared_);
    first_ = count_parts(is_first_);
    long_ = count_parts(is_long_ & ~is_shared_);
  }

  __device__ int shared() const { return shared_; }
  // The number of items: an item is a shared part, or one part for each block of a cluster.
  __device__ int items() const { return shared_ + (all_ - shared_ + kCluster - 1) / kCluster; }

  // Finds number `index` of the shared parts, or of the others.
  __device__ bool find(bool is_shared, int index, Work* work) const {
    // All sequences are alike, so number i is that of place i.
    if (shared_ == 0 && all_ == batch_size_ && (long_ == 0 || long_ == all_)) {
      *work = {index, 0, 1};
      return index < batch_size_;
    }
    const bool is_first = index < (is_shared ? first_ : long_);
    if (!is_first) index -= is_shared ? first_ : long_;
    uint32_t searched = is_shared ? is_first_ : is_long_;
    if (!is_first) searched = ~searched;
    searched &= is_shared ? is_shared_ : ~is_shared_;
    return find_part(index, lane_, work,
                     [&](int i) { return (searched >> i & 1) != 0 ? parts_[i] : 0; });
  }

 private:
  // Returns a bit for each of this lane's sequences, set if each of its parts has more than
  // `tokens` tokens.
  __device__ uint32_t find_longer(uint32_t tokens) const {
    uint32_t found = 0;
#pragma unroll
    for (int i = 0; i < kMaxSequences / 32; ++i) {
      if (tokens_[i] > tokens * parts_[i]) found |= 1u << i;
    }
    return found;
  }

  __device__ int count_parts(uint32_t of) const {
    uint32_t count = 0;
#pragma unroll
    for (int i = 0; i < kMaxSequences / 32; ++i) count += (of >> i & 1) != 0 ? parts_[i] : 0;
    return static_cast<int>(__reduce_add_sync(~0u, count));
  }

  int batch_size_, lane_;
  uint32_t parts_[kMaxSequences / 32];  // of every 32nd place
  uint32_t tokens_[kMaxSequences / 32];
  uint32_t is_shared_ = 0, is_first_ = 0, is_long_ = 0;  // is_first_ is among is_shared_
  int shared_ = 0, first_ = 0, long_ = 0, all_ = 0;
};

// The sums of each warp; in a cluster, followed by those of the other block.
template <int kHeadDim, int kCount>
struct Shared {
  float sums[kCount][kHeads][kHeadDim + 4];  // padded: rows begin in different banks
  float largest[kCount][kHeads];
  float weights[kCount][kHeads];
};

// A warp's sums over the tokens so far. Lane 4 * g + quad has the largest score and the weights of
// head g, and for heads 2 * quad and 2 * quad + 1 the output elements that store_sums() stores.
template <int kHeadDim>
struct Sums {
  static constexpr int kTiles = kHeadDim / 16;
  float output[kTiles][4] = {};
  float largest = -INFINITY;
  float weights = 0;  // of this lane's tokens only
};

template <class T, int kHeadDim>
class Tokens {
 public:
  static constexpr int kKeyParts = kHeadDim / 32;
  static constexpr int kValueParts = kHeadDim / 64;

  __device__ Tokens(const Call<T>& call, int head, int lane) : call_(call), lane_(lane) {
    const int64_t at = head * call.head_stride;
    k_ = call.k + at + lane % 4 * 8;
    v_ = call.v + at + lane / 4 * 8;
  }

  __device__ void load_query(int row, int head) {
    const T* const at = call_.q + row * call_.q_stride +
                        (head * call_.group + lane_ / 4) * kHeadDim + lane_ % 4 * 8;
#pragma unroll
    for (int part = 0; part < kKeyParts; ++part) {
      query_[part] = {};
      if (lane_ / 4 < call_.group) query_[part] = load_shared_by_rows(at + part * 32);
    }
  }

  // `rows(cache, token)` returns the address of a token of the tile.
  template <class Rows>
  __device__ void load_keys(const Rows& rows) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const T* const row = rows(k_, half * 8 + lane_ / 4);
#pragma unroll
      for (int part = 0; part < kKeyParts; ++part) keys_[half][part] = load_once(row + part * 32);
    }
  }

  template <class Rows>
  __device__ void load_values(const Rows& rows) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const T* const row = rows(v_, i / 2 * 8 + lane_ % 4 * 2 + i % 2);
#pragma unroll
      for (int part = 0; part < kValueParts; ++part) {
        values_[i][part] = load_once(row + part * 64);
      }
    }
  }

  // Computes scores[half] [8 heads, 8 tokens] = Q * K^T. Rows 8 to 15 of the instruction are zero.
  __device__ void score(float (&scores)[2][2]) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float sums[2][4] = {};  // two, since an instruction waits for the one before on its sums
#pragma unroll
      for (int part = 0; part < kKeyParts; ++part) {
        const Vector& q = query_[part];
        const Vector& key = keys_[half][part];
        multiply_pairs<T>(sums[0], q.pairs[0], 0, q.pairs[1], 0, key.pairs[0], key.pairs[1]);
        multiply_pairs<T>(sums[1], q.pairs[2], 0, q.pairs[3], 0, key.pairs[2], key.pairs[3]);
      }
      scores[half][0] = sums[0][0] + sums[1][0];
      scores[half][1] = sums[0][1] + sums[1][1];
    }
  }

  // Computes sums->output += V^T * P^T.
  __device__ void add(const uint32_t (&weights)[2], Sums<kHeadDim>* sums) const {
#pragma unroll
    for (int tile = 0; tile < Sums<kHeadDim>::kTiles; ++tile) {
      // Element g * 8 + tile of each 64; for heads of 64, g * 8 + tile and g * 8 + 4 + tile.
      const int low = tile, high = kValueParts == 2 ? tile : tile + 4;
      multiply_pairs<T>(sums->output[tile], pair(0, 0, low), pair(0, kValueParts - 1, high),
                        pair(2, 0, low), pair(2, kValueParts - 1, high), weights[0], weights[1]);
    }
  }

 private:
  // Returns one element of two adjacent tokens.
  __device__ uint32_t pair(int i, int part, int element) const {
    return __byte_perm(values_[i][part].pairs[element / 2], values_[i + 1][part].pairs[element / 2],
                       element % 2 == 0 ? 0x5410 : 0x7632);
  }

  const Call<T>& call_;
  const int lane_;
  const T* k_;
  const T* v_;
  Vector query_[kKeyParts];
  Vector keys_[2][kKeyParts];
  Vector values_[4][kValueParts];
};

// Computes the softmax weights of a tile, and rescales the sums so far if the largest score grows.
template <int kHeadDim>
__device__ void weigh(const float (&scores)[2][2], float scale, int lane, Sums<kHeadDim>* sums,
                      float2 (&weights)[2]) {
  float largest = fmaxf(fmaxf(scores[0][0], scores[0][1]), fmaxf(scores[1][0], scores[1][1]));
  largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 1));
  largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 2));
  if (__any_sync(~0u, largest > sums->largest)) {
    largest = fmaxf(largest, sums->largest);
    const float factor = exp2_approximately((sums->largest - largest) * scale);
    sums->largest = largest;
    sums->weights *= factor;
    const float even = __shfl_sync(~0u, factor, lane % 4 * 8);
    const float odd = __shfl_sync(~0u, factor, lane % 4 * 8 + 4);
#pragma unroll
    for (int tile = 0; tile < Sums<kHeadDim>::kTiles; ++tile) {
#pragma unroll
      for (int i = 0; i < 4; ++i) sums->output[tile][i] *= i % 2 == 0 ? even : odd;
    }
  }
  const float shift = sums->largest * scale;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    weights[half] = {exp2_approximately(fmaf(scores[half][0], scale, -shift)),
                     exp2_approximately(fmaf(scores[half][1], scale, -shift))};
    sums->weights += weights[half].x + weights[half].y;
  }
}

// Adds the tokens of a tile from `begin` up to `last`. kIsExact: uses two 16-bit numbers per weight
// in place of one rounded one.
template <bool kIsExact, class T, int kHeadDim, class Rows>
__device__ void add_tile(const Rows& rows, int last, float scale, int lane,
                         Tokens<T, kHeadDim>* tokens, Sums<kHeadDim>* sums, int begin = 0) {
  tokens->load_keys(rows);
  tokens->load_values(rows);
  float scores[2][2];
  tokens->score(scores);
  if (last < kTile - 1) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (i / 2 * 8 + lane % 4 * 2 + i % 2 > last) scores[i / 2][i % 2] = -INFINITY;
    }
  }
  if (begin > 0) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (i / 2 * 8 + lane % 4 * 2 + i % 2 < begin) scores[i / 2][i % 2] = -INFINITY;
    }
  }
  float2 weights[2];
  weigh(scores, scale, lane, sums, weights);
  uint32_t rounded[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) rounded[half] = Pair<T>::pack(weights[half]);
  tokens->add(rounded, sums);
  if constexpr (kIsExact) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float2 added = Pair<T>::unpack(rounded[half]);
      rounded[half] = Pair<T>::pack({weights[half].x - added.x, weights[half].y - added.y});
    }
    tokens->add(rounded, sums);
  }
}

// The pages of a warp's tiles. One load fetches the pages of 32 tiles, one per lane.
class Pages {
 public:
  // Call::max_pages bounds the pages of a sequence until is_enough() is called.
  template <class T>
  __device__ Pages(const Call<T>& call, int sequence, int lane)
      : pages_(call.page_table + sequence * call.table_stride),
        shift_(31 - __clz(call.page_size / kTile)),
        lane_(lane),
        last_(static_cast<int>(min(int64_t{call.max_pages}, call.table_stride)) - 1) {}

  // Loads the pages of 32 tiles from `tile` on, `step` apart. May be called before the number of
  // tiles is known.
  __device__ void load(int tile, int step) {
    known_ = pages_[min((tile + lane_ * step) >> shift_, last_)];
  }
  // Returns whether the loaded pages are right for a sequence of `tiles` tiles, at least one. From
  // then on no page past its last is read.
  __device__ bool is_enough(uint32_t tiles, int) {
    const int last = static_cast<int>((tiles - 1) >> shift_);
    const bool was_enough = last <= last_;
    last_ = last;
    return was_enough;
  }

  // Returns where the tokens of the warp's tile number `turn` since the load begin in the caches.
  template <class T>
  __device__ int64_t offset(const Call<T>& call, int tile, int turn) const {
    const int page = __shfl_sync(~0u, known_, turn);
    return page * call.page_stride +
           (tile & ((1 << shift_) - 1)) * kTile * static_cast<int>(call.token_stride);
  }

 private:
  const int* pages_;
  int shift_, lane_, last_;
  int known_;
};

// The same where a page is one token: lanes i and i + 16 have the page of token i of a tile.
class TokenPages {
 public:
  template <class T>
  __device__ TokenPages(const Call<T>& call, int sequence, int lane)
      : pages_(call.page_table + sequence * call.table_stride),
        lane_(lane),
        last_(static_cast<int>(min(int64_t{call.max_pages}, call.table_stride)) - 1) {}

  __device__ void load(int tile, int) { known_ = pages_[min(tile * kTile + lane_ % kTile, last_)]; }
  __device__ bool is_enough(uint32_t, int length) {
    const bool was_enough = length - 1 <= last_;
    last_ = length - 1;
    return was_enough;
  }
  __device__ int known() const { return known_; }

 private:
  const int* pages_;
  int lane_, last_;
  int known_;
};

// Adds the warp's tiles first, first + step, ... below `end` to the sums, but no token before
// `begin`, which is in a window's first tile.
template <int kHeadDim, bool kHasWindow, class T>
__device__ void attend(const Call<T>& call, Pages& pages, int row, int kv_head, int first, int step,
                       int begin, int end, int length, int lane, Sums<kHeadDim>* sums) {
  Tokens<T, kHeadDim> tokens(call, kv_head, lane);
  tokens.load_query(row, kv_head);
  int turn = 0;
  for (int tile = first; tile < end; tile += step) {
    if (turn == 32) {
      pages.load(tile, step);
      turn = 0;
    }
    const int64_t offset = pages.offset(call, tile, turn++);
    const int last = length - 1 - tile * kTile;
    const int first_token = kHasWindow ? begin - tile * kTile : 0;
    const auto rows = [&](const T* cache, int token) {
      if constexpr (kHasWindow) token = max(token, first_token);
      return cache + offset + min(token, last) * static_cast<int>(call.token_stride);
    };
    add_tile<false>(rows, last, call.scale_log2, lane, &tokens, sums, first_token);
  }
}

// Looks up pages one tile ahead, so that keys and values need not wait for them. Has no window.
template <int kHeadDim, bool kHasWindow, class T>
__device__ void attend(const Call<T>& call, TokenPages& pages, int row, int kv_head, int first,
                       int step, int, int end, int length, int lane, Sums<kHeadDim>* sums) {
  static_assert(!kHasWindow);
  Tokens<T, kHeadDim> tokens(call, kv_head, lane);
  tokens.load_query(row, kv_head);
  for (int tile = first; tile < end; tile += step) {
    const int own = pages.known();
    pages.load(tile + step, step);
    // Behind the last token, what was loaded before the length was known may be no page.
    const int last = length - 1 - tile * kTile;
    const auto rows = [&](const T* cache, int token) {
      const int page = __shfl_sync(~0u, own, min(token, last));
      return cache + int64_t{page} * static_cast<int>(call.page_stride);
    };
    add_tile<false>(rows, last, call.scale_log2, lane, &tokens, sums);
  }
}

template <int kHeadDim, int kCount>
__device__ void store_sums(const Sums<kHeadDim>& sums, int warp, int lane, int group,
                           Shared<kHeadDim, kCount>* shared) {
  float weights = sums.weights + __shfl_xor_sync(~0u, sums.weights, 1);
  weights += __shfl_xor_sync(~0u, weights, 2);
  if (lane % 4 == 0) {
    shared->largest[warp][lane / 4] = sums.largest;
    shared->weights[warp][lane / 4] = weights;
  }
  constexpr int kVectors = Sums<kHeadDim>::kTiles / 4;  // vectors of the output, of four tiles each
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int head = lane % 4 * 2 + i % 2;
    if (head >= group) continue;
#pragma unroll
    for (int vector = 0; vector < kVectors; ++vector) {
      const int element =
          kHeadDim == 128 ? i / 2 * 64 + lane / 4 * 8 + vector * 4 : lane / 4 * 8 + i / 2 * 4;
      *reinterpret_cast<float4*>(&shared->sums[warp][head][element]) = {
          sums.output[vector * 4][i], sums.output[vector * 4 + 1][i],
          sums.output[vector * 4 + 2][i], sums.output[vector * 4 + 3][i]};
    }
  }
}

// Adds up the first kAdded sums in `shared`. Calls `write` with a head of the group, an element of
// its output, the sums of this element and the next three, the largest score and the sum of the
// weights.
template <int kWarps, int kAdded, int kHeadDim, int kCount, class Write>
__device__ void add_up(int group, float scale_log2, const Shared<kHeadDim, kCount>& shared,
                       const Write& write) {
  for (int i = threadIdx.x; i < group * kHeadDim / 4; i += kWarps * 32) {
    const int head = i / (kHeadDim / 4);
    const int element = i % (kHeadDim / 4) * 4;
    float largest = -INFINITY;
#pragma unroll
    for (int warp = 0; warp < kAdded; ++warp) largest = fmaxf(largest, shared.largest[warp][head]);
    float4 sum = {0, 0, 0, 0};
    float weights = 0;
    if (largest > -INFINITY) {
#pragma unroll
      for (int warp = 0; warp < kAdded; ++warp) {
        const float factor =
            exp2_approximately((shared.largest[warp][head] - largest) * scale_log2);
        const float4 part = *reinterpret_cast<const float4*>(&shared.sums[warp][head][element]);
        weights = fmaf(factor, shared.weights[warp][head], weights);
        sum.x = fmaf(factor, part.x, sum.x);
        sum.y = fmaf(factor, part.y, sum.y);
        sum.z = fmaf(factor, part.z, sum.z);
        sum.w = fmaf(factor, part.w, sum.w);
      }
    }
    write(head, element, sum, largest, weights);
  }
}

// The same, but `write` gets the factor for the sums, and lse.
template <int kWarps, int kAdded, int kHeadDim, int kCount, class Write>
__device__ void merge(int group, float scale_log2, const Shared<kHeadDim, kCount>& shared,
                      const Write& write) {
  add_up<kWarps, kAdded>(
      group, scale_log2, shared,
      [&](int head, int element, const float4& sum, float largest, float weights) {
        const float one = weights > 0 ? 1 / weights : 0;
        const float lse =
            weights > 0 ? largest * scale_log2 * 0.693147180559945f + logf(weights) : -INFINITY;
        write(head, element, sum, one, lse);
      });
}

// What a kernel adds to attention: nothing.
struct Plain {
  static constexpr bool kHasSinks = false, kHasWindow = false;
  __device__ void load(int, int) {}
  __device__ void store() const {}
  __device__ int first_token(int) const { return 0; }
};

// Sinks, and maybe a window. A sink is one more logit of a head, without a value.
template <bool kHasWindowToo>
struct Sinks {
  static constexpr bool kHasSinks = true, kHasWindow = kHasWindowToo;
  const __nv_bfloat16* sinks;  // [kv_heads * group]; null: none
  int window_left;             // how many tokens before the last one are attended to
  float* logits;               // [kHeads] in shared memory: those of the block's heads, to base 2
  float own = -INFINITY;       // the thread's

  __device__ void load(int kv_head, int group) {
    if (sinks != nullptr && threadIdx.x < group)
      own = __bfloat162float(sinks[kv_head * group + threadIdx.x]) * 1.44269504088896340736f;
  }
  __device__ void store() const {
    if (threadIdx.x < kHeads) logits[threadIdx.x] = own;
  }
  __device__ int first_token(int length) const {
    return kHasWindow ? max(length - 1 - window_left, 0) : 0;
  }
};

// The same with sinks, which belong to the first part of a sequence that has tokens.
template <int kWarps, int kAdded, class Extra, int kHeadDim, int kCount, class Write>
__device__ void merge(int group, float scale_log2, const Shared<kHeadDim, kCount>& shared,
                      const Extra& extra, bool has_sinks, const Write& write) {
  if constexpr (!Extra::kHasSinks) {
    merge<kWarps, kAdded>(group, scale_log2, shared, write);
  } else {
    add_up<kWarps, kAdded>(
        group, scale_log2, shared,
        [&](int head, int element, const float4& sum, float largest, float weights) {
          const float score = largest > -INFINITY ? largest * scale_log2 : -INFINITY;
          const float sink = has_sinks ? extra.logits[head] : -INFINITY;
          const float top = fmaxf(score, sink);
          if (top == -INFINITY) return write(head, element, sum, 0.0f, -INFINITY);
          const float factor = exp2_approximately(score - top);
          const float total = fmaf(weights, factor, exp2_approximately(sink - top));
          write(head, element, sum, factor / total, top * 0.693147180559945f + logf(total));
        });
  }
}

// Writes a block's sums into the first block of the cluster, which adds them up like those of one
// more warp.
template <int kHeadDim, int kCount>
__device__ void send_sums(int group, float scale_log2, const Shared<kHeadDim, kCount>& shared) {
  const auto address_there = [](const void* own) {
    uint32_t there;
    asm("mapa.shared::cluster.u32 %0, %1, 0;" : "=r"(there) : "r"(shared_address(own)));
    return there;
  };
  const auto send = [](uint32_t to, float value) {
    asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(to), "f"(value) : "memory");
  };
  const uint32_t sums = address_there(shared.sums[kCount - 1]);
  const uint32_t scores = address_there(shared.largest[kCount - 1]);
  const uint32_t all_weights = address_there(shared.weights[kCount - 1]);
  add_up<kCount - 1, kCount - 1>(
      group, scale_log2, shared,
      [&](int head, int element, const float4& sum, float largest, float weights) {
        asm volatile("st.shared::cluster.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(
                         sums + (head * (kHeadDim + 4) + element) * 4),
                     "f"(sum.x), "f"(sum.y), "f"(sum.z), "f"(sum.w)
                     : "memory");
        if (element != 0) return;
        send(scores + head * 4, largest);
        send(all_weights + head * 4, weights);
      });
}

template <class T>
__device__ uint2 pack(const float4& sum, float one) {
  return {Pair<T>::pack({sum.x * one, sum.y * one}), Pair<T>::pack({sum.z * one, sum.w * one})};
}

template <int kHeadDim, class T>
__device__ void write(const Call<T>& call, const Work& work, int row, int64_t head, int element,
                      const float4& sum, float one, float lse) {
  if (work.parts <= 1) {
    *reinterpret_cast<uint2*>(call.output + row * call.output_stride + head * kHeadDim + element) =
        pack<T>(sum, one);
    if (element == 0) call.lse[head * call.rows + row] = lse;
  } else {
    const int heads = call.kv_heads * call.group;
    const int64_t at = (int64_t{work.part} * heads + head) * call.rows + row;
    *reinterpret_cast<float4*>(call.partial_output + at * kHeadDim + element) = {
        sum.x * one, sum.y * one, sum.z * one, sum.w * one};
    if (element == 0) call.partial_lse[at] = lse;
  }
}

// The values of the sequence at a place in device memory.
template <class Pages, bool kIsSorted>
struct Sequence {
  Pages pages;
  int length, row, end_row, query_length;

  template <class T>
  __device__ Sequence(const Call<T>& call, int place, int warp, int warps, int lane)
      : Sequence(call, place, sequence_at<kIsSorted>(call, place), warp, warps, lane) {}

 private:
  template <class T>
  __device__ Sequence(const Call<T>& call, int place, int index, int warp, int warps, int lane)
      : pages(call, index, lane) {
    pages.load(warp, warps);
    length = call.lengths[index];
    row = call.first_rows[index];
    end_row = call.first_rows[index + 1];
    query_length = call.query_lengths[place];
  }
};

template <class Pages, bool kIsSorted, class Extra, class T, int kHeadDim, int kWarps>
__device__ void decode(const Call<T>& call, Extra extra, Shared<kHeadDim, kWarps>& shared) {
  using Sequence = Sequence<Pages, kIsSorted>;
  const int lane = threadIdx.x % 32;
  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);  // the compiler sees that lanes agree
  const int kv_head = blockIdx.x;
  wait_for_kernel_before();
  extra.load(kv_head, call.group);
  int index = blockIdx.y, count;
  do {
    // One round trip to memory if the guess is right that this work is that of its place.
    Schedule schedule(call.split_counts, call.batch_size, lane);
    Sequence sequence(call, min(index, call.batch_size - 1), warp, kWarps, lane);
    count = schedule.count();
    Work work;
    if (!schedule.find(index, &work)) return;
    if (work.place != index) sequence = Sequence(call, work.place, warp, kWarps, lane);
    if (sequence.query_length > 0 && sequence.end_row > sequence.row) {
      const int begin = extra.first_token(sequence.length);
      const uint32_t before = begin / kTile;  // tiles
      const uint32_t tiles = (sequence.length + kTile - 1) / kTile - before;
      const int first = static_cast<int>(before + tiles * work.part / work.parts) + warp;
      const int end = static_cast<int>(before + tiles * (work.part + 1) / work.parts);
      Sums<kHeadDim> sums;
      if (first < end) {
        if (!sequence.pages.is_enough(before + tiles, sequence.length) || work.part > 0 ||
            before > 0)
          sequence.pages.load(first, kWarps);
        attend<kHeadDim, Extra::kHasWindow>(call, sequence.pages, sequence.row, kv_head, first,
                                            kWarps, begin, end, sequence.length, lane, &sums);
      }
      store_sums(sums, warp, lane, call.group, &shared);
      extra.store();
      __syncthreads();
      merge<kWarps, kWarps>(call.group, call.scale_log2, shared, extra,
                            work.part == 0 && sequence.length > 0,
                            [&](int head, int element, const float4& sum, float one, float lse) {
                              write<kHeadDim>(call, work, sequence.row, kv_head * call.group + head,
                                              element, sum, one, lse);
                            });
      __syncthreads();  // the next work may overwrite
    }
    index += gridDim.y;
  } while (index < count);
}

template <class Pages, bool kIsSorted, class T, int kHeadDim, int kCount>
__device__ void decode_in_pairs(const Call<T>& call, Plain, Shared<kHeadDim, kCount>& shared) {
  using Sequence = Sequence<Pages, kIsSorted>;
  constexpr int kWarps = kCount - 1;
  const int lane = threadIdx.x % 32;
  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);  // the compiler sees that lanes agree
  const int kv_head = blockIdx.x;
  const int rank = blockIdx.y % kCluster;
  const int clusters = static_cast<int>(gridDim.y) / kCluster;
  wait_for_kernel_before();
  int before = 0, place = blockIdx.y / kCluster, items;
  do {
    const int item = before + place;
    // One round trip to memory if the guess is right that this work is that of its place.
    PairSchedule<kIsSorted> schedule(call, lane);
    const int guess = item * kCluster + rank;
    Sequence sequence(call, min(guess, call.batch_size - 1), warp, kWarps, lane);
    schedule.count(call.kv_heads, static_cast<int>(gridDim.x * gridDim.y));
    items = schedule.items();
    const bool is_shared = item < schedule.shared();
    const int index = is_shared ? item : (item - schedule.shared()) * kCluster + rank;
    Work work;
    if (!schedule.find(is_shared, index, &work)) return;
    const int warps = is_shared ? kWarps * kCluster : kWarps;
    const int own = is_shared ? rank * kWarps + warp : warp;
    if (work.place != guess || is_shared) {
      sequence = Sequence(call, work.place, own, warps, lane);
    }
    if (sequence.query_length > 0 && sequence.end_row > sequence.row) {
      const uint32_t tiles = (sequence.length + kTile - 1) / kTile;
      const int first = static_cast<int>(tiles * work.part / work.parts) + own;
      const int end = static_cast<int>(tiles * (work.part + 1) / work.parts);
      Sums<kHeadDim> sums;
      if (first < end) {
        if (!sequence.pages.is_enough(tiles, sequence.length) || work.part > 0)
          sequence.pages.load(first, warps);
        attend<kHeadDim, false>(call, sequence.pages, sequence.row, kv_head, first, warps, 0, end,
                                sequence.length, lane, &sums);
      }
      store_sums(sums, warp, lane, call.group, &shared);
      __syncthreads();
      const auto write_sums = [&](int head, int element, const float4& sum, float one, float lse) {
        write<kHeadDim>(call, work, sequence.row, kv_head * call.group + head, element, sum, one,
                        lse);
      };
      if (is_shared) {
        // Wait until both blocks have begun, and have read what was sent before.
        arrive_at_cluster();
        wait_for_cluster();
        if (rank != 0) send_sums(call.group, call.scale_log2, shared);
        arrive_at_cluster();
        wait_for_cluster();
        if (rank == 0) merge<kWarps, kCount>(call.group, call.scale_log2, shared, write_sums);
      } else {
        merge<kWarps, kWarps>(call.group, call.scale_log2, shared, write_sums);
      }
      __syncthreads();  // the next work may overwrite
    }
    before += clusters;
    place = clusters - 1 - place;  // the cluster with the longest item is last in the next round
  } while (before + place < items);
}

// FlashInfer's plan. A part is a chunk of a sequence's tokens, or all of them. A block has one part
// and one KV head.
template <class T>
struct Plan {
  const int* page_indices;       // of all sequences
  const int* first_pages;        // [batch_size + 1] each sequence's first entry in page_indices
  const int* last_page_lengths;  // [batch_size]
  const int* sequences;          // [parts]
  const int* chunks;             // [parts] the chunk's number in the sequence
  const int* chunk_size;         // tokens; read only if is_cut
  const bool* is_part;           // [parts] false: nothing to do; null: all are
  T* output;                     // [parts, heads, kHeadDim]
  float* lse;                    // [parts, heads], logarithms to base 2; null: not wanted
  int is_cut;
};

// The page of a token, and the token's place there.
struct Place {
  int page, slot;

  template <class T>
  __device__ Place(const Call<T>& call, const int* pages, int token)
      : page(pages[static_cast<uint32_t>(token) / static_cast<uint32_t>(call.page_size)]),
        slot(static_cast<uint32_t>(token) % static_cast<uint32_t>(call.page_size)) {}
};

template <int kHeadDim, int kWarps, class T>
__device__ void decode_planned(const Call<T>& call, const Plan<T>& plan) {
  __shared__ __align__(16) Shared<kHeadDim, kWarps> shared;
  const int lane = threadIdx.x % 32;
  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
  const int kv_head = blockIdx.x;
  const int64_t part = blockIdx.y;
  wait_for_kernel_before();
  if (plan.is_part != nullptr && !plan.is_part[part]) return;
  const int sequence = plan.sequences[part];
  const int first_page = plan.first_pages[sequence];
  const int pages = plan.first_pages[sequence + 1] - first_page;
  int begin = 0;
  int end = pages > 0 ? (pages - 1) * call.page_size + plan.last_page_lengths[sequence] : 0;
  if (plan.is_cut != 0) {
    const int size = *plan.chunk_size;
    begin = plan.chunks[part] * size;
    end = min(begin + size, end);
  }
  Sums<kHeadDim> sums;
  int first = begin + warp * kTile;  // of the warp's tile
  if (first < end) {
    const int* const page_indices = plan.page_indices + first_page;
    Place next(call, page_indices, min(first + lane % kTile, end - 1));
    Tokens<T, kHeadDim> tokens(call, kv_head, lane);
    tokens.load_query(sequence, kv_head);
    do {
      const int64_t own = next.page * call.page_stride + next.slot * call.token_stride;
      const int last = end - 1 - first;
      first += kWarps * kTile;
      // Look up pages one tile ahead, so that keys and values need not wait for them.
      next = Place(call, page_indices, min(first + lane % kTile, end - 1));
      const auto rows = [&](const T* cache, int token) {
        return cache + __shfl_sync(~0u, own, token);
      };
      add_tile<true>(rows, last, call.scale_log2, lane, &tokens, &sums);
    } while (first < end);
  }
  store_sums(sums, warp, lane, call.group, &shared);
  __syncthreads();
  merge<kWarps, kWarps>(call.group, call.scale_log2, shared,
                        [&](int head, int element, const float4& sum, float one, float lse) {
                          const int64_t at = (part * call.kv_heads + kv_head) * call.group + head;
                          *reinterpret_cast<uint2*>(plan.output + at * kHeadDim + element) =
                              pack<T>(sum, one);
                          if (element == 0 && plan.lse != nullptr)
                            plan.lse[at] = lse * 1.44269504088896340736f;
                        });
}

}  // namespace
}  // namespace fibshim

// q, K, V and their strides must be aligned to 16 bytes (strides are in elements), output to 8,
// partial_output to 16. The page size is 16 times a power of two; for TokenPages it is 1. Without
// partial_output every sequence is in one part, whatever split_counts say: FlashAttention's kernel
// for that reads none.
#define FIBSHIM_PARAMS(T)                                                                         \
  const T *q, const T *k, const T *v, const int *page_table, const int *lengths,                  \
      const int *first_rows, const int *query_lengths, const int *split_counts, const int *order, \
      T *output, float *lse, float *partial_output, float *partial_lse, int64_t q_stride,         \
      int64_t output_stride, int64_t page_stride, int64_t token_stride, int64_t head_stride,      \
      int64_t table_stride, float scale_log2, int batch_size, int rows, int kv_heads, int group,  \
      int page_size, int max_pages

#define FIBSHIM_CALL(T)                                                                          \
  const fibshim::Call<T> call(q, k, v, page_table, lengths, first_rows, query_lengths,           \
                              partial_output == nullptr ? nullptr : split_counts, order, output, \
                              lse, partial_output, partial_lse, q_stride, output_stride,         \
                              page_stride, token_stride, head_stride, table_stride, scale_log2,  \
                              batch_size, rows, kv_heads, group, page_size, max_pages)

#define FIBSHIM_KERNEL_OF(T, name, decode, pages, head_dim, warps, sums, blocks)             \
  extern "C" __global__ void __launch_bounds__(warps * 32, blocks) name(FIBSHIM_PARAMS(T)) { \
    __shared__ __align__(16) fibshim::Shared<head_dim, sums> shared;                         \
    FIBSHIM_CALL(T);                                                                         \
    if (order == nullptr) {                                                                  \
      fibshim::decode<fibshim::pages, false>(call, fibshim::Plain(), shared);                \
    } else {                                                                                 \
      fibshim::decode<fibshim::pages, true>(call, fibshim::Plain(), shared);                 \
    }                                                                                        \
  }

#define FIBSHIM_KERNEL(name, ...)                            \
  FIBSHIM_KERNEL_OF(__nv_bfloat16, name##_bf16, __VA_ARGS__) \
  FIBSHIM_KERNEL_OF(__half, name##_fp16, __VA_ARGS__)

FIBSHIM_KERNEL(paged_decode_d128_w6, decode, Pages, 128, 6, 6, 2)
FIBSHIM_KERNEL(paged_decode_d128_w4, decode, Pages, 128, 4, 4, 3)
FIBSHIM_KERNEL(paged_decode_d64_w6, decode, Pages, 64, 6, 6, 3)
FIBSHIM_KERNEL(paged_decode_d128_w6_token, decode, TokenPages, 128, 6, 6, 2)
FIBSHIM_KERNEL(paged_decode_d128_w4_token, decode, TokenPages, 128, 4, 4, 3)
FIBSHIM_KERNEL(paged_decode_d64_w6_token, decode, TokenPages, 64, 6, 6, 3)
// Must be launched in clusters of two along y.
FIBSHIM_KERNEL(paged_decode_d128_w6_pair, decode_in_pairs, Pages, 128, 6, 7, 2)
FIBSHIM_KERNEL(paged_decode_d64_w6_pair, decode_in_pairs, Pages, 64, 6, 7, 3)
FIBSHIM_KERNEL(paged_decode_d128_w6_pair_token, decode_in_pairs, TokenPages, 128, 6, 7, 2)
FIBSHIM_KERNEL(paged_decode_d64_w6_pair_token, decode_in_pairs, TokenPages, 64, 6, 7, 3)

// With sinks, and with a window, in which case `sinks` may be null. `order` is not read: sequences
// are not sorted.
#define FIBSHIM_EXTRA_KERNEL(name, head_dim, blocks, window, window_left, ...)                     \
  extern "C" __global__ void __launch_bounds__(6 * 32, blocks)                                     \
      name(FIBSHIM_PARAMS(__nv_bfloat16), const __nv_bfloat16* sinks __VA_OPT__(, ) __VA_ARGS__) { \
    __shared__ __align__(16) fibshim::Shared<head_dim, 6> shared;                                  \
    __shared__ float logits[fibshim::kHeads];                                                      \
    FIBSHIM_CALL(__nv_bfloat16);                                                                   \
    fibshim::decode<fibshim::Pages, false>(                                                        \
        call, fibshim::Sinks<window>{sinks, window_left, logits}, shared);                         \
  }

FIBSHIM_EXTRA_KERNEL(paged_decode_d64_w6_sink_bf16, 64, 3, false, 0)
FIBSHIM_EXTRA_KERNEL(paged_decode_d64_w6_window_bf16, 64, 3, true, window_left, int window_left)
FIBSHIM_EXTRA_KERNEL(paged_decode_d128_w6_window_bf16, 128, 2, true, window_left, int window_left)

// For any page size. q, K, V and their strides must be aligned to 16 bytes, output to 8.
#define FIBSHIM_PLANNED_KERNEL(T, head_dim, blocks, type)                                        \
  extern "C" __global__ void __launch_bounds__(128, blocks) planned_decode_d##head_dim##_##type( \
      const T* q, const T* k, const T* v, const int* page_indices, const int* first_pages,       \
      const int* last_page_lengths, const int* sequences, const int* chunks,                     \
      const int* chunk_size, const bool* is_part, T* output, float* lse, double scale,           \
      int64_t q_stride, int64_t page_stride, int64_t token_stride, int64_t head_stride,          \
      int kv_heads, int group, int page_size, int is_cut) {                                      \
    fibshim::Call<T> call = {};                                                                  \
    call.q = q, call.k = k, call.v = v;                                                          \
    call.q_stride = q_stride, call.page_stride = page_stride;                                    \
    call.token_stride = token_stride, call.head_stride = head_stride;                            \
    call.scale_log2 = static_cast<float>(scale * 1.44269504088896340736f);                       \
    call.kv_heads = kv_heads, call.group = group, call.page_size = page_size;                    \
    fibshim::decode_planned<head_dim, 4>(                                                        \
        call, fibshim::Plan<T>(page_indices, first_pages, last_page_lengths, sequences, chunks,  \
                               chunk_size, is_part, output, lse, is_cut));                       \
  }

FIBSHIM_PLANNED_KERNEL(__nv_bfloat16, 128, 3, bf16)
FIBSHIM_PLANNED_KERNEL(__nv_bfloat16, 64, 4, bf16)
FIBSHIM_PLANNED_KERNEL(__half, 128, 3, fp16)
FIBSHIM_PLANNED_KERNEL(__half, 64, 4, fp16)
