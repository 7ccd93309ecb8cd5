// Turns a checked folder into a Snapshot: one contiguous block of plain structs.
#pragma once

#include "loader/compile/model.h"

namespace fibshim {

// Frees what LoaderApi::close frees.
struct SnapshotCloser {
  void operator()(const Snapshot* snapshot) const;
};
using SnapshotPtr = std::unique_ptr<const Snapshot, SnapshotCloser>;

// Fails when the block would outgrow its 32-bit offsets.
Result<SnapshotPtr> build_snapshot(const FolderModel& model);

// The matcher that belongs to a snapshot of this process; lives as long as the snapshot.
const SymbolMatcher& matcher_of(const Snapshot* snapshot);

// Who may be able to write the images: whom the folder itself was trusted with.
Trust trust_of(const Snapshot* snapshot);

}  // namespace fibshim
