// Reads whole files, with a bound. Only regular files are read: a FIFO or device below a config
// folder must not hang an engine.
#ifndef FIBSHIM_LOADER_FILE_H_
#define FIBSHIM_LOADER_FILE_H_

#include <stddef.h>

#include <string>

#include "loader/result.h"

namespace fibshim {

inline constexpr size_t kMaxJsonBytes = size_t{16} << 20;    // one JSON file
inline constexpr size_t kMaxImageBytes = size_t{512} << 20;  // one cubin, fatbin or PTX file

// The file's bytes. Fails with file_not_found when it does not exist, with operating_system when
// it cannot be read, is not a regular file or is larger than `max_bytes`; the message names the
// path.
Result<std::string> read_file(const std::string& path, size_t max_bytes);

}  // namespace fibshim

#endif  // FIBSHIM_LOADER_FILE_H_
