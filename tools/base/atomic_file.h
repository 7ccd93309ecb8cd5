// Writes a file so that whoever reads it meanwhile sees the old one or the new one, whole.
#ifndef FIBSHIM_TOOLS_BASE_ATOMIC_FILE_H_
#define FIBSHIM_TOOLS_BASE_ATOMIC_FILE_H_

#include <sys/types.h>

#include <string>
#include <string_view>

namespace fibshim::tools {

// Makes ".<name>.<random>" beside `path`, and renames it. On failure nothing is left behind and the
// reason is returned; empty when all went well.
[[nodiscard]] std::string write_file_atomically(const std::string& path, std::string_view data,
                                                mode_t mode);

// The same for a file of an open folder, wherever that lies by now.
[[nodiscard]] std::string write_file_atomically(int folder_fd, const std::string& name,
                                                std::string_view data, mode_t mode);

}  // namespace fibshim::tools

#endif  // FIBSHIM_TOOLS_BASE_ATOMIC_FILE_H_
