// Counts the reasons for which every launch of the process takes the slow side: recording, and each
// stream capture in progress.
#pragma once

#include <atomic>

namespace fibshim {

inline constinit std::atomic<int> g_slow_reasons{0};

}  // namespace fibshim
