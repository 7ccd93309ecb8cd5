// A recording as JSON Lines: a line about the recording and its processes, and one for each kernel.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "tools/record/recording.h"

namespace fibshim::tools {

// A kernel's record as a line of JSON. `share`: of all GPU time; negative if not known.
nlohmann::ordered_json kernel_to_json(const KernelRecord& kernel, double share);
nlohmann::ordered_json processes_to_json(const std::vector<RecordedProcess>& processes);

struct JsonLines {
  std::string text;
  uint64_t kernels_left_out;
};
// At most `limit` bytes: the least important kernels are left out and counted.
JsonLines to_json_lines(const Recording& recording, uint64_t limit);

// Reads a file that `fibshim record -o` wrote, or a folder of recordings.
tl::expected<Recording, std::string> read_recording(const std::string& path);

// Parses the JSON Lines of such a file.
tl::expected<Recording, std::string> parse_json_lines(std::string_view text);

// The kernel that a user names by its number in the summary, its symbol, or a part of its readable
// name that no other has. If there is none, null, and *problem says why.
const KernelRecord* find_kernel(const Recording& recording, const std::string& wanted,
                                std::string* problem);

}  // namespace fibshim::tools
