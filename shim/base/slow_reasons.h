// Counts the reasons for which every launch of the process takes the slow side: recording, and each
// stream capture in progress.
#ifndef FIBSHIM_SHIM_BASE_SLOW_REASONS_H_
#define FIBSHIM_SHIM_BASE_SLOW_REASONS_H_

#include <atomic>

namespace fibshim {

inline constinit std::atomic<int> g_slow_reasons{0};

}  // namespace fibshim

#endif  // FIBSHIM_SHIM_BASE_SLOW_REASONS_H_
