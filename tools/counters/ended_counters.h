// Deletes the counters files of processes that ended: a day after that was first seen, or at once.
//
// A file goes only when all of this holds: its name is that of a counters file, its process (pid and start
// time) is gone, no process has it open for writing or mapped (one of another container may), and it is a
// regular file. The folder must not be one in which others could exchange files, nothing is followed, and the
// folder stays the one that was opened, whoever renames it.
#pragma once

#include "tools/counters/counters_files.h"

namespace fibshim::tools {

// Deletes the caller's own files whose process was seen to be gone a day ago or earlier. The first call that
// sees it marks the file: it takes the write permission and sets the time of change. A file that cannot be
// read as counters stays, to be seen. Nothing that hinders it is an error: a reading reports that itself.
void delete_old_counters(const std::string& folder);

struct Removal {
  std::vector<std::string> removed;
  std::vector<RefusedFile> kept;  // files of ended processes that could not be deleted
};

// Deletes the files of all processes that ended, at once, also damaged ones; those of other users as root.
tl::expected<Removal, std::string> clear_ended_counters(const std::string& folder);

}  // namespace fibshim::tools
