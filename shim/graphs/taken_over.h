// The parameters that an exec has taken over (cuGraphExecUpdate) since its graph was copied.
//
// Copying the host's graph takes longer than the update. So the kept copy is not changed at first:
// an update writes the values of its nodes here, as bytes, and they are set in the copy when it is
// needed. This requires graphs that differ only in parameters: nodes of the same types, in the same
// order, with the same edges, and only kernels, copies, fills and empty nodes. Any other graph is
// copied. The copy keeps its kernels' attributes, since an update changes none. All functions
// require the exec's lock.
#pragma once

#include "shim/abi/param.h"
#include "shim/graphs/variant.h"

namespace fibshim {

// Call when a host lets a graph keep objects alive. From then on each update is copied: a kept copy
// would keep the objects of an earlier graph.
void remember_user_objects();
bool has_user_objects();

class TakenOver {
 public:
  // Two nodes, by their places in the graph.
  struct Edge {
    uint32_t from;
    uint32_t to;
    CUgraphEdgeData data;
  };

  TakenOver() = default;
  ~TakenOver() { forget(); }
  TakenOver(const TakenOver&) = delete;
  TakenOver& operator=(const TakenOver&) = delete;

  // Call after the copy was made of this graph.
  void remember_copied(CUgraph graph) { is_unwritable_ |= graph == unwritable_; }
  void forget();

  // Call before the host's call. `copy`: the kept copy, with the kernels `nodes`. If it returns
  // false, copy `graph` instead; if true, write all of its kernels next.
  bool begin(CUgraph graph, CUgraph copy, const Block<KernelNode>& nodes);
  size_t kernel_count() const { return places_of_kernels_.count(); }
  CUgraphNode kernel(size_t index) const { return nodes_[places_of_kernels_[index]]; }
  const Block<Edge>& edges() const { return edges_; }
  // Returns SIZE_MAX if the node is no kernel.
  size_t kernel_at(size_t place) const { return places_[place].kernel; }
  // Returns false if the kernel's parameters cannot be written. `is_same`: the values are those of
  // the last update.
  bool write_kernel(size_t kernel, const NodeParams& params, bool* is_same);
  // Returns what write_kernel() wrote. `pointers`: room for kMaxParams pointers, filled in.
  NodeParams written_kernel(size_t kernel, void** pointers) const;
  // Returns the layout of its parameters.
  const Param* written_layout(size_t kernel, uint32_t* count) const;
  // True if a node that is no kernel has other values than in the copy, or the last update.
  bool has_changed_others() const { return has_changed_others_; }
  // Call after the host's update succeeded: the written values become those of the copy. Swaps in
  // `plans`, those of its kernels, which are valid as long as handle_changes() is `changes`.
  void commit(Block<KeptPlan>* plans, uint64_t changes);
  // True if the plans of the last update still hold. `changes`: handle_changes(), within the read
  // section.
  bool has_plans(uint64_t changes) const {
    return plans_.count() != 0 && plans_changes_ == changes;
  }
  const KeptPlan& plan(size_t kernel) const { return plans_[kernel]; }

  bool is_behind() const { return is_behind_; }
  // Sets the written values in the copy. False: the driver refuses; the copy is unusable then.
  bool bring_up_to_date();

 private:
  struct Layout;
  struct Place {
    CUgraphNode kept;
    CUgraphNodeType type;
    size_t kernel;  // its index among the kernels; SIZE_MAX: no kernel
  };
  struct Written {
    const Layout* layout;  // of a kernel
    size_t at;  // of its bytes: the driver's parameter struct, then a kernel's packed parameters
  };
  struct Set {
    Block<Written> nodes;
    Block<char> bytes;
    size_t used = 0;

    void release();
  };

  void release_layouts(size_t from);
  bool learn(CUgraph graph, CUgraph copy, const Block<KernelNode>& nodes);
  bool learn_nodes(const Block<CUgraphNode>& listed, const Block<CUgraphNode>& kept,
                   const Block<KernelNode>& nodes);
  bool learn_edges(CUgraph graph, CUgraph copy, const Block<CUgraphNode>& listed);
  static bool read_edges(CUgraph graph, const Block<CUgraphNode>& nodes, Block<Edge>* out);
  bool lists_same(CUgraph graph);
  bool write_other(size_t place);
  char* add(size_t place, size_t count);
  static bool grow(Set* set, size_t bytes);
  const Layout* layout_of(const void* handle);
  static NodeParams read_written(const Set& set, size_t place, void** pointers);
  Set& next() { return sets_[1 - last_]; }
  const Set& next() const { return sets_[1 - last_]; }

  CUgraph updating_ = nullptr;
  Block<Place> places_;
  Growing<uint32_t> places_of_kernels_;
  Block<Edge> edges_;
  Growing<Layout*> layouts_;
  // Layouts after this many belong to an update that was not committed. The shim would not notice
  // when their functions are unloaded.
  size_t lasting_layouts_ = 0;
  // Two sets, since the driver may refuse an update: for the last update and the current one.
  Set sets_[2];
  int last_ = 0;
  Block<KeptPlan> plans_;  // of the last update
  uint64_t plans_changes_ = 0;
  Block<CUgraphNode> nodes_;  // of the graph that is taken over
  // The last graph with nodes that cannot be written here, or with too many bytes; null: none.
  CUgraph unwritable_ = nullptr;
  // Such a graph was copied. Every graph that the exec can take over is like it.
  bool is_unwritable_ = false;
  bool is_behind_ = false;
  bool has_changed_others_ = false;
};

}  // namespace fibshim
