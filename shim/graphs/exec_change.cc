#include "shim/graphs/exec_change.h"

#include "shim/base/read_section.h"
#include "shim/driver/driver.h"
#include "shim/graphs/child_graphs.h"
#include "shim/graphs/exec_state.h"
#include "shim/graphs/make_variant.h"
#include "shim/graphs/merged_kernels.h"
#include "shim/graphs/shadow_exec.h"
#include "shim/launch/eager_plan.h"
#include "shim/launch/shadow_rules.h"

namespace fibshim {
namespace {

void set_solution(Variant* variant, size_t index, uint32_t solution) {
  if (index >= variant->nodes.count()) return;  // there was no memory for its nodes
  variant->nodes[index].solution = solution;
  if (wants_shadow()) find_sample_interval(variant);
}

}  // namespace

ExecChange::ExecChange(CUgraphExec handle) : exec_(find_exec(handle)) {
  if (exec_ == nullptr) return;
  exec_->lock.lock();
  drop_shadow(exec_);
}

void ExecChange::refuse_replacement(GraphReason reason) {
  count_many(counter_of_kept_node(planned_.plan.counter, reason), 1);
  refuse_node(&planned_.plan, Outcome::fallback_graph);
}

ExecChange::~ExecChange() {
  if (exec_ != nullptr) exec_->lock.unlock();
}

CUresult ExecChange::plan_kernel(CUgraphNode node, const NodeParams& params) {
  if (exec_ == nullptr) return CUDA_SUCCESS;
  index_ = find_host_node(exec_->host_nodes, node);
  if (index_ == SIZE_MAX) return CUDA_SUCCESS;
  KernelNode& known = exec_->nodes[index_];
  const bool is_unknown = exec_->is_updated && !exec_->has_known_nodes;
  const bool is_own = known.kept == nullptr || is_unknown;
  const CUgraphNode attributed = is_own ? node : known.kept;
  NodeFacts own_facts = {};
  NodeFacts* const facts = is_unknown ? &own_facts : &known.facts;
  if (exec_->is_in_place && exec_->originals == nullptr) {
    plan_in_exec(attributed, params, facts, &planned_);
    if (planned_.is_redirect() && wants_shadow() &&
        shadow_interval(*planned_.plan.launch.decision->snapshot, solution_of(planned_.plan)) ==
            1) {
      // Every launch is to be checked, which needs the originals, and there are none.
      refuse_replacement(GraphReason::unchecked);
    }
  } else {
    plan_copied_node(attributed, params, facts, &planned_);
  }
  const LaunchPlan& launch = planned_.plan.launch;
  if (launch.action != LaunchAction::fail) return CUDA_SUCCESS;
  count_many(counter_of_kind(planned_.plan.counter, CountKind::node), 1);
  record_failed_plan(launch);
  return launch.decision->error;
}

const NodeParams* ExecChange::replacement_in_place() const {
  const bool has_one = exec_ != nullptr && exec_->is_in_place && index_ != SIZE_MAX;
  return has_one && planned_.is_redirect() && planned_.has_plain_shape() ? &planned_.plan.params
                                                                         : nullptr;
}

bool ExecChange::follow_kernel(Variant* variant, const NodeParams& params) {
  if (variant->has_rewrites) {
    Following following(exec_, variant, nullptr);
    const bool is_done =
        following.may_follow() && following.change(index_, params, planned_) && following.finish();
    return is_done || !undoes_rewrites(*variant);
  }
  exec_->has_set_nodes = true;
  const auto set_in = FIBSHIM_REAL(cuGraphExecKernelNodeSetParams_v2);
  const VariantNode& node = variant->nodes[index_];
  if (!is_same_shape(node.shape, planned_.shape) || set_in == nullptr) return false;
  if (!give_workspace(variant, index_, false, &planned_)) return false;
  const NodeParams& given = planned_.is_redirect() ? planned_.plan.params : params;
  if (set_in(variant->exec, node.node, &given) != CUDA_SUCCESS) return false;
  set_solution(variant, index_, solution_number(planned_));
  return count_node_as(variant, index_, planned_.plan.counter, exec_->nodes[index_].is_disabled);
}

void ExecChange::set_kernel(const NodeParams& params) {
  if (exec_ == nullptr) return;
  if (index_ == SIZE_MAX) return leave(GraphReason::set_unknown);
  const bool had_copy = exec_->originals != nullptr;
  find_updated();
  const KernelNode& known = exec_->nodes[index_];
  const bool keeps_original = planned_.is_redirect() && replacement_in_place() == nullptr;
  CounterIndex of_host = planned_.plan.counter;  // in the host's exec
  if (keeps_original) of_host = counter_of_unchanged(of_host);
  const auto set_kept = FIBSHIM_REAL(cuGraphKernelNodeSetParams_v2);
  if (exec_->originals != nullptr &&
      (!known.is_certain || set_kept == nullptr || set_kept(known.kept, &params) != CUDA_SUCCESS)) {
    leave(GraphReason::set_unknown);
  }
  if (exec_->originals == nullptr) {
    if (keeps_original && !had_copy) {
      count_many(counter_of_kept_node(of_host, GraphReason::set_unknown), 1);
    }
    (void)count_node_as(exec_->running.load(std::memory_order_relaxed), index_, of_host,
                        known.is_disabled);
    return;
  }
  if (!add_owner(params, &exec_->owners)) return leave(GraphReason::refused);
  exec_->nodes[index_].has_no_check = false;
  change_unreplaced([&](const Variant& variant) {
    const auto set_in = FIBSHIM_REAL(cuGraphExecKernelNodeSetParams_v2);
    return set_in != nullptr &&
           set_in(variant.exec, variant.nodes[index_].node, &params) == CUDA_SUCCESS;
  });
  bool is_done = true;
  for_each_variant([&](Variant* variant) {
    if (!variant->is_host()) {
      is_done = is_done && follow_kernel(variant, params);
      return;
    }
    exec_->has_set_nodes = true;
    is_done = is_done && (variant == exec_->idle || !keeps_original);
    set_solution(variant, index_, keeps_original ? 0 : solution_number(planned_));
    (void)count_node_as(variant, index_, of_host, known.is_disabled);
  });
  if (!is_done) return rebuild();
  check_running();
}

void ExecChange::check_running() {
  (void)keep_unreplaced(exec_, *exec_->running.load(std::memory_order_relaxed));
  follow_interval(exec_);
}

CUresult ExecChange::remember_switch(CUgraphNode kept, bool is_enabled) {
  Block<CUgraphNode> others;
  for (const CUgraphNode one : exec_->disabled_others) {
    if (one == kept) continue;
    CUgraphNode* const added = others.append();
    if (added == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
    *added = one;
  }
  if (!is_enabled) {
    CUgraphNode* const added = others.append();
    if (added == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
    *added = kept;
  }
  exec_->disabled_others.swap(others);
  return CUDA_SUCCESS;
}

void ExecChange::set_enabled(CUgraphNode node, bool is_enabled) {
  if (exec_ == nullptr) return;
  const auto set_in = FIBSHIM_REAL(cuGraphNodeSetEnabled);
  const size_t index = find_host_node(exec_->host_nodes, node);
  if (index == SIZE_MAX) {
    // A copy or a fill: those that are made anew must know.
    set_other(
        node, [&](CUgraphNode kept) { return remember_switch(kept, is_enabled); },
        [&](CUgraphExec exec, CUgraphNode copy) { return set_in(exec, copy, is_enabled ? 1 : 0); });
    exec_->has_switched_others |= exec_->originals == nullptr;
    return;
  }
  find_updated();
  KernelNode& known = exec_->nodes[index];
  if (known.is_disabled == !is_enabled) return;
  known.is_disabled = !is_enabled;
  change_unreplaced([&](const Variant& variant) {
    return set_in(variant.exec, variant.nodes[index].node, is_enabled ? 1 : 0) == CUDA_SUCCESS;
  });
  bool is_done = true;
  for_each_variant([&](Variant* variant) {
    if (index >= variant->nodes.count()) return;  // there was no memory for its nodes
    // The driver does not document early edges of a disabled node.
    const NodeShape& shape = variant->nodes[index].shape;
    is_done =
        is_done && (variant->is_host() || (!shape.has_early_edge() && !undoes_rewrites(*variant) &&
                                           set_in(variant->exec, variant->nodes[index].node,
                                                  is_enabled ? 1 : 0) == CUDA_SUCCESS));
    switch_node(variant, index, !is_enabled);
  });
  if (!is_done) rebuild();
}

void ExecChange::find_updated() {
  if (!exec_->is_updated || exec_->originals == nullptr) return;
  if (!exec_->has_known_nodes || current_originals(exec_).graph == nullptr) {
    leave(GraphReason::set_after_update);
  }
}

void ExecChange::leave(GraphReason reason) {
  if (exec_ == nullptr || exec_->originals == nullptr) return;
  const ReadSection section;
  run_host_exec(exec_, reason);
}

void ExecChange::set_child(CUgraphNode node, CUgraph child) {
  if (exec_ == nullptr) return;
  find_updated();
  // A copy of the child graph would keep its objects longer than the exec does.
  if (exec_->originals != nullptr && !has_user_objects() && replace_child(exec_, node, child)) {
    exec_->has_set_nodes = true;
    drop_unreplaced(exec_);
    return rebuild();
  }
  leave(GraphReason::set_child);
  Variant* const running = exec_->running.load(std::memory_order_relaxed);
  CUgraph before = nullptr;
  const ReadSection section;
  const auto count_kernel = [&](CUgraphNode known, CUgraph, CUgraphNode set, bool) {
    const size_t index = find_host_node(exec_->host_nodes, known);
    NodeParams params;
    if (index >= running->nodes.count() || !read_kernel(set, &params)) return false;
    // Later changes of the node are planned by its facts as they are now, and keep the original.
    NodeFacts& facts = exec_->nodes[index].facts = {};
    PlannedNode planned;
    (void)attributes_of(set, &facts);
    plan_copied_node(set, params, &facts, &planned);
    facts.edges.is_known = false;
    facts.has_edges = true;
    if (planned.plan.launch.action != LaunchAction::original) {
      // Unless it was counted before: when the exec was left, or its child graph set.
      if (outcome_of_counter(running->nodes[index].counter) != Outcome::fallback_graph) {
        count_many(counter_of_kept_node(planned.plan.counter, GraphReason::set_child), 1);
      }
      refuse_node(&planned.plan, Outcome::fallback_graph);
    }
    set_solution(running, index, 0);
    return count_node_as(running, index, planned.plan.counter, exec_->nodes[index].is_disabled);
  };
  if (find_child(node, &before) && for_each_copied_kernel(before, child, count_kernel, true))
    return;
  // The shim cannot tell which of its kernels run, so it counts none.
  for (VariantNode& one : running->nodes) one.counter = kNoCounter;
  (void)running->runs.allocate(0);
}

void ExecChange::rebuild() {
  if (exec_->is_frozen) return leave(GraphReason::refused);
  drop_ready_variant(exec_);
  const ReadSection section;
  const Originals originals = current_originals(exec_);
  Variant* variant = nullptr;
  Made made = make_rewritten(originals, &variant);
  if (made == Made::rewritten && !instantiate_variant(originals, variant)) made = Made::failed;
  if (made == Made::failed) {
    end_variant(variant);
    return leave(GraphReason::refused);
  }
  if (made == Made::unchanged) variant->exec = exec_->host;
  exec_->tried = variant->generation;
  (void)keep_unreplaced(exec_, *variant);
  run_variant(exec_, variant);
}

}  // namespace fibshim
