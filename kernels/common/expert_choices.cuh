// What tokens multiply with which experts' weights, for products of few tokens: shared by those in bfloat16 and in fp8.
//
// `sorted` holds the choices by their experts, padded with the number of choices to blocks of `block_size`, a multiple of 8, and `experts` the expert of
// each block, or -1. Without it `experts` has the expert of each choice.
#pragma once

#include "few_rows.cuh"

namespace fibshim {

constexpr int kMostWords = 10;  // of 32 groups: up to 2560 places in `sorted`
constexpr int kMostGroups = kMostWords * 32;

enum class Result { kProduct, kWeighted, kSilu, kSiluRounded };

// Only the first two are set if the choices are not sorted.
struct Choices {
  const int* experts;
  int count;
  const int* sorted;
  const int* used;  // places in `sorted`
  int length;       // of `sorted`
  int block_size;
};

// Up to kRows choices of one expert.
struct Group {
  int expert;
  int place;  // of the first, in `sorted` or among the choices
};

// Lists the groups, and returns how many there are. Every warp writes the same list, so that none
// waits for another.
template <bool is_sorted>
__device__ inline int list_groups(const Choices& choices, Group* groups, int lane) {
  const int length = is_sorted ? choices.length / kRows : choices.count;
  const int used = is_sorted ? *choices.used : choices.count;
  int first[kMostWords];
  int expert[kMostWords];
#pragma unroll
  for (int word = 0; word < kMostWords; ++word) {
    const int g = word * 32 + lane;
    first[word] = choices.count;
    expert[word] = 0;
    if (g < length) {
      first[word] = is_sorted ? choices.sorted[g * kRows] : g;
      expert[word] = choices.experts[is_sorted ? g * kRows / choices.block_size : g];
    }
  }
  int count = 0;
#pragma unroll
  for (int word = 0; word < kMostWords; ++word) {
    if (word * 32 >= length) break;
    const int place = (word * 32 + lane) * (is_sorted ? kRows : 1);
    const bool is_there = first[word] < choices.count && place < used;
    const uint32_t mask = __ballot_sync(~0u, is_there);
    if (is_there) groups[count + __popc(mask & ((1u << lane) - 1))] = {expert[word], place};
    count += __popc(mask);
  }
  __syncwarp();
  return count;
}

}  // namespace fibshim
