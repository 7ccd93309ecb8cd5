// Lets replacements in a rewritten graph begin before the replacement before them has ended (programmatic dependent launch).
//
// Both wait by themselves, and let the next begin after their wait only, so the one directly before is the only kernel
// that may still run. What a kernel reads before its wait must not lie in memory that this one has a pointer to.
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

// False: the driver has changed half of an edge, and the graph is of no more use.
bool let_nodes_begin_early(const Block<RewrittenNode>& nodes);

}  // namespace fibshim
