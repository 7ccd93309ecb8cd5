// Turns a checked folder into a Snapshot: one contiguous block of plain structs.
#pragma once

#include "loader/compile/model.h"

namespace fibshim {

// Frees what LoaderApi::close frees.
struct SnapshotCloser {
  void operator()(const Snapshot* snapshot) const;
};
using SnapshotPtr = std::unique_ptr<const Snapshot, SnapshotCloser>;

// Fails if the block would outgrow its 32-bit offsets.
Result<SnapshotPtr> build_snapshot(const FolderModel& model);

// Returns the matcher of a snapshot of this process. It lives as long as the snapshot.
const SymbolMatcher& matcher_of(const Snapshot* snapshot);

// Returns the trust setting that the folder was opened with; it holds for the images, too.
Trust trust_of(const Snapshot* snapshot);

}  // namespace fibshim
