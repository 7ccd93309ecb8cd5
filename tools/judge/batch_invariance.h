// Does a row get the same bits whatever stands beside it? `verify --batch-invariant`.
//
// The rows are those of the definition's first variable axis, which must be an axis of every output. 256 rows are
// made once. Each is computed in batches of many sizes, from 1 to 256, at every place of each batch, and what comes
// out is compared, byte by byte, with what the smallest batch gave for that row. Which solution serves a batch is the
// plan's to say: solutions that share the batches of a definition are compared with one another.
#pragma once

#include "tools/judge/cases.h"

namespace fibshim::judge {

// `chosen`: indexes of the folder's solutions. The exit code: 1 where one is not invariant and does not say so itself
// ("batch_invariant": false), or nothing was judged.
int check_batch_invariance(const Folder& folder, const std::vector<uint32_t>& chosen,
                           const JudgeOptions& options, const DeviceInfo& device,
                           const char* command);

}  // namespace fibshim::judge
