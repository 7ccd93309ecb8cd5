// Finds where a graph holds an address from which it may read: in the parameters of kernels and in
// copies. A fill reads nothing, and is none. Addresses that a kernel reads from memory cannot be
// known.
#pragma once

#include "shim/graphs/variant.h"

namespace fibshim {

struct AddressHolder {
  uint64_t begin;
  uint64_t end;     // begin + 1 for a word of a parameter
  uint32_t kernel;  // its index among the originals' kernels; UINT32_MAX: a copy
  uint32_t param;   // of the kernel, with `offset`: where the word is; UINT32_MAX: all
  uint32_t offset;
};

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
