// What the paths of config folders lead to, to tell whether a link was repointed.
#pragma once

#include <stdint.h>

namespace fibshim {

struct FolderIdentity {
  bool is_there;
  uint64_t device;  // of several folders, mix_identity()
  uint64_t inode;
  uint64_t path_hash;  // of its absolute path, links resolved

  bool operator==(const FolderIdentity&) const = default;
};
// `list`: as FIBSHIM_CONFIG has it. Of several folders all must be there.
FolderIdentity identify_folder(const char* list);

}  // namespace fibshim
