// Makes patterns for solutions to which none of the folder leads, so that these are launched
// through the plan, too.
#pragma once

#include "tools/lint/verify_block.h"

namespace fibshim::judge {

// Adds a pattern with one parameter for each name that the launch block uses, and has the loader
// compile it with the solution. If that fails, the solution's error says why. Replaces *snapshot if
// a pattern was added.
Result<void> add_missing_patterns(const VerifyBlocks& verify_blocks, FolderModel* model,
                                  SnapshotPtr* snapshot);

}  // namespace fibshim::judge
