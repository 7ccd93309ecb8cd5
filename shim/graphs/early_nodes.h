// Lets replacements in a rewritten graph begin before the replacement before them has ended (programmatic dependent
// launch).
//
// Each either waits for the one before it and lets the next begin after that, or has no `pdl` and begins when all
// before it has ended: so the one directly before is the only kernel that may still run. One that takes
// "next_may_begin" lets the next begin before its wait where the shim says so: then the one before it may still run,
// too, and so on. What a kernel reads before its wait must not lie in memory that any of these may write.
#pragma once

#include "shim/graphs/node_rewrite.h"

namespace fibshim {

struct RewrittenNode {
  CUgraph graph;  // null: the node keeps its original, or the host has disabled it
  CUgraphNode node;
  const Snapshot* snapshot;
  const Solution* solution;
  NodeShape* shape;  // says afterwards that it begins early, or that the next does
};

// False: the driver has changed a part of what must go together, and the graph is of no more use.
bool let_nodes_begin_early(const Block<RewrittenNode>& nodes);

}  // namespace fibshim
