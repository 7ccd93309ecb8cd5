// The plan of a kernel node of a graph.
#pragma once

#include "shim/counters/counters.h"
#include "shim/plan/plan.h"
#include "shim/registry/handles.h"

namespace fibshim {

using NodeParams = CUDA_KERNEL_NODE_PARAMS_v2;

// The replacement of a node, and the node's counter.
struct NodePlan {
  LaunchPlan launch;
  NodeParams
      params;  // redirect: the replacement's; valid as long as the plan and the original's are
  CounterIndex counter;  // kNoCounter: the shim is off
  bool is_kept;          // a KeptPlan can stand for it
};

// The inputs of a plan that depends on the node's own values alone. It holds for any node with the
// same values, within the read section or while handle_changes() keeps its value.
struct KeptPlan {
  const Candidate* candidate;
  const Decision* decision;  // null: call plan_node() again
  bool has_shape;            // the replacement changes more than the node's parameters

  bool is_redirect() const { return decision->kind == DecisionKind::ready; }
};
// Returns an empty KeptPlan if the plan was refused afterwards.
inline KeptPlan keep_plan(const NodePlan& plan) {
  const bool is_kept = plan.is_kept && (plan.launch.action == LaunchAction::redirect) ==
                                           (plan.launch.decision->kind == DecisionKind::ready);
  return is_kept ? KeptPlan{plan.launch.candidate, plan.launch.decision, false} : KeptPlan{};
}
// Returns the counter of such a node.
CounterIndex counter_of_kept(const KeptPlan& kept);

// Returns the handle of a node's kernel, as in the handle table.
inline const void* handle_of(const NodeParams& params) {
  return params.func != nullptr ? static_cast<const void*>(params.func)
                                : static_cast<const void*>(params.kern);
}

// True if any pattern fits the kernel, or it is recorded. Otherwise plan_node() need not be called.
bool learn_tracked_kernel(const void* handle);
inline bool is_tracked_kernel(const void* handle) {
  const uintptr_t slot = find_handle(handle);
  return slot == 0 || (slot & kUnmatched) != 0 ? learn_tracked_kernel(handle)
                                               : (slot & kUntracked) == 0;
}

// Reads the geometry of a node's launch for expressions. `cluster`: from its attribute; 0: none.
void read_geometry(const NodeParams& params, const uint32_t (&cluster)[3],
                   uint32_t (&geometry)[kGeometryCount]);

// Plans a node, and counts nothing. `cluster`: of the original; 0: none. Requires a read section.
LaunchAction plan_node(const NodeParams& original, const uint32_t (&cluster)[3], NodePlan* plan);
// The same without the fast form; also fills `request` with the node's launch.
LaunchAction plan_node(const NodeParams& original, const uint32_t (&cluster)[3],
                       LaunchRequest* request, NodePlan* plan);

// Plans a kept redirect again, for an original with the same values at other addresses. Returns
// false if no redirect can be made.
bool plan_again(const KeptPlan& kept, const NodeParams& original, const uint32_t (&cluster)[3],
                NodePlan* plan);

// Make the node parameters of a planned redirect, which replace `original`.
void fill_node(const NodeParams& original, NodePlan* plan);
NodeParams params_of(const NodeParams& original, const LaunchPlan& launch);

// Call if a redirect turns out to be impossible: plans the original, counted as `outcome`.
void refuse_node(NodePlan* plan, Outcome outcome);

// Returns the solution of a redirect. Requires the plan's read section.
inline const Solution& solution_of(const NodePlan& plan) {
  return solution_of(*plan.launch.decision);
}

}  // namespace fibshim
