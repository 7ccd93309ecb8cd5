// Lets replacements in a rewritten graph begin before the preceding replacement has ended
// (programmatic dependent launch).
//
// A replacement with `pdl` waits for the one before it and only then lets the next begin. One
// without `pdl` begins when everything before it has ended. So only the directly preceding kernel
// may still run. A replacement with "next_may_begin" lets the next begin before its own wait if the
// shim tells it to. Then the kernel before it may still run as well, and so on. What a kernel reads
// before its wait must not be in memory that any of these may write.
#pragma once

#include "shim/graphs/node_rewrite.h"

namespace fibshim {

struct RewrittenNode {
  CUgraph graph;  // null: the node keeps its original, or the host has disabled it
  CUgraphNode node;
  const Snapshot* snapshot;
  const Solution* solution;
  NodeShape* shape;  // gets whether it begins early, and whether the next one does
};

// Returns false if the driver has made only part of the changes; the graph is unusable then.
bool let_nodes_begin_early(const Block<RewrittenNode>& nodes);

}  // namespace fibshim
