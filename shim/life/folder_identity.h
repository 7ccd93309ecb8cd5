// What a path to a config folder leads to, to tell whether a link was repointed.
#pragma once

#include <stdint.h>

namespace fibshim {

struct FolderIdentity {
  bool is_there;
  uint64_t device;
  uint64_t inode;
  uint64_t path_hash;  // of its absolute path, links resolved

  bool operator==(const FolderIdentity&) const = default;
};
FolderIdentity identify_folder(const char* path);

}  // namespace fibshim
