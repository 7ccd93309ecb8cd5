// Reads and checks a whole config folder: what `fibshim check` prints and what the shim loads are
// one and the same, so they cannot disagree.
#ifndef FIBSHIM_LOADER_CHECK_CHECK_H_
#define FIBSHIM_LOADER_CHECK_CHECK_H_

#include <stdint.h>

#include <memory>
#include <string>
#include <vector>

#include "loader/read/diagnostics.h"
#include "loader/read/folder.h"
#include "loader/read/manifest.h"
#include "loader/read/signature.h"
#include "shim/abi/snapshot.h"

namespace fibshim {

struct FolderModel;

// Frees what LoaderApi::close frees.
struct SnapshotCloser {
  void operator()(const Snapshot* snapshot) const;
};
using SnapshotPtr = std::unique_ptr<const Snapshot, SnapshotCloser>;

// Everything that a snapshot was made from.
struct FileRecord {
  std::string relative;
  FileStamp stamp;
  uint64_t digest[2];  // XXH3-128 of the bytes
};
struct FolderManifest {
  std::vector<PathStamp> folders;
  std::vector<FileRecord> files;
  std::vector<ManifestEntry> entries;  // of the files, where CheckOptions asks for them
};

struct CheckOptions {
  // Findings that change nothing about loading: an engine does without.
  bool wants_advice = false;
  // Whether an index that is there stands for the folder.
  bool wants_index_current = false;
  // Who must have signed the folder, as read_public_key() takes it; empty: nobody.
  std::string required_key = required_key_in_force();
  // Who may be able to write it.
  Trust trust = trust_in_force();
  // What a signature of the folder would stand for.
  bool wants_entries = false;
  // Compute capabilities, such as 90, that every solution should have an image for.
  std::vector<uint32_t> sms;
  // Gets what the folder was read as, complete only when the report has a snapshot.
  FolderModel* model = nullptr;
};

struct CheckReport {
  std::vector<Diagnostic> diagnostics;  // all of them, by file, line and column
  uint32_t error_count = 0;             // of any effect; `check` exits 1 when there is one
  uint32_t warning_count = 0;
  uint32_t note_count = 0;
  uint32_t invalid_count = 0;  // errors that keep the folder from loading

  uint32_t definition_count = 0;  // files that were read as such
  uint32_t solution_count = 0;
  uint32_t pattern_count = 0;
  uint32_t broken_solution_count = 0;
  uint32_t ready_binding_count = 0;  // pattern and solution pairs that can redirect launches
  uint32_t refused_binding_count = 0;

  SnapshotPtr snapshot;  // null when invalid_count is not 0
  FolderManifest manifest;
};

// Paths in the report begin with `folder` as it was given. Never throws: a lack of memory is a
// diagnostic too.
CheckReport check_folder(const std::string& folder, const CheckOptions& options = {}) noexcept;

}  // namespace fibshim

#endif  // FIBSHIM_LOADER_CHECK_CHECK_H_
