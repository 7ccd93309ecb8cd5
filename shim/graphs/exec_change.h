// The host changes an executable graph: its own exec first, by its own call; then what runs in its place, and the kept
// originals, are changed alike. Where that cannot be, the host's exec runs from then on.
#pragma once

#include "shim/graphs/exec_state.h"
#include "shim/graphs/node_swap.h"

namespace fibshim {

// From before the host's call until the driver has answered; the exec is locked meanwhile.
class ExecChange {
 public:
  explicit ExecChange(CUgraphExec handle);
  ~ExecChange();
  ExecChange(const ExecChange&) = delete;
  ExecChange& operator=(const ExecChange&) = delete;

  // Before a kernel node is set; within a read section that lasts until set_kernel(). Not CUDA_SUCCESS: the host gets
  // this, and its call is not made.
  CUresult plan_kernel(CUgraphNode node, const NodeParams& params);
  // Returns the parameters to set in the host's exec instead of the host's, if that exec holds
  // replacements; else null.
  const NodeParams* replacement_in_place() const;
  // Call if the driver refuses them.
  void refuse_replacement() { refuse_node(&planned_.plan, Outcome::fallback_graph); }

  // Call these after the driver accepted the change: they repeat it in our copies.
  void set_kernel(const NodeParams& params);
  void set_enabled(CUgraphNode node, bool is_enabled);
  // Repeats a change of another kind of node: `set_kept(node)` changes the copy among the
  // originals, `set_in(exec, node)` that of an exec.
  template <class SetKept, class SetIn>
  void set_other(CUgraphNode node, const SetKept& set_kept, const SetIn& set_in) {
    CUgraphNode kept = nullptr;
    if (exec_ == nullptr || exec_->originals == nullptr) return;
    if (!find_kept(node, &kept) || set_kept(kept) != CUDA_SUCCESS) {
      return leave("a node of it is set that has no copy");
    }
    bool is_done = true;
    for_each_variant([&](Variant* variant) {
      CUgraphNode copy = nullptr;
      if (variant->is_host()) return;  // it has it already
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
  // The child graph of a node: its kernels run as they are.
  void set_child(CUgraphNode node, CUgraph child);
  // Call after a change that is not repeated in our copies: the host's own exec runs from then on.
  void leave(const char* reason);

 private:
  // Visits the variant that runs, the one that is ready, and the idle one of the host's exec.
  template <class Use>
  void for_each_variant(const Use& use) {
    for (Variant* const variant : {exec_->running.load(std::memory_order_relaxed),
                                   exec_->ready.load(std::memory_order_acquire), exec_->idle}) {
      if (variant != nullptr) use(variant);
    }
  }
  // A rewrite held for the graph as it was: from now on there is none.
  bool undoes_rewrites(const Variant& variant) {
    if (variant.has_rewrites) exec_->has_set_nodes = true;
    return variant.has_rewrites;
  }
  // False of `change`: it is made anew, of the originals, which are changed already.
  template <class Change>
  void change_unreplaced(const Change& change) {
    const Variant* const variant = exec_->unreplaced.load(std::memory_order_relaxed);
    if (variant == nullptr || change(*variant)) return;
    drop_unreplaced(exec_);
    check_running();
  }
  // False: it has no copy, or not in a copy of the graph that the exec has taken over.
  bool find_kept(CUgraphNode node, CUgraphNode* kept) {
    return !exec_->taken_over.is_of_another_graph() && current_originals(exec_).graph != nullptr &&
           find_in_clone(node, exec_->originals, kept);
  }
  // Call after a change of the running variant, or of the exec that its checked launches run.
  void check_running();
  bool follow_kernel(Variant* variant, const NodeParams& params);
  CUresult remember_switch(CUgraphNode kept, bool is_enabled);
  // Makes a new running variant from the originals.
  void rebuild();

  Exec* exec_;
  size_t index_ = SIZE_MAX;  // of the node that was planned; SIZE_MAX: it is not known
  PlannedNode planned_;
};

}  // namespace fibshim
