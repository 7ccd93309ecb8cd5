// Who else in a graph holds an address: the bytes of kernels' parameters, copies and fills. What a kernel does with an
// address that it finds in memory cannot be known.
#pragma once

#include "shim/graphs/variant.h"

namespace fibshim {

struct AddressHolder {
  uint64_t begin;
  uint64_t end;     // of a parameter's word: one byte
  uint32_t kernel;  // its index among the originals' kernels; UINT32_MAX: no kernel
  uint32_t param;   // of a kernel: where the word stands
  uint32_t offset;
};

// Finds all holders of addresses from `begin` up to `end`. False: some node cannot be scanned.
bool find_holders(const Originals& originals, uint64_t begin, uint64_t end,
                  Growing<AddressHolder>* out);

}  // namespace fibshim
