// Turns a checked folder into a Snapshot: one contiguous block of plain structs.
#ifndef FIBSHIM_LOADER_COMPILE_SNAPSHOT_BUILDER_H_
#define FIBSHIM_LOADER_COMPILE_SNAPSHOT_BUILDER_H_

#include <stddef.h>

#include <string>
#include <string_view>

#include "loader/check/check.h"
#include "loader/compile/model.h"
#include "loader/read/result.h"
#include "loader/compile/symbol_match.h"

namespace fibshim {

// Fails when the block would outgrow its 32-bit offsets.
Result<SnapshotPtr> build_snapshot(const FolderModel& model);

// The block without the root's path, which ends it: what lies in one place may be mounted in
// another.
std::string_view movable_part(const Snapshot& snapshot);

// Memory for a snapshot: whoever has its movable part copies it to bytes(), and finish() ends it
// with the root's path and builds the matcher. Throws std::bad_alloc.
class SnapshotMemory {
 public:
  SnapshotMemory(size_t movable_bytes, const std::string& root, Trust trust);
  ~SnapshotMemory();
  SnapshotMemory(const SnapshotMemory&) = delete;
  SnapshotMemory& operator=(const SnapshotMemory&) = delete;

  char* bytes() const;
  SnapshotPtr finish();

 private:
  void* memory_;
  size_t movable_bytes_;
  std::string root_;
  Trust trust_;
};

// The matcher that belongs to a snapshot of this process; lives as long as the snapshot.
const SymbolMatcher& matcher_of(const Snapshot* snapshot);

// Who may be able to write the images: whom the folder itself was trusted with.
Trust trust_of(const Snapshot* snapshot);

}  // namespace fibshim

#endif  // FIBSHIM_LOADER_COMPILE_SNAPSHOT_BUILDER_H_
