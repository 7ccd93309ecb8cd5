// Finds where a graph holds an address: in the parameters of kernels, in copies and in fills.
// Addresses that a kernel reads from memory cannot be known.
#pragma once

#include <string.h>

#include "shim/graphs/variant.h"
#include "shim/plan/plan.h"

namespace fibshim {

struct AddressHolder {
  uint64_t begin;
  uint64_t end;     // begin + 1 for a word of a parameter
  uint32_t kernel;  // its index among the originals' kernels; UINT32_MAX: no kernel
  uint32_t param;   // of the kernel, with `offset`: where the word is; UINT32_MAX: all
  uint32_t offset;
};

// Calls use(word, param, offset) for each word of a launch's parameters that may be an address: at
// multiples of four, even in packed structs. False: use() returned false, or the parameters are not
// to be had.
template <class Use>
bool for_each_word(const NodeParams& params, const Param* layout, uint32_t count, const Use& use) {
  PackedParams packed = {};
  if (params.kernelParams == nullptr) {
    if (params.extra != nullptr) packed = read_packed(params.extra);
    if (packed.bytes == nullptr) return count == 0;
  }
  for (uint32_t i = 0; i < count; ++i) {
    const Param& param = layout[i];
    const char* const bytes = packed.bytes == nullptr
                                  ? static_cast<const char*>(params.kernelParams[i])
                                  : packed.bytes + param.offset;
    size_t size = param.size;
    if (packed.bytes != nullptr && packed.size < size_t{param.offset} + size) {
      size = packed.size > param.offset ? packed.size - param.offset : 0;
    }
    for (uint32_t at = 0; at + sizeof(uint64_t) <= size; at += 4) {
      uint64_t word = 0;
      memcpy(&word, bytes + at, sizeof word);
      if (!use(word, i, at)) return false;
    }
  }
  return true;
}

// What a holder is, for the log.
constexpr size_t kMostOfHolder = 256;
void describe_holder(const Block<NodeParams>& params, const AddressHolder& holder,
                     char (&out)[kMostOfHolder]);

// Finds all holders of addresses from `begin` to below `end`. `params`: of each kernel, zeroed if the
// driver does not tell; `are_all`: the graph has no other nodes. False: `unreadable` cannot be
// scanned.
bool find_holders(const Originals& originals, const Block<NodeParams>& params, bool are_all,
                  uint64_t begin, uint64_t end, Growing<AddressHolder>* out,
                  AddressHolder* unreadable);

// True if a pattern of the generation in force knows the launch of a kernel, the holder, as a call
// of a definition, and the word is none of the pointers that a solution takes: neither the kernel
// nor what may replace it reads there. Requires a read section.
bool reads_nothing_there(const Originals& originals, const NodeParams& params,
                         const AddressHolder& holder);

}  // namespace fibshim
