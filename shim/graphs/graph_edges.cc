#include "shim/graphs/graph_edges.h"

#include <stdlib.h>

#include "shim/driver/driver.h"

namespace fibshim {
namespace {

int compare(const void* one, const void* other) {
  const auto first = reinterpret_cast<uintptr_t>(*static_cast<const CUgraphNode*>(one));
  const auto second = reinterpret_cast<uintptr_t>(*static_cast<const CUgraphNode*>(other));
  return first < second ? -1 : first > second ? 1 : 0;
}

bool contains(const CUgraphNode* nodes, uint32_t count, CUgraphNode node) {
  for (uint32_t i = 0; i < count; ++i) {
    if (nodes[i] == node) return true;
  }
  return false;
}

bool append_once(Block<CUgraphNode>* nodes, CUgraphNode node) {
  if (contains(nodes->begin(), static_cast<uint32_t>(nodes->count()), node)) return true;
  CUgraphNode* const added = nodes->append();
  if (added != nullptr) *added = node;
  return added != nullptr;
}

}  // namespace

bool GraphShape::read(CUgraph graph) {
  GraphEdges edges;
  if (FIBSHIM_REAL(cuGraphGetEdges_v2) == nullptr || !list_nodes(graph, &nodes) ||
      nodes.count() >= UINT32_MAX || !edges.read(graph)) {
    return false;
  }
  bool is_sorted = true;  // as drivers often list them
  for (size_t i = 1; is_sorted && i < nodes.count(); ++i) {
    is_sorted = compare(&nodes[i - 1], &nodes[i]) < 0;
  }
  if (!is_sorted) qsort(nodes.begin(), nodes.count(), sizeof(CUgraphNode), compare);
  const size_t node_count = nodes.count();
  const size_t count = edges.data.count();
  if (!has_other_ports.allocate(node_count) || !room_.allocate(6 * node_count + 1 + 3 * count)) {
    return false;
  }
  uint32_t* const first = room_.begin();
  uint32_t* const next = first + node_count + 1;
  dag.count = static_cast<uint32_t>(node_count);
  dag.first = first;
  dag.next = next;
  dag.position = next + count;
  dag.sibling = dag.position + node_count;
  dag.reach = dag.sibling + node_count;
  uint32_t* const rest = dag.reach + node_count;
  uint32_t* const from = rest + node_count;
  uint32_t* const to = from + count;
  uint32_t before = UINT32_MAX;
  uint32_t after = UINT32_MAX;
  for (size_t i = 0; i < count; ++i) {
    before = from[i] = number_of(edges.from[i], before);
    after = to[i] = number_of(edges.to[i], after);
    const CUgraphEdgeData& data = edges.data[i];
    if (before == UINT32_MAX || after == UINT32_MAX) return false;
    if (!is_plain_edge(data) && !is_early_edge(data))
      has_other_ports[before] = has_other_ports[after] = true;
    ++first[before + 1];
  }
  for (size_t i = 0; i < node_count; ++i) first[i + 1] += first[i];
  for (size_t i = 0; i < node_count; ++i) rest[i] = first[i];
  for (size_t i = 0; i < count; ++i) next[rest[from[i]]++] = to[i];
  Block<uint32_t> room;
  return room.allocate(2 * node_count) && order_nodes(&dag, room.begin());
}

uint32_t GraphShape::number_of(CUgraphNode node, uint32_t near) const {
  for (size_t i = near; near != UINT32_MAX && i < nodes.count() && i <= size_t{near} + 1; ++i) {
    if (nodes[i] == node) return static_cast<uint32_t>(i);
  }
  const auto wanted = reinterpret_cast<uintptr_t>(node);
  size_t low = 0;
  size_t high = nodes.count();
  while (low < high) {
    const size_t middle = (low + high) / 2;
    const auto found = reinterpret_cast<uintptr_t>(nodes[middle]);
    if (found == wanted) return static_cast<uint32_t>(middle);
    if (found < wanted) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return UINT32_MAX;
}

namespace {

// As list_around(), from the node number `first` on.
bool list_around_others(const CUgraphNode* nodes, uint32_t first, uint32_t count,
                        Block<CUgraphNode>* before, Block<CUgraphNode>* after) {
  Block<CUgraphNode> listed;
  const auto add_listed = [&](Block<CUgraphNode>* out) {
    for (const CUgraphNode node : listed) {
      if (!contains(nodes, count, node) && !append_once(out, node)) return false;
    }
    return true;
  };
  for (uint32_t i = first; i < count; ++i) {
    if (!list_before(nodes[i], &listed) || !add_listed(before) || !list_after(nodes[i], &listed) ||
        !add_listed(after)) {
      return false;
    }
  }
  return true;
}

}  // namespace

bool is_chain(CUgraph graph) {
  GraphShape shape;
  Block<bool> is_after;
  if (!shape.read(graph) || !is_after.allocate(shape.dag.count)) return false;
  const Dag& dag = shape.dag;
  for (uint32_t i = 0; i < dag.count; ++i) {
    if (dag.first[i + 1] - dag.first[i] > 1) return false;
    for (uint32_t k = dag.first[i]; k < dag.first[i + 1]; ++k) {
      if (is_after[dag.next[k]]) return false;
      is_after[dag.next[k]] = true;
    }
  }
  // Of several chains each would have a first node of its own.
  return dag.count != 0 && dag.first[dag.count] == dag.count - 1;
}

bool list_around(const CUgraphNode* nodes, uint32_t count, Block<CUgraphNode>* before,
                 Block<CUgraphNode>* after) {
  return list_around_others(nodes, 0, count, before, after);
}

bool make_all_edges_full(CUgraph graph, const CUgraphNode* nodes, uint32_t count) {
  for (uint32_t i = 0; i < count; ++i) {
    if (!make_edges_full(graph, nodes[i]) || !make_later_edges_full(graph, nodes[i])) return false;
  }
  return true;
}

bool merge_nodes(CUgraph graph, const CUgraphNode* nodes, uint32_t count) {
  const auto add = FIBSHIM_REAL(cuGraphAddDependencies_v2);
  const auto destroy = FIBSHIM_REAL(cuGraphDestroyNode);
  const CUgraphNode kept = nodes[0];
  Block<CUgraphNode> listed;
  Block<CUgraphNode> before;
  Block<CUgraphNode> after;
  if (add == nullptr || destroy == nullptr) return false;
  if (!list_around_others(nodes, 1, count, &before, &after)) return false;
  for (uint32_t i = 1; i < count; ++i) {
    if (destroy(nodes[i]) != CUDA_SUCCESS) return false;
  }
  const auto has = [&](CUgraphNode node) {
    return contains(listed.begin(), static_cast<uint32_t>(listed.count()), node);
  };
  if (!make_edges_full(graph, kept, &listed)) return false;
  for (const CUgraphNode node : before) {
    if (!has(node) && add(graph, &node, &kept, nullptr, 1) != CUDA_SUCCESS) return false;
  }
  if (!make_later_edges_full(graph, kept, &listed)) return false;
  for (const CUgraphNode node : after) {
    if (!has(node) && add(graph, &kept, &node, nullptr, 1) != CUDA_SUCCESS) return false;
  }
  return true;
}

}  // namespace fibshim
