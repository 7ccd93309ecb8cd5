#include "shim/graphs/address_index.h"

#include <stdlib.h>

namespace fibshim {

bool AddressRanges::add(uint64_t begin, uint64_t end) { return ranges_.add(Range{begin, end}); }

int AddressRanges::compare(const void* one, const void* other) {
  const uint64_t first = static_cast<const Range*>(one)->begin;
  const uint64_t second = static_cast<const Range*>(other)->begin;
  return first < second ? -1 : first > second ? 1 : 0;
}

void AddressRanges::sort() {
  if (ranges_.count() > 1) qsort(ranges_.begin(), ranges_.count(), sizeof(Range), compare);
  for (size_t i = 1; i < ranges_.count(); ++i) {
    if (ranges_[i].end < ranges_[i - 1].end) ranges_[i].end = ranges_[i - 1].end;
  }
}

bool AddressRanges::has_any_in(uint64_t begin, uint64_t end) const {
  size_t low = 0;
  size_t high = ranges_.count();
  while (low < high) {
    const size_t middle = (low + high) / 2;
    if (ranges_[middle].begin < end) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low != 0 && ranges_[low - 1].end > begin;
}

}  // namespace fibshim
