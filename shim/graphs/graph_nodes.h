// Graphs as the driver describes them: nodes, child graphs, attributes and edges. Slow paths: each
// function makes one or more driver calls. Caches nothing.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "shim/base/pool.h"
#include "shim/driver/cuda_names.h"

namespace fibshim {

using NodeParams = CUDA_KERNEL_NODE_PARAMS_v2;

extern Pool g_graph_pool;

// An array from the pool, released by its owner's destructor.
template <class Item>
class Block {
  static constexpr size_t kItemBytes =
      sizeof(Item);  // NOLINT(bugprone-sizeof-expression): pointers, too

 public:
  Block() = default;
  ~Block() { release(); }
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;

  // Replaces the array by a zeroed one. False: no memory.
  bool allocate(size_t count) {
    release();
    return adopt(count == 0 ? nullptr : g_graph_pool.allocate(count * kItemBytes), count);
  }
  // Does the same without clearing the memory, for callers that write all of it at once.
  bool allocate_unset(size_t count) {
    release();
    return adopt(count == 0 ? nullptr : g_graph_pool.allocate_unset(count * kItemBytes), count);
  }
  // Adds one item by copying the array. Null: no memory.
  Item* append() {
    auto* const items = static_cast<Item*>(g_graph_pool.allocate((count_ + 1) * kItemBytes));
    if (items == nullptr) return nullptr;
    if (count_ != 0) __builtin_memcpy(static_cast<void*>(items), items_, count_ * kItemBytes);
    g_graph_pool.release(items_, count_ * kItemBytes);
    items_ = items;
    return &items_[count_++];
  }
  void swap(Block& other) {
    Item* const items = items_;
    const size_t count = count_;
    items_ = other.items_;
    count_ = other.count_;
    other.items_ = items;
    other.count_ = count;
  }

  size_t count() const { return count_; }
  Item& operator[](size_t index) const { return items_[index]; }
  Item* begin() const { return items_; }
  Item* end() const { return items_ + count_; }

 private:
  void release() { g_graph_pool.release(items_, count_ * kItemBytes); }
  bool adopt(void* memory, size_t count) {
    items_ = static_cast<Item*>(memory);
    count_ = memory == nullptr ? 0 : count;
    return count_ == count;
  }

  Item* items_ = nullptr;
  size_t count_ = 0;
};

// A list that grows.
template <class Item>
class Growing {
 public:
  Item* add() {
    const bool has_room = count_ != items_.count() || reserve(count_ == 0 ? 16 : 2 * count_);
    return has_room ? &items_[count_++] : nullptr;
  }
  // False: no memory.
  bool add(const Item& item) {
    Item* const added = add();
    if (added != nullptr) *added = item;
    return added != nullptr;
  }
  // Makes room for `count` items, no fewer than there are. False: no memory.
  bool reserve(size_t count) {
    Block<Item> larger;
    if (!larger.allocate(count)) return false;
    for (size_t i = 0; i < count_; ++i) larger[i] = items_[i];
    items_.swap(larger);
    return true;
  }
  void shorten(size_t count) { count_ = count; }
  void swap(Growing& other) {
    const size_t count = count_;
    count_ = other.count_;
    other.count_ = count;
    items_.swap(other.items_);
  }
  void clear() {
    (void)items_.allocate(0);
    count_ = 0;
  }
  size_t count() const { return count_; }
  Item* begin() const { return items_.begin(); }
  Item* end() const { return items_.begin() + count_; }
  Item& operator[](size_t index) const { return items_[index]; }

 private:
  Block<Item> items_;
  size_t count_ = 0;
};

// A node, and its index in a list.
struct HostNode {
  CUgraphNode node;
  uint32_t index;
};
// Lists the nodes in the given order. False: no memory.
bool list_in_order(const CUgraphNode* nodes, size_t count, Block<HostNode>* out);
// Lists the nodes sorted by their handles. False: no memory.
bool sort_nodes(const CUgraphNode* nodes, size_t count, Block<HostNode>* out);
// Returns the index of a node in a sorted list, or SIZE_MAX.
size_t find_host_node(const Block<HostNode>& nodes, CUgraphNode node);

// Lists the nodes of a graph, in the driver's order. False: the driver does not report them.
bool list_nodes(CUgraph graph, Block<CUgraphNode>* out);

// The edges of a graph. read() returns false if the driver does not report them. A driver before
// 12.3 knows no edge data, and no edges are read.
struct GraphEdges {
  Block<CUgraphNode> from;
  Block<CUgraphNode> to;
  Block<CUgraphEdgeData> data;

  bool read(CUgraph graph);
};

// These return false if the driver does not report it.
bool find_type(CUgraphNode node, CUgraphNodeType* type);
bool find_child(CUgraphNode node, CUgraph* child);
bool find_in_clone(CUgraphNode node, CUgraph clone, CUgraphNode* found);

// Launch attributes of a kernel node.
struct NodeAttributes {
  uint32_t cluster[3];         // 0: not set
  bool has_preferred_cluster;  // a larger one, which the driver takes where it fits
  bool is_cooperative;
};
NodeAttributes attributes_of(CUgraphNode node);
bool is_device_updatable_node(CUgraphNode node);
int priority_of(CUgraphNode node);

bool set_cluster(CUgraphNode node, const uint32_t (&cluster)[3]);
bool set_preferred_cluster(CUgraphNode node, const uint32_t (&cluster)[3]);
bool drop_cooperation(CUgraphNode node);

// How a node's edges differ from plain ones.
struct NodeEdges {
  bool is_known;
  bool begins_early;     // the node may begin before a preceding kernel has ended
  bool has_other_ports;  // it has an edge that is neither plain nor early
};
NodeEdges edges_of(CUgraphNode node);

bool is_plain_edge(const CUgraphEdgeData& data);
// True if the edge lets a kernel begin before the preceding kernel has ended.
bool is_early_edge(const CUgraphEdgeData& data);

// List the nodes that the node depends on, or those that depend on it.
bool list_before(CUgraphNode node, Block<CUgraphNode>* nodes);
bool list_after(CUgraphNode node, Block<CUgraphNode>* nodes);

// Makes the node wait for the end of all nodes before it, and lists these.
bool make_edges_full(CUgraph graph, CUgraphNode node, Block<CUgraphNode>* nodes);
inline bool make_edges_full(CUgraph graph, CUgraphNode node) {
  Block<CUgraphNode> nodes;
  return make_edges_full(graph, node, &nodes);
}
// Makes all nodes after `node` wait for its end, and lists these.
bool make_later_edges_full(CUgraph graph, CUgraphNode node, Block<CUgraphNode>* nodes);
inline bool make_later_edges_full(CUgraph graph, CUgraphNode node) {
  Block<CUgraphNode> nodes;
  return make_later_edges_full(graph, node, &nodes);
}

// The nodes that a node depends on.
struct NodesBefore {
  bool is_known;
  bool is_plain;     // all of them must have ended
  CUgraphNode only;  // null: there are none or several
};
NodesBefore nodes_before(CUgraphNode node);
// True if exactly one node depends on it.
bool has_one_after(CUgraphNode node);
// Lets kernel `node` begin once every block of kernel `before` has released it or ended.
bool make_edge_early(CUgraph graph, CUgraphNode before, CUgraphNode node);

// Calls `use(node, copy's graph, copy, is_certain)` for every kernel node of a graph and its child
// graphs, in the driver's order, until it returns false. A copy is not certain within a child
// graph, where the driver names no copies: it is found by its place in the order. Returns false if
// the driver does not report the graph, or `use` returned false.
template <class Use>
bool for_each_copied_kernel(CUgraph graph, CUgraph copy, const Use& use, bool is_child = false) {
  Block<CUgraphNode> nodes;
  Block<CUgraphNode> copies;
  if (!list_nodes(graph, &nodes) || !list_nodes(copy, &copies) || nodes.count() != copies.count()) {
    return false;
  }
  for (size_t i = 0; i < nodes.count(); ++i) {
    CUgraphNode found = nullptr;
    const bool is_certain = find_in_clone(nodes[i], copy, &found);
    if (!is_certain && !is_child) return false;
    if (!is_certain) found = copies[i];
    CUgraphNodeType type;
    CUgraphNodeType type_of_copy;
    if (!find_type(nodes[i], &type) || !find_type(found, &type_of_copy) || type != type_of_copy) {
      return false;
    }
    CUgraph child = nullptr;
    CUgraph child_copy = nullptr;
    if (type == CU_GRAPH_NODE_TYPE_KERNEL && !use(nodes[i], copy, found, is_certain)) return false;
    if (type == CU_GRAPH_NODE_TYPE_GRAPH &&
        (!find_child(nodes[i], &child) || !find_child(found, &child_copy) ||
         !for_each_copied_kernel(child, child_copy, use, true))) {
      return false;
    }
  }
  return true;
}

}  // namespace fibshim
