// What shadow checks have found (FIBSHIM_SHADOW), as counters files store it.
#pragma once

#include <string>

#include "shim/abi/counters_format.h"

namespace fibshim::tools {

struct ShadowNumbers {
  uint64_t checks = 0;
  uint64_t mismatches = 0;
  uint64_t not_checked[kShadowMisses] = {};  // by ShadowMiss
  uint64_t elements = 0;
  uint64_t wrong_elements = 0;
  uint64_t nans = 0;
  uint64_t infinities = 0;
  double largest_difference = 0;
  double largest_mean = 0;
  uint64_t buckets[kShadowBuckets] = {};
};

// One entry of a process's counters file.
struct ShadowCount {
  uint32_t config;
  int32_t device;  // as a Count's
  std::string pattern, definition, solution, shape;
  ShadowNumbers numbers;
};

}  // namespace fibshim::tools
