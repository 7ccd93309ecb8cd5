// The plan of a kernel node of a graph.
#pragma once

#include "shim/counters/counters.h"
#include "shim/plan/plan.h"
#include "shim/registry/handles.h"

namespace fibshim {

using NodeParams = CUDA_KERNEL_NODE_PARAMS_v2;

// What to put in the place of a node's original, and the counter of the node.
struct NodePlan {
  LaunchPlan launch;
  NodeParams
      params;  // the replacement's, of a redirect; valid while the plan and the original's parameters live
  CounterIndex counter;  // kNoCounter: the shim is off
  bool is_kept;          // its KeptPlan says the same
};

// The inputs of a plan that depends on the node's own values alone. It holds for any node with the
// same values, within the read section or while handle_changes() keeps its value.
struct KeptPlan {
  const Candidate* candidate;
  const Decision* decision;  // null: plan_node() is to be asked again

  bool is_redirect() const { return decision->kind == DecisionKind::ready; }
};
// Call only for plans that were not refused afterwards.
inline KeptPlan keep_plan(const NodePlan& plan) {
  const bool is_kept = plan.is_kept && (plan.launch.action == LaunchAction::redirect) ==
                                           (plan.launch.decision->kind == DecisionKind::ready);
  return is_kept ? KeptPlan{plan.launch.candidate, plan.launch.decision} : KeptPlan{};
}
// Returns the counter of such a node.
CounterIndex counter_of_kept(const KeptPlan& kept);

// The kernel of a node, as handles are known.
inline const void* handle_of(const NodeParams& params) {
  return params.func != nullptr ? static_cast<const void*>(params.func)
                                : static_cast<const void*>(params.kern);
}

// Whether any pattern knows the kernel, or it is recorded; otherwise plan_node() need not be asked.
bool learn_tracked_kernel(const void* handle);
inline bool is_tracked_kernel(const void* handle) {
  const uintptr_t slot = find_handle(handle);
  return slot == 0 || (slot & kUnmatched) != 0 ? learn_tracked_kernel(handle)
                                               : (slot & kUntracked) == 0;
}

// The geometry of a node's launch as expressions see it. `cluster`: of its attribute; 0: none.
void read_geometry(const NodeParams& params, const uint32_t (&cluster)[3],
                   uint32_t (&geometry)[kGeometryCount]);

// Plans a node, and counts nothing. `cluster`: of the original; 0: none. Within a read section.
LaunchAction plan_node(const NodeParams& original, const uint32_t (&cluster)[3], NodePlan* plan);
// The same, with the launch that the node is.
LaunchAction plan_node(const NodeParams& original, const uint32_t (&cluster)[3],
                       LaunchRequest* request, NodePlan* plan);

// A redirect again, for an original with the same values at other addresses. False: it has other values.
bool plan_again(const KeptPlan& kept, const NodeParams& original, const uint32_t (&cluster)[3],
                NodePlan* plan);

// The parameters of a redirect, whose launch is planned, in the place of `original`.
void fill_node(const NodeParams& original, NodePlan* plan);
NodeParams params_of(const NodeParams& original, const LaunchPlan& launch);

// A redirect turns out to be impossible.
void refuse_node(NodePlan* plan, Outcome outcome);

// Returns the solution of a redirect. Within the read section of the plan.
const Solution& solution_of(const Decision& decision);
inline const Solution& solution_of(const NodePlan& plan) {
  return solution_of(*plan.launch.decision);
}

}  // namespace fibshim
