// The stages of a rollout: which processes move together, how many at a time, and whether the
// launches of one unit can be shared between two folders. Only for `rollout`.
#pragma once

#include <map>

#include "tools/counters/counters_files.h"

namespace fibshim::tools {

// Processes that move together: the ranks of a job, or one process.
struct Unit {
  std::string name;  // "job train", "pid 17", "pid 1 (1-4711.counters)"
  std::vector<ProcessCounters> processes;
};

// By counters file: the pid, with the file where several have that pid, as processes of different
// containers may.
std::map<std::string, std::string> process_names(const std::vector<ProcessCounters>& processes);

std::vector<Unit> units_of(const std::vector<ProcessCounters>& processes);

// Reads "10%,50%,100%", which must rise, as percent. Empty, or what is wrong with it.
std::string parse_stages(const std::string& shares, std::vector<double>* stages);

// What one stage moves.
struct Stage {
  size_t units;        // so many, from the first on
  uint32_t share = 0;  // of the only unit's launches (shim/abi/folder_list.h); 0: all
};

Stage stage_of(double percent, size_t units, bool can_share);
// " for 10 % of its launches"; empty if the stage moves all launches.
std::string share_words(const Stage& stage);

// The folder list with which a process uses `folder` for a share of its launches and its present
// folder for the rest.
std::string shared_list(const std::string& folder, uint32_t share, const ProcessCounters& process);
// Why the launches of the unit's processes cannot be shared between two folders; empty: they can.
std::string why_not_shared(const Unit& unit, const std::string& folder);

}  // namespace fibshim::tools
