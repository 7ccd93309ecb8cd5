// A recording as JSON Lines: one line on the recording and its processes, then one for each kernel.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "tools/record/recording.h"

namespace fibshim::tools {

// A kernel's record as a line of JSON, and back. `share` of all GPU time: negative when not known.
nlohmann::ordered_json kernel_to_json(const KernelRecord& kernel, double share);
nlohmann::ordered_json processes_to_json(const std::vector<RecordedProcess>& processes);

struct JsonLines {
  std::string text;
  uint64_t kernels_left_out;
};
// At most `limit` bytes: what matters least is left out, and said.
JsonLines to_json_lines(const Recording& recording, uint64_t limit);

// What `fibshim record -o` wrote, or a folder of recordings.
tl::expected<Recording, std::string> read_recording(const std::string& path);

// The JSON Lines of such a file.
tl::expected<Recording, std::string> parse_json_lines(std::string_view text);

// The kernel that a person names: by its number in the summary, its symbol, or a part of its readable name that
// no other has. Null, and *problem says why.
const KernelRecord* find_kernel(const Recording& recording, const std::string& wanted,
                                std::string* problem);

}  // namespace fibshim::tools
