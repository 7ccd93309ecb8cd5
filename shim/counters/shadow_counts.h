// What shadow checks have found, by series and shape: in the counters file, or where there is no space for that, in
// private memory.
//
// An entry is found by its number, which stays. What an entry is of is read from private copies. Slow side; any thread.
#pragma once

#include "shim/counters/counters.h"

namespace fibshim {

// The entry of this series and shape, made at first need. Of a series with many shapes, or where there is no more
// room, that of "(other)"; UINT32_MAX: not even that.
uint32_t find_shadow_entry(uint32_t series, const char* shape);

// The series and the shape of an entry.
uint32_t series_of_shadow_entry(uint32_t entry);
const char* shape_of_shadow_entry(uint32_t entry);

void count_shadow_miss(uint32_t entry, ShadowMiss miss);

// One check.
struct ShadowFinding {
  bool is_mismatch;
  uint64_t elements, wrong_elements, nans, infinities;
  double largest_difference, mean_difference;
  double worst;  // how far off an element was, as a share of what it may be
};
void count_shadow_check(uint32_t entry, const ShadowFinding& finding);

// In a forked child: the entries were its parent's.
void lock_shadow_counts_for_fork();
void unlock_shadow_counts_after_fork(bool is_child);

}  // namespace fibshim
