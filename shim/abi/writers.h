// Whose a file or folder is and who else can write in it: one rule, in the same words, for the shim, the loader and the
// command. What follows from it is the caller's: FIBSHIM_TRUST, for example, lets a group write.
#pragma once

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

namespace fibshim {

// Who can write by the mode alone. Of a file with an ACL the bits of the group are the most that anybody named
// there has.
enum class Writers { owner, group, everybody };
inline Writers writers_of(mode_t mode) {
  return (mode & S_IWOTH) != 0   ? Writers::everybody
         : (mode & S_IWGRP) != 0 ? Writers::group
                                 : Writers::owner;
}

// Whether the folder has the sticky bit: others can add names then, but not exchange those that are there.
inline bool keeps_names(mode_t folder) { return (folder & S_ISVTX) != 0; }

// Root could write anything of ours: what is root's is as good as ours.
inline bool is_ours(uid_t owner) { return owner == geteuid() || owner == 0; }

// Whether we may change a file of this user.
inline bool is_ours_to_change(uid_t owner) { return owner == geteuid() || geteuid() == 0; }

// Why a file is not relied on, whose owner is `is_trusted`; null: it is. Who can make names in a folder can give
// any file of that disk a second one there.
inline const char* file_fault(const struct stat& file, bool is_trusted) {
  return !S_ISREG(file.st_mode) ? "it is not a regular file"
         : !is_trusted          ? "it belongs to another user"
         : file.st_nlink != 1   ? "it has several names (hard links), or none"
                                : nullptr;
}

// Why others could exchange what is in a folder of ours; null: they could not.
inline const char* folder_fault(const struct stat& folder) {
  if (!is_ours(folder.st_uid)) return "it belongs to another user";
  return writers_of(folder.st_mode) != Writers::owner && !keeps_names(folder.st_mode)
             ? "other users may write there (chmod go-w, or set the sticky bit)"
             : nullptr;
}

// Why others could exchange the folder itself, which need not exist; null: they could not.
inline const char* exchange_fault(const char* folder) {
  char above[PATH_MAX];
  size_t length = strlen(folder);
  while (length > 1 && folder[length - 1] == '/') --length;
  while (length > 0 && folder[length - 1] != '/') --length;
  if (length >= sizeof above) return nullptr;
  snprintf(above, sizeof above, "%.*s", static_cast<int>(length), folder);
  struct stat status;
  return stat(length == 0 ? "." : above, &status) == 0 &&
                 writers_of(status.st_mode) == Writers::everybody && !keeps_names(status.st_mode)
             ? "other users may exchange it: everybody may write in the folder that it lies in"
             : nullptr;
}

// Opens a folder, through a link of ours, too: where everybody can make names, a link may be anybody's. -1: `fault`
// says why; where that is null, errno does.
inline int open_folder(const char* path, const char** fault) {
  constexpr int kFlags = O_RDONLY | O_CLOEXEC | O_DIRECTORY;
  *fault = nullptr;
  const int folder = open(path, kFlags | O_NOFOLLOW);
  if (folder >= 0) return folder;
  const int failure = errno;
  struct stat link;
  if (lstat(path, &link) == 0 && S_ISLNK(link.st_mode)) {
    if (is_ours(link.st_uid)) return open(path, kFlags);
    *fault = "it is a symbolic link of another user";
  }
  errno = failure;
  return -1;
}

}  // namespace fibshim
