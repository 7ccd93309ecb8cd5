// Constants that launch_turns and the reader of its trace share.
#pragma once

#include <stdint.h>

namespace fibshim::bench {

// The address of a page for marks, below all that the linker and the allocators use.
inline constexpr uintptr_t kMarksAddress = 0x70000000;

// Launches of each kernel by each thread: before the turns, so that the shim has prepared
// everything, and in one turn.
inline constexpr int kWarmUpLaunches = 8;
inline constexpr int kLaunchesPerTurn = 20;

// Stores to these offsets mark the begin and the end of a turn, which is 0 or 1.
constexpr uintptr_t begin_mark(int turn) { return static_cast<uintptr_t>(turn) * 128; }
constexpr uintptr_t end_mark(int turn) { return begin_mark(turn) + 64; }

}  // namespace fibshim::bench
