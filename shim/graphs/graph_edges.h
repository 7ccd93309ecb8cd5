// Reads all edges of a graph at once, as numbers of its nodes, and merges nodes.
#pragma once

#include "shim/graphs/graph_nodes.h"
#include "shim/plan/rewrite_rules.h"

namespace fibshim {

// The nodes and edges of one graph, without its child graphs.
struct GraphShape {
  Block<CUgraphNode> nodes;     // sorted
  Block<bool> has_other_ports;  // has an edge that is neither plain nor early
  Dag dag;

  // Returns false if the driver does not report the graph, or there is no memory.
  bool read(CUgraph graph);
  // Returns UINT32_MAX if it is not in the graph. `near`: it most likely has this number or the next.
  uint32_t number_of(CUgraphNode node, uint32_t near = UINT32_MAX) const;

 private:
  Block<uint32_t> room_;
};

// True if each node of the graph but the first waits for one other, and no two for the same.
bool is_chain(CUgraph graph);

// Lists the other nodes that any of these depends on, or that depend on any, each once.
bool list_around(const CUgraphNode* nodes, uint32_t count, Block<CUgraphNode>* before,
                 Block<CUgraphNode>* after);

// Makes all edges to and from these nodes plain: each node waits for the end of those before it.
// False: the driver refuses.
bool make_all_edges_full(CUgraph graph, const CUgraphNode* nodes, uint32_t count);

// Destroys all nodes but the first, which gets the edges of all, as plain ones. Returns false if
// the driver refuses; the graph is unusable then.
bool merge_nodes(CUgraph graph, const CUgraphNode* nodes, uint32_t count);

}  // namespace fibshim
