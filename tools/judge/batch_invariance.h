// `verify --batch-invariant`: does a row get the same bits whatever other rows are in its batch?
//
// The rows are those of the definition's first variable axis, which must be an axis of every
// output. 256 rows are made once. Each is computed in batches of many sizes, from 1 to 256, at
// every place of each batch, and its result is compared, byte by byte, with the result of the
// smallest batch for that row. The plan decides which solution serves a batch: so solutions that
// share the batches of a definition are compared with one another.
#pragma once

#include "tools/judge/cases.h"

namespace fibshim::judge {

// `chosen`: indexes of the folder's solutions. Returns the exit code: 1 if a solution is not
// invariant and does not say so itself ("batch_invariant": false), or if nothing was judged.
int check_batch_invariance(const Folder& folder, const std::vector<uint32_t>& chosen,
                           const JudgeOptions& options, const DeviceInfo& device,
                           const char* command);

}  // namespace fibshim::judge
