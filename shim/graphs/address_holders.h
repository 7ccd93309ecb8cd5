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

// A list that grows.
template <class Item>
class Growing {
 public:
  Item* add() {
    if (count_ == items_.count()) {
      Block<Item> larger;
      if (!larger.allocate(count_ == 0 ? 16 : 2 * count_)) return nullptr;
      for (size_t i = 0; i < count_; ++i) larger[i] = items_[i];
      items_.swap(larger);
    }
    return &items_[count_++];
  }
  size_t count() const { return count_; }
  Item* begin() const { return items_.begin(); }
  Item* end() const { return items_.begin() + count_; }
  Item& operator[](size_t index) const { return items_[index]; }

 private:
  Block<Item> items_;
  size_t count_ = 0;
};

// All holders of addresses from `begin` up to `end`. False: some node cannot be looked into.
bool find_holders(const Originals& originals, uint64_t begin, uint64_t end,
                  Growing<AddressHolder>* out);

}  // namespace fibshim
