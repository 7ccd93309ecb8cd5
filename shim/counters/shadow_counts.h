// The results of shadow checks, by series and shape: in the counters file, or in private memory if
// there is no space.
//
// An entry is identified by its number, which does not change. Its series and shape are read from
// private copies. Slow side; any thread.
#pragma once

#include "shim/counters/counters.h"

namespace fibshim {

// Returns the entry of this series and shape, and makes it if needed. If the series has many
// shapes, or there is no more room, returns that of "(other)". UINT32_MAX: no room even for that.
uint32_t find_shadow_entry(uint32_t series, const char* shape);

// Return the series and the shape of an entry.
uint32_t series_of_shadow_entry(uint32_t entry);
const char* shape_of_shadow_entry(uint32_t entry);

void count_shadow_miss(uint32_t entry, ShadowMiss miss);

// The result of one check.
struct ShadowFinding {
  bool is_mismatch;
  uint64_t elements, wrong_elements, nans, infinities;
  double largest_difference, mean_difference;
  double worst;  // the largest deviation of an element, as a multiple of its tolerance
};
void count_shadow_check(uint32_t entry, const ShadowFinding& finding);

// For the atfork handlers. A child begins without entries.
void lock_shadow_counts_for_fork();
void unlock_shadow_counts_after_fork(bool is_child);

}  // namespace fibshim
