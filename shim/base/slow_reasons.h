// Counts the reasons for which every launch of the process takes the slow side: recording, and each
// stream capture in progress. Whoever adds one also calls suspend_fast_side() (registry/handles.h).
#pragma once

#include <atomic>

namespace fibshim {

inline constinit std::atomic<int> g_slow_reasons{0};

}  // namespace fibshim
