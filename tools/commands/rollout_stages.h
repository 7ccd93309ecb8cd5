// The stages of a rollout: what moves together, how much of it at a time, and whether one process's launches can be shared
// between two folders. For `rollout` alone.
#pragma once

#include "tools/counters/counters_files.h"

namespace fibshim::tools {

// What goes together: the ranks of a job, or one process.
struct Unit {
  std::string name;  // "job train", "pid 17"
  std::vector<ProcessCounters> processes;
};

std::vector<Unit> units_of(const std::vector<ProcessCounters>& processes);

// What one stage moves.
struct Stage {
  size_t units;        // the first of them
  uint32_t share = 0;  // of the only one's launches (shim/abi/folder_list.h); 0: all
};

Stage stage_of(double percent, size_t units, bool can_share);
// " for 10 % of its launches"; empty: of all.
std::string share_words(const Stage& stage);

// The list that has a process take the folder for a share of its launches, and the one that it is in for the others.
std::string shared_list(const std::string& folder, uint32_t share, const ProcessCounters& process);
// Why the launches of its processes cannot be shared between two folders; empty: they can.
std::string why_not_shared(const Unit& unit, const std::string& folder);

}  // namespace fibshim::tools
