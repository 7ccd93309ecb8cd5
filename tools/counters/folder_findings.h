// What has come of one folder's solutions in a process that has been in several: launches that failed in them, and what shadow
// checks have found of them. For `rollout`, which judges the folder that it moves to, not the one before.
#pragma once

#include "tools/counters/counters_files.h"

namespace fibshim::tools {

// The folder, or the list of folders of which it has a share.
struct FolderInQuestion {
  std::string digest;
  uint32_t share = 0;  // shim/abi/folder_list.h; 0: it has all launches
};

struct FolderFindings {
  uint64_t errors = 0, checks = 0, mismatches = 0;
};
FolderFindings findings_in(const ProcessCounters& process, const FolderInQuestion& folder);

}  // namespace fibshim::tools
