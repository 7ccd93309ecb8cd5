// Random numbers for random programs.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include <vector>

#include "shim/abi/hash.h"

namespace conform {

// splitmix64: the same numbers on every machine.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t next() { return fibshim::scramble(state_ += fibshim::kHashFactor); }
  // From 0 to `count` - 1.
  int below(int count) { return static_cast<int>(next() % static_cast<uint64_t>(count)); }
  bool one_in(int count) { return below(count) == 0; }
  template <class T>
  T& pick(std::vector<T>& all) {
    return all[static_cast<size_t>(below(static_cast<int>(all.size())))];
  }

 private:
  uint64_t state_;
};

}  // namespace conform
