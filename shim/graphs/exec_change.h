// Follows changes that the host makes in an executable graph. The host's own exec is changed first,
// by the host's own call. Then what runs in its place and the kept originals are changed in the
// same way. If that fails, the host's exec runs from then on.
#pragma once

#include "shim/graphs/exec_state.h"
#include "shim/graphs/node_swap.h"

namespace fibshim {

// Lives from before the host's call until the driver has returned, and holds the exec's lock.
class ExecChange {
 public:
  explicit ExecChange(CUgraphExec handle);
  ~ExecChange();
  ExecChange(const ExecChange&) = delete;
  ExecChange& operator=(const ExecChange&) = delete;

  // Call before a kernel node is set, within a read section that lasts until set_kernel(). An error
  // is returned to the host, and its call is not made.
  CUresult plan_kernel(CUgraphNode node, const NodeParams& params);
  // Returns the parameters to set in the host's exec instead of the host's, if that exec holds
  // replacements; else null.
  const NodeParams* replacement_in_place() const;
  // Call if the driver refuses these parameters.
  void refuse_replacement(GraphReason reason = GraphReason::refused);

  // Call these after the driver has accepted the change: they repeat it in our copies.
  void set_kernel(const NodeParams& params);
  void set_enabled(CUgraphNode node, bool is_enabled);
  // Repeats a change of another kind of node: `set_kept(node)` changes the node's copy in the
  // originals, `set_in(exec, node)` that in an exec.
  template <class SetKept, class SetIn>
  void set_other(CUgraphNode node, const SetKept& set_kept, const SetIn& set_in) {
    CUgraphNode kept = nullptr;
    if (exec_ == nullptr || exec_->originals == nullptr) return;
    if (!find_kept(node, &kept) || set_kept(kept) != CUDA_SUCCESS) {
      return leave(GraphReason::set_unknown);
    }
    bool is_done = true;
    for_each_variant([&](Variant* variant) {
      CUgraphNode copy = nullptr;
      if (variant->is_host()) return;  // it is changed already
      is_done = is_done && !undoes_rewrites(*variant) &&
                find_in_clone(kept, variant->graph, &copy) &&
                set_in(variant->exec, copy) == CUDA_SUCCESS;
    });
    change_unreplaced([&](const Variant& variant) {
      CUgraphNode copy = nullptr;
      return find_in_clone(kept, variant.graph, &copy) &&
             set_in(variant.exec, copy) == CUDA_SUCCESS;
    });
    if (!is_done) rebuild();
  }
  // Call after the child graph of a node was set. Where no copy of it can follow, its kernels are
  // not replaced.
  void set_child(CUgraphNode node, CUgraph child);

 private:
  // Visits the running variant, the ready one, and the idle one of the host's exec.
  template <class Use>
  void for_each_variant(const Use& use) {
    for (Variant* const variant : {exec_->running.load(std::memory_order_relaxed),
                                   exec_->ready.load(std::memory_order_acquire), exec_->idle}) {
      if (variant != nullptr) use(variant);
    }
  }
  // Returns true if the variant has rewrites. They were proved for the unchanged graph, so none is
  // made from now on: a host that sets nodes does it again and again.
  bool undoes_rewrites(const Variant& variant) {
    if (variant.has_rewrites) exec_->has_set_nodes = true;
    return variant.has_rewrites;
  }
  // Changes Exec::unreplaced. If `change` returns false, it is made anew from the originals, which
  // are changed already.
  template <class Change>
  void change_unreplaced(const Change& change) {
    const Variant* const variant = exec_->unreplaced.load(std::memory_order_relaxed);
    if (variant == nullptr || change(*variant)) return;
    drop_unreplaced(exec_);
    check_running();
  }
  // False: the node has no copy, or it is not known which one it is.
  bool find_kept(CUgraphNode node, CUgraphNode* kept) {
    return exec_->has_known_nodes && current_originals(exec_).graph != nullptr &&
           find_in_clone(node, exec_->originals, kept);
  }
  // Call after a change of the running variant, or of the exec that its checked launches run.
  void check_running();
  bool follow_kernel(Variant* variant, const NodeParams& params);
  // Call before a node of an updated exec is changed: leaves the exec if it is unknown which of the
  // copy's nodes that is, or the copy cannot be brought up to date.
  void find_updated();
  // The host's own exec runs from now on.
  void leave(GraphReason reason);
  CUresult remember_switch(CUgraphNode kept, bool is_enabled);
  // Makes a new running variant from the originals.
  void rebuild();

  Exec* exec_;
  size_t index_ = SIZE_MAX;  // of the planned node; SIZE_MAX: unknown
  PlannedNode planned_;
};

}  // namespace fibshim
