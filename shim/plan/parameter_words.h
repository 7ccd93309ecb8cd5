// The words of a launch's parameters that may be addresses.
#pragma once

#include <string.h>

#include "shim/plan/plan.h"

namespace fibshim {

// Calls use(word, param, offset) for each word of a launch's parameters that may be an address: at
// multiples of four, even in packed structs. False: use() returned false, or the parameters are not
// to be had.
template <class Use>
bool for_each_word(void** params, void** extra, const Param* layout, uint32_t count,
                   const Use& use) {
  PackedParams packed = {};
  if (params == nullptr) {
    if (extra != nullptr) packed = read_packed(extra);
    if (packed.bytes == nullptr) return count == 0;
  }
  for (uint32_t i = 0; i < count; ++i) {
    const Param& param = layout[i];
    const char* const bytes =
        packed.bytes == nullptr ? static_cast<const char*>(params[i]) : packed.bytes + param.offset;
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

}  // namespace fibshim
