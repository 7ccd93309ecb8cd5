// Shared by the parts of the simulated driver that implement graphs (graph.cc, graph_edges.cc,
// graph_nodes.cc).
#pragma once

#include <algorithm>
#include <functional>

#include "tests/driver/driver.h"

namespace simcuda {

inline Graph* find_graph(CUgraph handle) { return driver().pools.graphs.find(handle, Kind::graph); }
inline Node* find_node(CUgraphNode handle) { return driver().pools.nodes.find(handle, Kind::node); }
inline GraphExec* find_exec(CUgraphExec handle) {
  return driver().pools.graph_execs.find(handle, Kind::graph_exec);
}

// Everything below requires the lock.

// Returns the exec's own node for a node of the graph that it was made from; null for any other
// node.
Node* node_of(CUgraphExec handle, CUgraphNode node);

// Makes a node and lets `fill` set it up. Removes the node if that fails.
CUresult add_node(CUgraphNode* handle, CUgraph graph, const CUgraphNode* dependencies,
                  const CUgraphEdgeData* edges, size_t count, CUgraphNodeType type,
                  const std::function<CUresult(Node&)>& fill);

// Sets the parameters of nodes (graph_nodes.cc).
CUresult set_memset(Node& node, const CUDA_MEMSET_NODE_PARAMS& params);
CUresult set_memcpy(Node& node, const CUDA_MEMCPY3D& params);
CUresult set_host(Node& node, CUhostFn function, void* data);
CUresult set_event(Node& node, CUevent event);
CUresult set_conditional(Node& node, CUDA_CONDITIONAL_NODE_PARAMS* params);

// The user objects that graphs keep alive (user_objects.cc).
void hold_objects(Graph& graph, const UserObjects& objects);
void release_objects(const UserObjects& objects);

// True if cuGraphClone and a child graph node can copy it: it has neither memory nor conditional
// nodes.
bool can_be_cloned(const Graph& graph);

// Defines cuGraphAdd*Node: adds a node of that type if its parameters are there (`is_there`);
// `fill` sets it up.
#define ADD_NODE(name, more_parameters, is_there, type, fill)                                    \
  CUresult name(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies, size_t count, \
                WITHOUT_PARENTHESES more_parameters) {                                           \
    SIM_ENTER_LOCKED(name);                                                                      \
    if (!(is_there)) return CUDA_ERROR_INVALID_VALUE;                                            \
    return add_node(node, graph, dependencies, nullptr, count, type,                             \
                    [&](Node& made) { return fill; });                                           \
  }
#define WITHOUT_PARENTHESES(...) __VA_ARGS__

// Defines an entry point that reads or sets a node through a pointer. Neither may be null.
#define ON_NODE(name, parameters, node_handle, pointer, result)                 \
  CUresult name parameters {                                                    \
    SIM_ENTER_LOCKED(name);                                                     \
    Node* node = node_handle;                                                   \
    if (node == nullptr || pointer == nullptr) return CUDA_ERROR_INVALID_VALUE; \
    return result;                                                              \
  }

}  // namespace simcuda
