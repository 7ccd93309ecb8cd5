// FIBSHIM_CONFIG names one config folder, or several with ':' between them, of which the first that has something
// wins. A path that holds a ':' cannot be named; empty places are left out.
#pragma once

#include <stdint.h>
#include <string.h>

namespace fibshim {

inline constexpr char kFolderSeparator = ':';
inline constexpr uint32_t kMaxFolders = 16;

// The next folder of `*list`, which moves on; its length in *length. Null: there are no more.
inline const char* next_folder(const char** list, size_t* length) {
  while (**list == kFolderSeparator) ++*list;
  const char* const begin = *list;
  *length = strcspn(begin, ":");
  *list += *length;
  return *length == 0 ? nullptr : begin;
}

// st_dev, or st_ino, of several folders in one number: of a single one its own.
constexpr uint64_t mix_identity(uint64_t of_those_before, uint64_t next) {
  return of_those_before * 0x9e3779b97f4a7c15u + next;
}

}  // namespace fibshim
