// The failures of one folder's solutions in a process that has used several folders: launches that
// failed, and findings of shadow checks. For `rollout`, which judges the folder that it moves to,
// not the one before.
#pragma once

#include "tools/counters/counters_files.h"

namespace fibshim::tools {

// The folder that is judged, or the list of folders in which it serves a share of the launches.
struct FolderInQuestion {
  std::string digest;
  uint32_t share = 0;  // shim/abi/folder_list.h; 0: it serves all launches
};

struct FolderFindings {
  uint64_t errors = 0, checks = 0, mismatches = 0;
};
FolderFindings findings_in(const ProcessCounters& process, const FolderInQuestion& folder);

}  // namespace fibshim::tools
