// One kernel node of a copied graph: planned, and made its replacement.
//
// Parameters are read from the originals' graph, whose nodes stay as they are, and set in a copy of that. Slow path:
// driver calls. Within a read section, in which the plan must also be used.
#pragma once

#include "shim/graphs/graph_nodes.h"
#include "shim/launch/node_plan.h"

namespace fibshim {

// The properties of a node, beside its parameters, that a replacement changes. An exec keeps them
// as they were when it was instantiated.
struct NodeShape {
  uint32_t cluster[3];  // 0: as the original's
  uint8_t drops_cooperation;
  uint8_t has_full_edges;
  uint8_t begins_early;      // before the replacement before it has ended (early_nodes.h)
  uint8_t lets_begin_early;  // the one after it does
  uint32_t
      runs_in;  // of a rewrite: one more than the index of the node that runs for all its kernels; 0: of none

  bool has_early_edge() const { return begins_early != 0 || lets_begin_early != 0; }
};
inline bool is_same_shape(const NodeShape& one, const NodeShape& other) {
  return __builtin_memcmp(&one, &other, sizeof one) == 0;
}

struct PlannedNode {
  NodePlan plan;
  NodeShape shape;  // zero where the original stays

  bool is_redirect() const { return plan.launch.action == LaunchAction::redirect; }
  // The parameters are all that changes of the node.
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

// Plans what `params` put into the node `kept` of the originals' graph.
void plan_copied_node(CUgraphNode kept, const NodeParams& params, NodeFacts* facts,
                      PlannedNode* out);

// Fills in the shape that a planned redirect gives the node.
void shape_replacement(const NodeAttributes& kept, PlannedNode* planned);

// Turns `copy`, a node of `graph` that holds the original, into what was planned. False: the driver
// refuses, and the copy of the graph cannot be used any more.
bool rewrite_node(CUgraph graph, CUgraphNode copy, const PlannedNode& planned);

}  // namespace fibshim
