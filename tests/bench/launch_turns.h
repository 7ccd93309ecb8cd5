// Constants that launch_turns and the reader of its trace share.
#pragma once

namespace fibshim::bench {

// Launches of each kernel by each thread: before the turns, so that the shim has prepared
// everything, and in one turn.
inline constexpr int kWarmUpLaunches = 8;
inline constexpr int kLaunchesPerTurn = 20;

}  // namespace fibshim::bench
