#include "shim/life/folder_identity.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "shim/abi/folder_list.h"
#include "shim/abi/hash.h"

namespace fibshim {
namespace {

// Adds one folder. False: it does not exist.
bool add_folder(const char* path, uint32_t share, FolderIdentity* identity) {
  char resolved[PATH_MAX];
  struct stat status;
  if (realpath(path, resolved) == nullptr || stat(resolved, &status) != 0) return false;
  identity->device = mix_identity(identity->device, status.st_dev);
  identity->inode = mix_identity(identity->inode, status.st_ino);
  // Includes the NUL, which separates the paths.
  identity->path_hash = hash_bytes(identity->path_hash + share, resolved, strlen(resolved) + 1);
  return true;
}

}  // namespace

FolderIdentity identify_folder(const char* list) {
  FolderIdentity identity = {};
  identity.path_hash = kEmptyHash;
  size_t length = 0;
  while (const char* const folder = next_folder(&list, &length)) {
    char path[PATH_MAX];
    const uint32_t share = strip_share(folder, &length);
    if (length >= sizeof path) return {};
    memcpy(path, folder, length);
    path[length] = 0;
    if (!add_folder(path, share, &identity)) return {};
    identity.is_there = true;
  }
  return identity.is_there ? identity : FolderIdentity{};
}

}  // namespace fibshim
