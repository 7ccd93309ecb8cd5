// Random numbers for random programs.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include <vector>

namespace conform {

// splitmix64: the same numbers on every machine.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t next() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
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
