// The plan of a kernel node of a graph.
#pragma once

#include "shim/graphs/graphs.h"

namespace fibshim {

// What a node must be made of in the original's place.
struct NodePlan {
  LaunchPlan launch;
  NodeParams params;  // the replacement's; valid while the plan lives
};

// Plans a node, counting what does not lead to a redirect. Returns the launch plan's action.
LaunchAction plan_node(const NodeParams& original, NodePlan* plan);

// Before a redirected node is made or set: copies `original`, and lets the replacement take its arguments from
// the copy. The host's may lie in the node itself, whose memory the driver gives up when the node is set.
// Null: no memory.
SavedNode* save_original(const NodeParams& original, NodePlan* plan);

}  // namespace fibshim
