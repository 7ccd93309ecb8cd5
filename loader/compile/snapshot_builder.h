// Turns a checked folder into a Snapshot: one contiguous block of plain structs.
#pragma once

#include "loader/compile/model.h"

namespace fibshim {

// Frees what LoaderApi::close frees.
struct SnapshotCloser {
  void operator()(const Snapshot* snapshot) const;
};
using SnapshotPtr = std::unique_ptr<const Snapshot, SnapshotCloser>;

// Fills in the model's bindings, in the order of the patterns, and calls `bound` now and then with
// how many are there. Returns false if no snapshot is wanted.
using BindModel = std::function<bool(const std::function<void(size_t count)>& bound)>;

// Fails if the block would outgrow its 32-bit offsets. `bind`: null if the model has its bindings.
// Its threads can bind what follows while `bound` adds what is there to the snapshot.
Result<SnapshotPtr> build_snapshot(const FolderModel& model, const BindModel& bind = nullptr);

// Returns the matcher of a snapshot of this process. It lives as long as the snapshot.
const SymbolMatcher& matcher_of(const Snapshot* snapshot);

// Returns the trust setting that the folder was opened with; it holds for the images, too.
Trust trust_of(const Snapshot* snapshot);

}  // namespace fibshim
