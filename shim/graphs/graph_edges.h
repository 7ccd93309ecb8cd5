// The edges of a graph at once, by its nodes' numbers; and what several nodes that become one have of them.
#pragma once

#include "shim/graphs/graph_nodes.h"
#include "shim/plan/rewrite_rules.h"

namespace fibshim {

// Of one graph, without its child graphs.
struct GraphShape {
  Block<CUgraphNode> nodes;  // sorted
  Block<bool>
      has_other_ports;  // somebody waits for something else of it than its end, or its word to begin early
  Dag dag;

  // False: the driver does not tell, or there is no memory.
  bool read(CUgraph graph);
  uint32_t number_of(CUgraphNode node) const;  // UINT32_MAX: it is none of them

 private:
  Block<uint32_t> room_;
};

// Destroys all nodes but the first, which gets their edges: all of them full. False: the driver refuses, and the
// graph is of no more use.
bool merge_nodes(CUgraph graph, const CUgraphNode* nodes, uint32_t count);

}  // namespace fibshim
