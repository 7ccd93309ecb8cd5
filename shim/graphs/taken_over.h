// The parameters that an exec has taken over (cuGraphExecUpdate) since its graph was copied.
//
// A copy of the host's graph takes longer than the update. So the kept one stays as it is, what its nodes would hold is written
// here, as bytes, and the copy is given that when it is needed. Only where both are the same but for parameters: nodes of the
// same types, in the same order, with the same edges, and none but kernels, copies, fills and empty ones. Any other graph is
// copied. Attributes of kernels stay in the copy as they were: an update takes none over. Callers hold the exec's lock.
#pragma once

#include "shim/abi/param.h"
#include "shim/graphs/variant.h"

namespace fibshim {

// A host lets graphs keep objects alive: from now on each update is copied, or the copy would keep those of an earlier graph.
void remember_user_objects();

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

  // The copy was just made of this graph.
  void remember_copied(CUgraph graph) {
    copied_ = graph;
    is_of_another_graph_ = false;
    is_unwritable_ |= graph == unwritable_;
  }
  void forget();

  // Before the host's call. `copy`: the kept one, whose kernels `nodes` are. False: `graph` is to be copied. Else its kernels are
  // written next, all of them.
  bool begin(CUgraph graph, CUgraph copy, const Block<KernelNode>& nodes);
  size_t kernel_count() const { return places_of_kernels_.count(); }
  CUgraphNode kernel(size_t index) const { return nodes_[places_of_kernels_[index]]; }
  const Block<Edge>& edges() const { return edges_; }
  // SIZE_MAX: it is none.
  size_t kernel_at(size_t place) const { return places_[place].kernel; }
  // False: how large its parameters are is not known. `is_same`: as it was taken over before.
  bool write_kernel(size_t kernel, const NodeParams& params, bool* is_same);
  // What was written; with room for kMaxParams pointers, which go into it.
  NodeParams written_kernel(size_t kernel, void** pointers) const;
  // After it: that is what the copy is to hold. `plans`: of its kernels, by which `changes`; they are taken.
  void commit(Block<KeptPlan>* plans, uint64_t changes);
  // Whether the plans of what was taken over last hold still. `changes`: handle_changes(), within the read section.
  bool has_plans(uint64_t changes) const {
    return plans_.count() != 0 && plans_changes_ == changes;
  }
  const KeptPlan& plan(size_t kernel) const { return plans_[kernel]; }

  bool is_behind() const { return is_behind_; }
  // It was not the copied graph that the exec has taken over last.
  bool is_of_another_graph() const { return is_of_another_graph_; }
  // Gives the copy what it is to hold. False: the driver refuses, and the copy is of no use.
  bool bring_up_to_date();

 private:
  struct Layout;
  struct Place {
    CUgraphNode kept;
    CUgraphNodeType type;
    size_t kernel;  // its index among them; SIZE_MAX: it is none
  };
  struct Written {
    const Layout* layout;  // of a kernel
    size_t at;  // its bytes: what the driver reads and sets, and of a kernel the packed parameters
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

  CUgraph copied_ = nullptr;
  CUgraph updating_ = nullptr;
  Block<Place> places_;
  Growing<uint32_t> places_of_kernels_;
  Block<Edge> edges_;
  Growing<Layout*> layouts_;
  // The others are of an update that was refused: nobody says when these functions die.
  size_t lasting_layouts_ = 0;
  // The one that was written last, and while an update lasts the next: the driver may refuse it.
  Set sets_[2];
  int last_ = 0;
  Block<KeptPlan> plans_;  // of the last
  uint64_t plans_changes_ = 0;
  Block<CUgraphNode> nodes_;  // of the graph that is taken over
  // `updating_`, if it has nodes that are not written, or is too large.
  CUgraph unwritable_ = nullptr;
  // Such a graph was copied, and those that the exec can take over are like it.
  bool is_unwritable_ = false;
  bool is_behind_ = false;
  bool is_of_another_graph_ = false;
};

}  // namespace fibshim
