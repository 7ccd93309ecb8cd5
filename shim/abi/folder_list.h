// FIBSHIM_CONFIG names one config folder, or several with ':' between them. Of several, the first
// that has a pattern or solution wins. A path that contains ':' cannot be named; empty entries are
// skipped. With "new@10%:old", new serves a tenth of the shapes and old the rest. The folders with
// a share come first, and all have the same share.
#pragma once

#include <stdint.h>
#include <string.h>

#include "shim/abi/hash.h"

namespace fibshim {

inline constexpr char kFolderSeparator = ':';
inline constexpr uint32_t kMaxFolders = 16;

// Returns the next folder of `*list`, its length in `*length`, and advances `*list`. Null: no more.
inline const char* next_folder(const char** list, size_t* length) {
  while (**list == kFolderSeparator) ++*list;
  const char* const begin = *list;
  *length = strcspn(begin, ":");
  *list += *length;
  return *length == 0 ? nullptr : begin;
}

// Hundredths of a percent.
inline constexpr uint32_t kWholeShare = 10000;

// Strips the share from a folder's name (shortens `*length`) and returns it, or 0 if there is none.
inline uint32_t strip_share(const char* folder, size_t* length) {
  size_t at = *length;
  if (at == 0 || folder[at - 1] != '%') return 0;
  while (at != 0 && folder[at - 1] != '@' && folder[at - 1] != '/') --at;
  if (at < 2 || folder[at - 1] != '@') return 0;
  uint32_t share = 0;
  uint32_t places = 0;  // characters read from the decimal point on
  for (size_t i = at; i + 1 < *length; ++i) {
    const bool is_point = folder[i] == '.' && places == 0;
    if (!is_point && (folder[i] < '0' || folder[i] > '9')) return 0;
    if (is_point || places != 0) ++places;
    if (!is_point) share = share * 10 + static_cast<uint32_t>(folder[i] - '0');
    if (share > kWholeShare || places > 3) return 0;
  }
  for (uint32_t i = places == 0 ? 1 : places; i < 3; ++i) share *= 10;
  if (share == 0 || share > kWholeShare) return 0;
  *length = at - 1;
  return share;
}

// Mixes st_dev or st_ino of several folders into one number. Starting from 0, that of a single
// folder stays its own.
constexpr uint64_t mix_identity(uint64_t of_those_before, uint64_t next) {
  return of_those_before * kHashFactor + next;
}

}  // namespace fibshim
