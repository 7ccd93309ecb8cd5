#include "shim/life/folder_identity.h"

#include <limits.h>
#include <stdlib.h>
#include <sys/stat.h>

namespace fibshim {

FolderIdentity identify_folder(const char* path) {
  FolderIdentity identity = {};
  char resolved[PATH_MAX];
  struct stat status;
  if (path[0] == 0 || realpath(path, resolved) == nullptr || stat(resolved, &status) != 0) {
    return identity;
  }
  identity.is_there = true;
  identity.device = status.st_dev;
  identity.inode = status.st_ino;
  identity.path_hash = 0xcbf29ce484222325u;
  for (const char* at = resolved; *at != 0; ++at) {
    identity.path_hash = (identity.path_hash ^ static_cast<unsigned char>(*at)) * 0x100000001b3u;
  }
  return identity;
}

}  // namespace fibshim
