// What the parts of the simulated driver that deal with graphs share (graph.cc, graph_edges.cc, graph_nodes.cc).
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

// Everything below: lock held.

// The exec's own node for one of the graph that it was made from; null for any other.
Node* node_of(CUgraphExec handle, CUgraphNode node);

// Makes a node, lets `fill` set it up, and takes it back when something is wrong.
CUresult add_node(CUgraphNode* handle, CUgraph graph, const CUgraphNode* dependencies,
                  const CUgraphEdgeData* edges, size_t count, CUgraphNodeType type,
                  const std::function<CUresult(Node&)>& fill);

// What nodes are made of (graph_nodes.cc).
CUresult set_memset(Node& node, const CUDA_MEMSET_NODE_PARAMS& params);
CUresult set_memcpy(Node& node, const CUDA_MEMCPY3D& params);
CUresult set_host(Node& node, CUhostFn function, void* data);
CUresult set_event(Node& node, CUevent event);
CUresult set_conditional(Node& node, CUDA_CONDITIONAL_NODE_PARAMS* params);

// What graphs keep alive (user_objects.cc).
void hold_objects(Graph& graph, const UserObjects& objects);
void release_objects(const UserObjects& objects);

// Whether cuGraphClone, and a child graph node, can copy it: neither memory nor conditional nodes.
bool can_be_cloned(const Graph& graph);

// cuGraphAdd*Node: a node of that type, where what it is made of is there; `fill` sets it up.
#define ADD_NODE(name, more_parameters, is_there, type, fill)                                    \
  CUresult name(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies, size_t count, \
                WITHOUT_PARENTHESES more_parameters) {                                           \
    SIM_ENTER_LOCKED(name);                                                                      \
    if (!(is_there)) return CUDA_ERROR_INVALID_VALUE;                                            \
    return add_node(node, graph, dependencies, nullptr, count, type,                             \
                    [&](Node& made) { return fill; });                                           \
  }
#define WITHOUT_PARENTHESES(...) __VA_ARGS__

// What is read of a node, or set, by a pointer: neither may be missing.
#define ON_NODE(name, parameters, node_handle, pointer, result)                 \
  CUresult name parameters {                                                    \
    SIM_ENTER_LOCKED(name);                                                     \
    Node* node = node_handle;                                                   \
    if (node == nullptr || pointer == nullptr) return CUDA_ERROR_INVALID_VALUE; \
    return result;                                                              \
  }

}  // namespace simcuda
