// Turns a checked folder into a Snapshot: one contiguous block of plain structs.
#ifndef FIBSHIM_LOADER_SNAPSHOT_BUILDER_H_
#define FIBSHIM_LOADER_SNAPSHOT_BUILDER_H_

#include "loader/check.h"
#include "loader/model.h"
#include "loader/result.h"
#include "loader/symbol_match.h"

namespace fibshim {

// Takes the patterns' symbols out of the model. Fails when the block would outgrow its 32-bit
// offsets.
Result<SnapshotPtr> build_snapshot(FolderModel* model);

// The matcher that belongs to a snapshot of this process; lives as long as the snapshot.
const SymbolMatcher& matcher_of(const Snapshot* snapshot);

}  // namespace fibshim

#endif  // FIBSHIM_LOADER_SNAPSHOT_BUILDER_H_
