// What the preload costs a process that never touches CUDA: time to spawn it, and memory.
#pragma once

#include <string>

namespace fibshim::bench {

struct SpawnCost {
  double plain_us;      // /bin/true, spawn to exit; median
  double preloaded_us;  // the same under the preload
  double plain_pss_kib;
  double preloaded_pss_kib;  // /bin/cat, waiting for input: proportional set size
  double plain_private_kib;
  double preloaded_private_kib;  // of it, what no other process shares
};

// Interleaved, `rounds` of each. Throws std::runtime_error.
SpawnCost measure_spawn_cost(const std::string& preload, const std::string& config, int rounds);

}  // namespace fibshim::bench
