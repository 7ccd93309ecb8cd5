// Reads small files, and writes the files that options name.
#pragma once

#include <sys/types.h>

#include <string>
#include <string_view>
#include <vector>

namespace fibshim::tools {

// Returns at most 8 MB of a file, which no environment exceeds (6 MB); empty if it cannot be read.
std::string read_small_file(const std::string& path);

// All paths below a folder, sorted; no link is followed. Adds to *faults each folder that cannot be read: what is elsewhere
// is there all the same.
std::vector<std::string> paths_below(const std::string& folder, std::vector<std::string>* faults);

// True if `path` is missing or a regular file, which write_file() replaces as a whole.
bool is_replaceable(const std::string& path);

// Writes a file. A new one gets `mode` without the bits of the umask. A regular file is replaced by rename, and keeps its
// mode: a reader sees the old text or the new one, and a failure leaves the old one. A device, a FIFO or a symbolic link stays, and the text is
// written into it. Returns the reason of a failure, or an empty string.
[[nodiscard]] std::string write_file(const std::string& path, std::string_view text,
                                     mode_t mode = 0666);

// write_file() for an option; an empty path means stdout. On failure prints a message, returns
// false.
[[nodiscard]] bool write_output(std::string_view command, const std::string& path,
                                std::string_view text, mode_t mode = 0666);

}  // namespace fibshim::tools
