// Plans one kernel node of a copied graph, and turns it into its replacement.
//
// Parameters are read from the originals' graph, whose nodes are not changed, and set in a copy of
// it. Slow path: driver calls. Requires a read section that lasts until the plan has been used.
#pragma once

#include "shim/graphs/graph_nodes.h"
#include "shim/launch/node_plan.h"

namespace fibshim {

// The properties of a node, besides its parameters, that a replacement changes. An exec keeps them
// from its instantiation.
struct NodeShape {
  uint32_t cluster[3];  // 0: the original's
  uint8_t drops_cooperation;
  uint8_t has_full_edges;
  uint8_t begins_early;      // before the preceding replacement has ended (early_nodes.h)
  uint8_t lets_begin_early;  // the following replacement begins early
  uint8_t has_workspace;     // which the variant owns
  uint32_t
      runs_in;  // 1 + the index of the node that runs for all kernels of its rewrite; 0: no rewrite

  bool has_early_edge() const { return begins_early != 0 || lets_begin_early != 0; }
};
inline bool is_same_shape(const NodeShape& one, const NodeShape& other) {
  return __builtin_memcmp(&one, &other, sizeof one) == 0;
}

struct PlannedNode {
  NodePlan plan;
  NodeShape shape;  // zero if the original stays

  bool is_redirect() const { return plan.launch.action == LaunchAction::redirect; }
  // True if only the node's parameters change.
  bool has_plain_shape() const { return is_same_shape(shape, NodeShape{}); }
};

bool read_kernel(CUgraphNode node, NodeParams* params);

// Properties of a node of a kept graph that never change. Each is read when it is first needed,
// since that takes several driver calls.
struct NodeFacts {
  NodeAttributes attributes;
  NodeEdges edges;
  bool has_attributes;
  bool has_edges;
};
const NodeAttributes& attributes_of(CUgraphNode node, NodeFacts* facts);

// Plans the node `kept` of the originals' graph with `params` in it.
void plan_copied_node(CUgraphNode kept, const NodeParams& params, NodeFacts* facts,
                      PlannedNode* out);

// Fills in the shape that a planned redirect gives the node.
void shape_replacement(const NodeAttributes& kept, PlannedNode* planned);

// Turns `copy`, a node of `graph` that holds the original, into what was planned. Returns false if
// the driver refuses; the copied graph is unusable then.
bool rewrite_node(CUgraph graph, CUgraphNode copy, const PlannedNode& planned);

}  // namespace fibshim
