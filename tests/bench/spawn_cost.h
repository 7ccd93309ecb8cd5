// The cost of the preload for a process that never uses CUDA: the time to spawn it, and memory.
#pragma once

#include <string>

namespace fibshim::bench {

struct SpawnCost {
  double plain_us;      // /bin/true, spawn to exit; median
  double preloaded_us;  // the same under the preload
  double plain_pss_kib;
  double preloaded_pss_kib;  // /bin/cat, waiting for input: proportional set size
  double plain_private_kib;
  double preloaded_private_kib;  // the part of it that no other process shares
};

// Measures both in turn, `rounds` times each. Throws std::runtime_error.
SpawnCost measure_spawn_cost(const std::string& preload, const std::string& config, int rounds);

}  // namespace fibshim::bench
