// Lookups for rewrites.cc, so that its time grows with the number of a graph's kernels and not with its
// square: a graph may have thousands of kernels with the address of the same workspace.
#pragma once

#include "shim/graphs/graph_nodes.h"

namespace fibshim {

// Numbers that belong to kernels, which are numbers, too.
class NumbersByKernel {
 public:
  struct Numbers {
    const uint32_t* first;
    const uint32_t* last;
    const uint32_t* begin() const { return first; }
    const uint32_t* end() const { return last; }
  };

  // `for_each(use)` calls use(kernel, number) for each of them. False: no memory.
  template <class ForEach>
  bool list(size_t kernel_count, const ForEach& for_each) {
    size_t total = 0;
    for_each([&](uint32_t, uint32_t) { ++total; });
    if (!first_.allocate(kernel_count + 2) || !items_.allocate(total)) return false;
    for_each([&](uint32_t kernel, uint32_t) { ++first_[kernel + 2]; });
    for (size_t i = 2; i < kernel_count + 2; ++i) first_[i] += first_[i - 1];
    for_each([&](uint32_t kernel, uint32_t number) { items_[first_[kernel + 1]++] = number; });
    return true;
  }
  // UINT32_MAX: no kernel, and none.
  Numbers operator[](uint32_t kernel) const {
    if (kernel == UINT32_MAX) return {nullptr, nullptr};
    return {items_.begin() + first_[kernel], items_.begin() + first_[kernel + 1]};
  }

 private:
  Block<uint32_t> first_;  // of each kernel, in items_
  Block<uint32_t> items_;
};

class AddressRanges {
 public:
  // False: no memory.
  bool add(uint64_t begin, uint64_t end);
  // Call after the last one was added.
  void sort();
  void swap(AddressRanges& other) { ranges_.swap(other.ranges_); }
  // True if any of them overlaps the addresses from `begin` to below `end`.
  bool has_any_in(uint64_t begin, uint64_t end) const;

 private:
  struct Range {
    uint64_t begin;
    uint64_t end;  // once they are sorted the highest of those up to it
  };
  static int compare(const void* one, const void* other);
  Growing<Range> ranges_;
};

}  // namespace fibshim
