#include "shim/graphs/graph_nodes.h"

#include <stdlib.h>
#include <string.h>

#include "shim/driver/driver.h"

namespace fibshim {

constinit Pool g_graph_pool;

namespace {

bool read_attribute(CUgraphNode node, CUlaunchAttributeID id, CUkernelNodeAttrValue* value) {
  const auto get = FIBSHIM_REAL(cuGraphKernelNodeGetAttribute);
  memset(value, 0, sizeof *value);
  return get != nullptr && get(node, id, value) == CUDA_SUCCESS;
}

// Lists the edges on one side of a node.
using ListEdges = CUresult(CUDAAPI*)(CUgraphNode, CUgraphNode*, CUgraphEdgeData*, size_t*);
bool list_edges(ListEdges list, CUgraphNode node, Block<CUgraphNode>* nodes,
                Block<CUgraphEdgeData>* data) {
  // Most nodes have fewer: then one call tells all.
  constexpr size_t kFew = 8;
  CUgraphNode few[kFew];
  CUgraphEdgeData few_data[kFew];
  size_t count = kFew;
  if (list(node, few, few_data, &count) == CUDA_SUCCESS && count < kFew) {
    if (!nodes->allocate_unset(count) || !data->allocate_unset(count)) return false;
    for (size_t i = 0; i < count; ++i) {
      (*nodes)[i] = few[i];
      (*data)[i] = few_data[i];
    }
    return true;
  }
  count = 0;
  if (list(node, nullptr, nullptr, &count) != CUDA_SUCCESS) return false;
  return nodes->allocate(count) && data->allocate(count) &&
         (count == 0 || list(node, nodes->begin(), data->begin(), &count) == CUDA_SUCCESS);
}

int compare_nodes(const void* one, const void* other) {
  const auto first = reinterpret_cast<uintptr_t>(static_cast<const HostNode*>(one)->node);
  const auto second = reinterpret_cast<uintptr_t>(static_cast<const HostNode*>(other)->node);
  return first < second ? -1 : first > second ? 1 : 0;
}

}  // namespace

bool list_in_order(const CUgraphNode* nodes, size_t count, Block<HostNode>* out) {
  if (!out->allocate_unset(count)) return false;
  for (size_t i = 0; i < count; ++i) (*out)[i] = {nodes[i], static_cast<uint32_t>(i)};
  return true;
}

// Drivers often list nodes in the order of their addresses, so sorting is often not needed.
bool sort_nodes(const CUgraphNode* nodes, size_t count, Block<HostNode>* out) {
  if (!list_in_order(nodes, count, out)) return false;
  bool is_sorted = true;
  for (size_t i = 1; is_sorted && i < count; ++i) {
    is_sorted = compare_nodes(&(*out)[i - 1], &(*out)[i]) < 0;
  }
  if (!is_sorted) qsort(out->begin(), count, sizeof(HostNode), compare_nodes);
  return true;
}

size_t find_host_node(const Block<HostNode>& nodes, CUgraphNode node) {
  size_t low = 0;
  size_t high = nodes.count();
  while (low < high) {
    const size_t middle = (low + high) / 2;
    if (nodes[middle].node == node) return nodes[middle].index;
    if (reinterpret_cast<uintptr_t>(nodes[middle].node) < reinterpret_cast<uintptr_t>(node)) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return SIZE_MAX;
}

bool list_nodes(CUgraph graph, Block<CUgraphNode>* out) {
  const auto get_nodes = FIBSHIM_REAL(cuGraphGetNodes);
  size_t count = 0;
  return get_nodes != nullptr && get_nodes(graph, nullptr, &count) == CUDA_SUCCESS &&
         out->allocate(count) &&
         (count == 0 || get_nodes(graph, out->begin(), &count) == CUDA_SUCCESS);
}

bool is_plain_edge(const CUgraphEdgeData& data) {
  const CUgraphEdgeData plain = {};
  return memcmp(&data, &plain, sizeof data) == 0;
}

bool is_early_edge(const CUgraphEdgeData& data) {
  return data.type == CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC &&
         data.from_port == CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC && data.to_port == 0;
}

bool GraphEdges::read(CUgraph graph) {
  const auto get_edges = FIBSHIM_REAL(cuGraphGetEdges_v2);
  size_t count = 0;
  if (get_edges == nullptr) return true;
  return get_edges(graph, nullptr, nullptr, nullptr, &count) == CUDA_SUCCESS &&
         from.allocate(count) && to.allocate(count) && data.allocate(count) &&
         (count == 0 ||
          get_edges(graph, from.begin(), to.begin(), data.begin(), &count) == CUDA_SUCCESS);
}

bool find_type(CUgraphNode node, CUgraphNodeType* type) {
  const auto get_type = FIBSHIM_REAL(cuGraphNodeGetType);
  return get_type != nullptr && get_type(node, type) == CUDA_SUCCESS;
}

bool find_child(CUgraphNode node, CUgraph* child) {
  const auto get_child = FIBSHIM_REAL(cuGraphChildGraphNodeGetGraph);
  return get_child != nullptr && get_child(node, child) == CUDA_SUCCESS;
}

bool find_in_clone(CUgraphNode node, CUgraph clone, CUgraphNode* found) {
  const auto find = FIBSHIM_REAL(cuGraphNodeFindInClone);
  return find != nullptr && find(found, node, clone) == CUDA_SUCCESS;
}

NodeAttributes attributes_of(CUgraphNode node) {
  NodeAttributes out = {};
  CUkernelNodeAttrValue value;
  if (read_attribute(node, CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, &value)) {
    out.cluster[0] = value.clusterDim.x;
    out.cluster[1] = value.clusterDim.y;
    out.cluster[2] = value.clusterDim.z;
  }
  // It takes effect beside a cluster alone.
  if (out.cluster[0] != 0 &&
      read_attribute(node, CU_LAUNCH_ATTRIBUTE_PREFERRED_CLUSTER_DIMENSION, &value)) {
    const auto& cluster = value.preferredClusterDim;
    out.has_preferred_cluster = cluster.x > 1 || cluster.y > 1 || cluster.z > 1;
  }
  out.is_cooperative =
      read_attribute(node, CU_LAUNCH_ATTRIBUTE_COOPERATIVE, &value) && value.cooperative != 0;
  return out;
}

bool is_device_updatable_node(CUgraphNode node) {
  CUkernelNodeAttrValue value;
  return read_attribute(node, CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE, &value) &&
         value.deviceUpdatableKernelNode.deviceUpdatable != 0;
}

int priority_of(CUgraphNode node) {
  CUkernelNodeAttrValue value;
  return read_attribute(node, CU_LAUNCH_ATTRIBUTE_PRIORITY, &value) ? value.priority : 0;
}

namespace {

CUkernelNodeAttrValue no_value() {
  CUkernelNodeAttrValue value;
  memset(&value, 0, sizeof value);
  return value;
}

bool set_attribute(CUgraphNode node, CUkernelNodeAttrID id, const CUkernelNodeAttrValue& value) {
  const auto set = FIBSHIM_REAL(cuGraphKernelNodeSetAttribute);
  return set != nullptr && set(node, id, &value) == CUDA_SUCCESS;
}

}  // namespace

bool set_cluster(CUgraphNode node, const uint32_t (&cluster)[3]) {
  CUkernelNodeAttrValue value = no_value();
  value.clusterDim = {cluster[0], cluster[1], cluster[2]};
  return set_attribute(node, CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, value);
}

bool set_preferred_cluster(CUgraphNode node, const uint32_t (&cluster)[3]) {
  CUkernelNodeAttrValue value = no_value();
  value.preferredClusterDim = {cluster[0], cluster[1], cluster[2]};
  return set_attribute(node, CU_LAUNCH_ATTRIBUTE_PREFERRED_CLUSTER_DIMENSION, value);
}

bool drop_cooperation(CUgraphNode node) {
  return set_attribute(node, CU_LAUNCH_ATTRIBUTE_COOPERATIVE, no_value());
}

// A driver before 12.3 knows no edge data, so all edges are plain.
NodeEdges edges_of(CUgraphNode node) {
  const ListEdges before = FIBSHIM_REAL(cuGraphNodeGetDependencies_v2);
  const ListEdges after = FIBSHIM_REAL(cuGraphNodeGetDependentNodes_v2);
  NodeEdges out = {true, false, false};
  if (before == nullptr || after == nullptr) return out;
  Block<CUgraphNode> nodes;
  Block<CUgraphEdgeData> data;
  if (!list_edges(before, node, &nodes, &data)) return {false, false, false};
  for (const CUgraphEdgeData& edge : data) {
    if (is_plain_edge(edge)) continue;
    (is_early_edge(edge) ? out.begins_early : out.has_other_ports) = true;
  }
  if (!list_edges(after, node, &nodes, &data)) return {false, false, false};
  for (const CUgraphEdgeData& edge : data) {
    if (!is_plain_edge(edge) && !is_early_edge(edge)) out.has_other_ports = true;
  }
  return out;
}

bool list_before(CUgraphNode node, Block<CUgraphNode>* nodes) {
  const ListEdges before = FIBSHIM_REAL(cuGraphNodeGetDependencies_v2);
  Block<CUgraphEdgeData> data;
  return before != nullptr && list_edges(before, node, nodes, &data);
}

bool list_after(CUgraphNode node, Block<CUgraphNode>* nodes) {
  const ListEdges after = FIBSHIM_REAL(cuGraphNodeGetDependentNodes_v2);
  Block<CUgraphEdgeData> data;
  return after != nullptr && list_edges(after, node, nodes, &data);
}

namespace {

bool make_edge_full(CUgraph graph, CUgraphNode before, CUgraphNode node,
                    const CUgraphEdgeData& data) {
  const auto remove = FIBSHIM_REAL(cuGraphRemoveDependencies_v2);
  const auto add = FIBSHIM_REAL(cuGraphAddDependencies_v2);
  return is_plain_edge(data) || (remove != nullptr && add != nullptr &&
                                 remove(graph, &before, &node, &data, 1) == CUDA_SUCCESS &&
                                 add(graph, &before, &node, nullptr, 1) == CUDA_SUCCESS);
}

}  // namespace

bool make_edges_full(CUgraph graph, CUgraphNode node, Block<CUgraphNode>* nodes) {
  const ListEdges before = FIBSHIM_REAL(cuGraphNodeGetDependencies_v2);
  Block<CUgraphEdgeData> data;
  if (before == nullptr || !list_edges(before, node, nodes, &data)) return false;
  for (size_t i = 0; i < nodes->count(); ++i) {
    if (!make_edge_full(graph, (*nodes)[i], node, data[i])) return false;
  }
  return true;
}

bool make_later_edges_full(CUgraph graph, CUgraphNode node, Block<CUgraphNode>* nodes) {
  const ListEdges after = FIBSHIM_REAL(cuGraphNodeGetDependentNodes_v2);
  Block<CUgraphEdgeData> data;
  if (after == nullptr || !list_edges(after, node, nodes, &data)) return false;
  for (size_t i = 0; i < nodes->count(); ++i) {
    if (!make_edge_full(graph, node, (*nodes)[i], data[i])) return false;
  }
  return true;
}

NodesBefore nodes_before(CUgraphNode node) {
  const ListEdges before = FIBSHIM_REAL(cuGraphNodeGetDependencies_v2);
  Block<CUgraphNode> nodes;
  Block<CUgraphEdgeData> data;
  if (before == nullptr || !list_edges(before, node, &nodes, &data)) return {};
  NodesBefore out = {true, true, nodes.count() == 1 ? nodes[0] : nullptr};
  for (const CUgraphEdgeData& edge : data) out.is_plain = out.is_plain && is_plain_edge(edge);
  return out;
}

bool has_one_after(CUgraphNode node) {
  const ListEdges after = FIBSHIM_REAL(cuGraphNodeGetDependentNodes_v2);
  Block<CUgraphNode> nodes;
  Block<CUgraphEdgeData> data;
  return after != nullptr && list_edges(after, node, &nodes, &data) && nodes.count() == 1;
}

bool make_edge_early(CUgraph graph, CUgraphNode before, CUgraphNode node) {
  const auto remove = FIBSHIM_REAL(cuGraphRemoveDependencies_v2);
  const auto add = FIBSHIM_REAL(cuGraphAddDependencies_v2);
  CUgraphEdgeData data = {};
  data.from_port = CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC;
  data.type = CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC;
  return remove != nullptr && add != nullptr &&
         remove(graph, &before, &node, nullptr, 1) == CUDA_SUCCESS &&
         add(graph, &before, &node, &data, 1) == CUDA_SUCCESS;
}

}  // namespace fibshim
