// Which folders processes use, how often they have moved, and which images of earlier folders stay
// in memory. For `stats`, `top` and `inspect`.
#pragma once

#include <map>

#include <nlohmann/json_fwd.hpp>

#include "tools/counters/counters_files.h"

namespace fibshim::tools {

struct FolderTotals {
  std::map<FolderState, uint64_t> process_counts;  // has an entry for every state
  uint64_t swap_count = 0, refused_count = 0;
  uint64_t image_count = 0, image_bytes = 0;
  uint64_t kept_image_count = 0, kept_image_bytes = 0;
};
// Sums over the live processes.
FolderTotals folder_totals(const std::vector<ProcessCounters>& processes);

// "on", "off", "refused".
const char* folder_state_name(FolderState state);

// "2 processes in /a (0123456789ab), 1 off, 1 refused; 3 moves, 1 refusal"; empty if no live
// process has ever moved or been refused a folder.
std::string folder_words(const std::vector<ProcessCounters>& processes);

// "12 images loaded (1.4 MiB), 3 of them (0.2 MiB) kept from folders before"; may be empty.
std::string image_words(const std::vector<ProcessCounters>& processes);

nlohmann::ordered_json folder_to_json(const FolderInForce& folder);

}  // namespace fibshim::tools
