// Deletes the counters files of processes that ended: a day after that was first seen, or at once.
//
// A file is deleted only if all of this holds: its name is that of a counters file, its process
// (pid and start time) is gone, no process has it open for writing or mapped (one in another
// container may), and it is a regular file. The folder must not be one in which other users could
// exchange files. No link is followed, and all work is done in the folder that was opened, even if
// it is renamed meanwhile.
#pragma once

#include "tools/counters/counters_folder.h"

namespace fibshim::tools {

// Deletes the caller's own files whose process was seen to be gone a day ago or earlier. The first
// call that sees it marks the file: it removes the write permission and sets the modification time.
// A file that cannot be read as counters stays, so that it is seen. Failures are not reported here:
// reading the folder reports them.
void delete_old_counters(const std::string& folder);

struct Removal {
  std::vector<std::string> removed;
  std::vector<RefusedFile> kept;  // files of ended processes that could not be deleted
};

// Deletes at once the files of all processes that ended, damaged ones, too; as root of all users.
tl::expected<Removal, std::string> clear_ended_counters(const std::string& folder);

}  // namespace fibshim::tools
