// The edges of graphs, with their data: the port of the first node that lets the second begin.
#include <string.h>

#include <vector>

#include "tests/driver/graph.h"

namespace simcuda {
namespace {

bool is_same(const CUgraphEdgeData& one, const CUgraphEdgeData& other) {
  return memcmp(&one, &other, sizeof one) == 0;
}
bool is_plain(const CUgraphEdgeData& data) { return is_same(data, CUgraphEdgeData{}); }

// Only kernels have ports, and a programmatic edge connects two kernels.
bool is_valid(const Node& from, const Node& to, const CUgraphEdgeData& data) {
  if (is_plain(data)) return true;
  const bool is_kernel = from.type == CU_GRAPH_NODE_TYPE_KERNEL;
  if (data.to_port != 0 || data.from_port > CU_GRAPH_KERNEL_NODE_PORT_LAUNCH_ORDER) return false;
  if (data.type == CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC) {
    return is_kernel && to.type == CU_GRAPH_NODE_TYPE_KERNEL &&
           data.from_port != CU_GRAPH_KERNEL_NODE_PORT_DEFAULT;
  }
  return is_kernel && data.from_port == CU_GRAPH_KERNEL_NODE_PORT_LAUNCH_ORDER;
}

// One edge as the API lists it.
struct Edge {
  Node* from;
  Node* to;
  CUgraphEdgeData data;
};

std::vector<Edge> edges_into(Node& node) {
  std::vector<Edge> out;
  for (size_t i = 0; i < node.dependencies.size(); ++i)
    out.push_back({node.dependencies[i], &node, node.dependency_data[i]});
  return out;
}

std::vector<Edge> edges_of(const Graph& graph) {
  std::vector<Edge> out;
  for (Node* node : graph.nodes)
    for (const Edge& edge : edges_into(*node)) out.push_back(edge);
  return out;
}

std::vector<Edge> edges_out_of(const Node& node) {
  std::vector<Edge> out;
  for (Node* after : node.graph->nodes)
    for (size_t i = 0; i < after->dependencies.size(); ++i)
      if (after->dependencies[i] == &node)
        out.push_back({after->dependencies[i], after, after->dependency_data[i]});
  return out;
}

// Writes edges as the API does: only the count if the arrays are null. A form without edge data
// fails if an edge has data.
CUresult list_edges(const std::vector<Edge>& edges, CUgraphNode* from, CUgraphNode* to,
                    CUgraphEdgeData* data, size_t* count) {
  if (count == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (from == nullptr && to == nullptr) {
    if (data != nullptr) return CUDA_ERROR_INVALID_VALUE;
    *count = edges.size();
    return CUDA_SUCCESS;
  }
  if (data == nullptr && !std::all_of(edges.begin(), edges.end(),
                                      [](const Edge& edge) { return is_plain(edge.data); }))
    return CUDA_ERROR_LOSSY_QUERY;
  for (size_t i = 0; i < *count; ++i) {
    const bool is_there = i < edges.size();
    if (from != nullptr)
      from[i] = is_there ? reinterpret_cast<CUgraphNode>(edges[i].from) : nullptr;
    if (to != nullptr) to[i] = is_there ? reinterpret_cast<CUgraphNode>(edges[i].to) : nullptr;
    if (data != nullptr) data[i] = is_there ? edges[i].data : CUgraphEdgeData{};
  }
  *count = std::min(*count, edges.size());
  return CUDA_SUCCESS;
}

// Returns the index of `on` among the dependencies of `node`, or -1.
ptrdiff_t place_of(const Node& node, const Node& on) {
  const auto& all = node.dependencies;
  const auto place = std::find(all.begin(), all.end(), &on);
  return place == all.end() ? -1 : place - all.begin();
}

// Changes all of the edges, or none.
CUresult change_edges(CUgraph handle, const CUgraphNode* from, const CUgraphNode* to,
                      const CUgraphEdgeData* data, size_t count, bool is_added) {
  Graph* graph = find_graph(handle);
  if (graph == nullptr || (count > 0 && (from == nullptr || to == nullptr)))
    return CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 0; i < count; ++i) {
    const Node* on = find_node(from[i]);
    const Node* node = find_node(to[i]);
    if (on == nullptr || node == nullptr || on->graph != graph || node->graph != graph)
      return CUDA_ERROR_INVALID_VALUE;
    const CUgraphEdgeData own = data == nullptr ? CUgraphEdgeData{} : data[i];
    const ptrdiff_t place = place_of(*node, *on);
    if (is_added ? place >= 0 || !is_valid(*on, *node, own)
                 : place < 0 || (data != nullptr &&
                                 !is_same(node->dependency_data[static_cast<size_t>(place)], own)))
      return CUDA_ERROR_INVALID_VALUE;
  }
  for (size_t i = 0; i < count; ++i) {
    Node& node = *find_node(to[i]);
    Node& on = *find_node(from[i]);
    if (is_added) {
      add_dependency(node, on, data == nullptr ? CUgraphEdgeData{} : data[i]);
    } else {
      remove_dependency(node, on);
    }
  }
  return CUDA_SUCCESS;
}

}  // namespace

void add_dependency(Node& node, Node& on, const CUgraphEdgeData& data) {
  if (place_of(node, on) >= 0) return;
  node.dependencies.push_back(&on);
  node.dependency_data.push_back(data);
}

void remove_dependency(Node& node, const Node& on) {
  const ptrdiff_t place = place_of(node, on);
  if (place < 0) return;
  node.dependencies.erase(node.dependencies.begin() + place);
  node.dependency_data.erase(node.dependency_data.begin() + place);
}

}  // namespace simcuda

using namespace simcuda;

extern "C" {

ENTRY_LOCKED(cuGraphAddDependencies,
             (CUgraph graph, const CUgraphNode* from, const CUgraphNode* to, size_t count),
             change_edges(graph, from, to, nullptr, count, true))
ENTRY_LOCKED(cuGraphAddDependencies_v2,
             (CUgraph graph, const CUgraphNode* from, const CUgraphNode* to,
              const CUgraphEdgeData* data, size_t count),
             change_edges(graph, from, to, data, count, true))
ENTRY_LOCKED(cuGraphRemoveDependencies,
             (CUgraph graph, const CUgraphNode* from, const CUgraphNode* to, size_t count),
             change_edges(graph, from, to, nullptr, count, false))
ENTRY_LOCKED(cuGraphRemoveDependencies_v2,
             (CUgraph graph, const CUgraphNode* from, const CUgraphNode* to,
              const CUgraphEdgeData* data, size_t count),
             change_edges(graph, from, to, data, count, false))

static CUresult list_of_node(CUgraphNode handle, std::vector<Edge> (*edges)(Node&),
                             CUgraphNode* from, CUgraphNode* to, CUgraphEdgeData* data,
                             size_t* count) {
  Node* node = find_node(handle);
  return node == nullptr ? CUDA_ERROR_INVALID_VALUE
                         : list_edges(edges(*node), from, to, data, count);
}
static std::vector<Edge> edges_after(Node& node) { return edges_out_of(node); }

ENTRY_LOCKED(cuGraphNodeGetDependencies, (CUgraphNode node, CUgraphNode* nodes, size_t* count),
             list_of_node(node, edges_into, nodes, nullptr, nullptr, count))
ENTRY_LOCKED(cuGraphNodeGetDependencies_v2,
             (CUgraphNode node, CUgraphNode* nodes, CUgraphEdgeData* data, size_t* count),
             list_of_node(node, edges_into, nodes, nullptr, data, count))
ENTRY_LOCKED(cuGraphNodeGetDependentNodes, (CUgraphNode node, CUgraphNode* nodes, size_t* count),
             list_of_node(node, edges_after, nullptr, nodes, nullptr, count))
ENTRY_LOCKED(cuGraphNodeGetDependentNodes_v2,
             (CUgraphNode node, CUgraphNode* nodes, CUgraphEdgeData* data, size_t* count),
             list_of_node(node, edges_after, nullptr, nodes, data, count))
CUresult cuGraphGetEdges_v2(CUgraph handle, CUgraphNode* from, CUgraphNode* to,
                            CUgraphEdgeData* data, size_t* count) {
  SIM_ENTER_LOCKED(cuGraphGetEdges_v2);
  const Graph* graph = find_graph(handle);
  return graph == nullptr ? CUDA_ERROR_INVALID_VALUE
                          : list_edges(edges_of(*graph), from, to, data, count);
}
CUresult cuGraphGetEdges(CUgraph handle, CUgraphNode* from, CUgraphNode* to, size_t* count) {
  SIM_ENTER_LOCKED(cuGraphGetEdges);
  const Graph* graph = find_graph(handle);
  return graph == nullptr ? CUDA_ERROR_INVALID_VALUE
                          : list_edges(edges_of(*graph), from, to, nullptr, count);
}

}  // extern "C"
