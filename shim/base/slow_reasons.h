// Whatever makes every launch of the process take the slow side adds one here: recording, and each stream
// capture under way.
#ifndef FIBSHIM_SHIM_BASE_SLOW_REASONS_H_
#define FIBSHIM_SHIM_BASE_SLOW_REASONS_H_

#include <atomic>

namespace fibshim {

inline constinit std::atomic<int> g_slow_reasons{0};

}  // namespace fibshim

#endif  // FIBSHIM_SHIM_BASE_SLOW_REASONS_H_
