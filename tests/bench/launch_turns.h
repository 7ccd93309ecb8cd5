// What launch_turns and the reader of its trace agree on.
#pragma once

#include <stdint.h>

namespace fibshim::bench {

// A page of the program's own, below what the linker and the allocators use.
inline constexpr uintptr_t kMarksAddress = 0x70000000;

// Of each kernel, by each thread: before the turns, so that everything is learnt and claimed, and in one.
inline constexpr int kWarmUpLaunches = 8;
inline constexpr int kLaunchesPerTurn = 20;

// Stores at these offsets begin and end a thread's turn, 0 or 1.
constexpr uintptr_t begin_mark(int turn) { return static_cast<uintptr_t>(turn) * 128; }
constexpr uintptr_t end_mark(int turn) { return begin_mark(turn) + 64; }

}  // namespace fibshim::bench
