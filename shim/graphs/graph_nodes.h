// Graphs as the driver tells of them: nodes, child graphs, attributes and edges. Slow paths: each is a driver call or
// more. Keeps nothing.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "shim/base/pool.h"
#include "shim/driver/cuda_names.h"

namespace fibshim {

using NodeParams = CUDA_KERNEL_NODE_PARAMS_v2;

extern Pool g_graph_pool;

// An array of the pool's, which goes with its owner.
template <class Item>
class Block {
  static constexpr size_t kItemBytes =
      sizeof(Item);  // NOLINT(bugprone-sizeof-expression): pointers, too

 public:
  Block() = default;
  ~Block() { release(); }
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;

  // Zeroed. False: no memory. What was there is gone.
  bool allocate(size_t count) {
    release();
    return adopt(count == 0 ? nullptr : g_graph_pool.allocate(count * kItemBytes), count);
  }
  // Does the same without clearing the memory, for callers that write all of it at once.
  bool allocate_unset(size_t count) {
    release();
    return adopt(count == 0 ? nullptr : g_graph_pool.allocate_unset(count * kItemBytes), count);
  }
  // Room for one more, with what is there.
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
  // Room for so many, and no fewer than there are. False: no memory.
  bool reserve(size_t count) {
    Block<Item> larger;
    if (!larger.allocate(count)) return false;
    for (size_t i = 0; i < count_; ++i) larger[i] = items_[i];
    items_.swap(larger);
    return true;
  }
  void shorten(size_t count) { count_ = count; }
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

// A node of a list, and its place there.
struct HostNode {
  CUgraphNode node;
  uint32_t index;
};
// False: no memory.
bool list_in_order(const CUgraphNode* nodes, size_t count, Block<HostNode>* out);
// Lists the nodes sorted by their handles. False: no memory.
bool sort_nodes(const CUgraphNode* nodes, size_t count, Block<HostNode>* out);
// The place of a node; SIZE_MAX: it is none of these.
size_t find_host_node(const Block<HostNode>& nodes, CUgraphNode node);

// The nodes of a graph, in the driver's order. False: it does not tell.
bool list_nodes(CUgraph graph, Block<CUgraphNode>* out);

// The edges of a graph. False: the driver does not tell. One that knows no edge data, before 12.3, tells none.
struct GraphEdges {
  Block<CUgraphNode> from;
  Block<CUgraphNode> to;
  Block<CUgraphEdgeData> data;

  bool read(CUgraph graph);
};

// False: the driver does not tell.
bool find_type(CUgraphNode node, CUgraphNodeType* type);
bool find_child(CUgraphNode node, CUgraph* child);
bool find_in_clone(CUgraphNode node, CUgraph clone, CUgraphNode* found);

// Launch attributes of a kernel node.
struct NodeAttributes {
  uint32_t cluster[3];  // 0: none was given
  bool is_cooperative;
};
NodeAttributes attributes_of(CUgraphNode node);
bool is_device_updatable_node(CUgraphNode node);

bool set_cluster(CUgraphNode node, const uint32_t (&cluster)[3]);
bool drop_cooperation(CUgraphNode node);

// How a node's edges differ from plain ones.
struct NodeEdges {
  bool is_known;
  bool begins_early;     // it may begin before a kernel before it has ended
  bool has_other_ports;  // somebody waits for something else than that or the whole
};
NodeEdges edges_of(CUgraphNode node);

bool is_plain_edge(const CUgraphEdgeData& data);
// Over it a kernel begins before the other has ended.
bool is_early_edge(const CUgraphEdgeData& data);

// The nodes that the node waits for, and those that wait for it.
bool list_before(CUgraphNode node, Block<CUgraphNode>* nodes);
bool list_after(CUgraphNode node, Block<CUgraphNode>* nodes);

// The node waits for the whole of everything before it.
bool make_edges_full(CUgraph graph, CUgraphNode node);
// Makes the nodes after `node` wait until all of it has ended.
bool make_later_edges_full(CUgraph graph, CUgraphNode node);

// The nodes that a node waits for.
struct NodesBefore {
  bool is_known;
  bool is_plain;     // all of it must have ended
  CUgraphNode only;  // null: there is none, or there are several
};
NodesBefore nodes_before(CUgraphNode node);
// Whether one node alone waits for it.
bool has_one_after(CUgraphNode node);
// Lets kernel `node` begin once every block of kernel `before` has released it or ended.
bool make_edge_early(CUgraph graph, CUgraphNode before, CUgraphNode node);

// Calls `use(node, copy's graph, copy, is_certain)` for every kernel node of a graph and its child graphs, in the driver's
// order, until that returns false. Not certain: within a child graph, where the driver names no copies; they stand in the
// same order. False: the driver does not tell, or `use`.
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
