// The edges of a graph at once, by its nodes' numbers; and what several nodes that become one have of them.
#pragma once

#include "shim/graphs/graph_nodes.h"
#include "shim/plan/rewrite_rules.h"

namespace fibshim {

// The nodes and edges of one graph, without its child graphs.
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

// The nodes beside these that any of them waits for, and those that wait for any of them, each once.
bool list_around(const CUgraphNode* nodes, uint32_t count, Block<CUgraphNode>* before,
                 Block<CUgraphNode>* after);

// Makes the nodes wait until all of each node before them has ended, and the nodes after them
// likewise. False: the driver refuses.
bool make_all_edges_full(CUgraph graph, const CUgraphNode* nodes, uint32_t count);

// Destroys all nodes but the first, which gets their edges: all of them full. False: the driver refuses, and the
// graph is of no more use.
bool merge_nodes(CUgraph graph, const CUgraphNode* nodes, uint32_t count);

}  // namespace fibshim
