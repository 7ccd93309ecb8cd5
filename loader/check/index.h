// A prebuilt index: the snapshot of a folder that was checked once, and what it was made from, in
// <folder>/.fibshim-index. `fibshim check --write-index` writes it; opening a folder uses it.
//
// It must never stand for another folder than the one at hand. Two steps decide:
//   1. Names and stamps. Every folder and file that the snapshot was made from is looked at with
//      stat (inode, size, mtime, ctime, mode, owner), nothing is opened: 1.4 us each. A file that is
//      added or removed changes its folder's mtime, one that is written its own ctime, which nobody
//      can set back.
//   2. Content, where a stamp differs, as it does for every file after cp, git checkout or an image
//      layer's unpacking. If it is a folder's, all names are listed and compared; files of another
//      stamp are read, and their XXH3-128 compared.
// Reading every file every time would be simpler, but opening 20,000 takes longer than the whole
// start may. The writer takes care that a stamp tells all: it refuses files that were changed after
// it began, by the file system's own clock, so that a later change has a later ctime.
//
// The index is as trusted as the folder, since who can write it can write the solutions as well:
// the same FIBSHIM_TRUST holds for it. Nevertheless its content is checked against its hash, its
// version, byte order and the loader that wrote it, every offset in it, and what comparing it would
// cost (no more than a folder without one may), before anything is used; and every image's SHA-256
// is checked before the driver gets it, index or not. What does not fit makes the folder be loaded
// as if there were none. Where a key is required, the index' own bytes must have been signed
// (manifest.h): then what it says is the signer's word, and nothing else of the folder is parsed.
// It is read, not mapped: a mapped file that somebody truncates takes the engine down.
#ifndef FIBSHIM_LOADER_CHECK_INDEX_H_
#define FIBSHIM_LOADER_CHECK_INDEX_H_

#include <string>

#include "loader/check/check.h"
#include "loader/read/file.h"
#include "loader/read/limits.h"
#include "loader/read/result.h"

namespace fibshim {

inline constexpr char kIndexFile[] = ".fibshim-index";

// Folders and files that an index may stand for: the three folders and the settings, what may lie in
// them, and images that lie elsewhere.
inline constexpr size_t kMaxIndexEntries = 4 + 2 * kMaxFolderFiles;

struct OpenedIndex {
  SnapshotPtr snapshot;  // null: there is none that can be used
  std::string refusal;   // why the one that is there is not used; empty when there is none
  ManifestEntry entry;   // of the one that is used, where wants_entry
};

struct IndexOptions {
  // Who must have signed the index, as in CheckOptions.
  std::string required_key = required_key_in_force();
  bool wants_entry = false;
  Trust trust = trust_in_force();
};

// The snapshot in the folder's index, if it stands for the folder as it is now.
OpenedIndex open_index(const std::string& folder, const IndexOptions& options = {});

// The same of an index' bytes, whoever has signed them. `root`: the folder, held open.
OpenedIndex use_index(const std::string& folder, const RootFolder& root, std::string bytes,
                      const IndexOptions& options = {});

// An index of a folder that was checked and has a snapshot.
std::string bytes_of_index(const CheckReport& report);

// Checks the folder into *report and writes its index, unless there is an error. The message of a
// failure names the path.
Result<void> write_index(const std::string& folder, const CheckOptions& options,
                         CheckReport* report);

}  // namespace fibshim

#endif  // FIBSHIM_LOADER_CHECK_INDEX_H_
