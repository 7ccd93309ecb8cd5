// Reads small files, and writes the files that options name.
#pragma once

#include <string>
#include <string_view>

namespace fibshim::tools {

// Returns at most 64 KB of a file; empty if it cannot be read.
std::string read_small_file(const std::string& path);

// True if `path` is missing or a regular file, which write_file() replaces as a whole.
bool is_replaceable(const std::string& path);

// Writes a file with mode 0644. A regular file is replaced by rename: a reader sees the old text or the
// new one, and a failure leaves the old one. A device, a FIFO or a symbolic link stays, and the text is
// written into it. Returns the reason of a failure, or an empty string.
[[nodiscard]] std::string write_file(const std::string& path, std::string_view text);

// write_file() for an option; an empty path means stdout. On failure prints a message, returns
// false.
[[nodiscard]] bool write_output(std::string_view command, const std::string& path,
                                std::string_view text);

}  // namespace fibshim::tools
