// Identifies the folders that the paths of config folders lead to, to detect a repointed link.
#pragma once

#include <stdint.h>

namespace fibshim {

struct FolderIdentity {
  bool is_there;
  uint64_t device;  // st_dev; of several folders, mix_identity()
  uint64_t inode;
  uint64_t path_hash;  // of the absolute paths, links resolved, and the shares

  bool operator==(const FolderIdentity&) const = default;
};
// `list`: in the form of FIBSHIM_CONFIG. `is_there` is true only if all of its folders exist.
FolderIdentity identify_folder(const char* list);

}  // namespace fibshim
