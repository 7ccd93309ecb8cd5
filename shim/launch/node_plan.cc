#include "shim/launch/node_plan.h"

#include <string.h>

#include "shim/driver/context_scope.h"
#include "shim/launch/eager_plan.h"
#include "shim/launch/shapes.h"
#include "shim/plan/fast_plan.h"
#include "shim/registry/decisions.h"

namespace fibshim {
namespace {

// Uses the decision's CUfunction if it has one, which belongs to the original's own context.
void put_kernel(const NodeParams& original, const Decision& decision, NodeParams* params) {
  const bool has_function = decision.kernel != reinterpret_cast<CUfunction>(decision.node_kernel);
  params->func = has_function ? decision.kernel : nullptr;
  params->kern = has_function ? nullptr : decision.node_kernel;
  params->ctx = original.ctx;
}

// Geometry of the original, in the plain order.
struct PlainGeometry {
  const NodeParams& original;
  uint32_t operator()(uint32_t i) const { return (&original.gridDimX)[i]; }
};
static_assert(offsetof(NodeParams, sharedMemBytes) - offsetof(NodeParams, gridDimX) ==
              kPlainSharedMem * sizeof(uint32_t));

}  // namespace

bool learn_tracked_kernel(const void* handle) { return find_tracked(handle) != nullptr; }

void read_geometry(const NodeParams& params, const uint32_t (&cluster)[3],
                   uint32_t (&geometry)[kGeometryCount]) {
  get_geometry(params, geometry);
  const bool has_cluster = cluster[0] != 0;
  geometry[kClusterX] = has_cluster ? cluster[0] : 1;
  geometry[kClusterY] = has_cluster ? cluster[1] : 1;
  geometry[kClusterZ] = has_cluster ? cluster[2] : 1;
}

namespace {

// Plans the redirect of `original` by a decision whose checks hold. Returns false if a value cannot
// be computed for this launch. `view`: of the launch; read only by expressions.
bool make_redirect(const Decision& decision, const NodeParams& original, const LaunchView& view,
                   NodePlan* plan) {
  LaunchPlan& launch = plan->launch;
  static_assert(kMaxFastArguments <= kMaxParams);
  auto& room = reinterpret_cast<void*(&)[kMaxFastArguments]>(launch.pointers);
  uint32_t geometry[kPlainGeometryCount];
  const bool is_made = decision.fast.way == FastWay::direct
                           ? compose_direct(decision.fast, original.kernelParams,
                                            PlainGeometry{original}, geometry, room, &launch.params)
                           : compose_computed(decision, view, geometry, launch.pointers,
                                              launch.values, &launch.params);
  if (!is_made) return false;
  widen_geometry(geometry, launch.geometry);
  launch.action = LaunchAction::redirect;
  launch.outcome = Outcome::hit;
  launch.decision = &decision;
  launch.workspace_bytes = 0;  // a solution with a workspace has no fast form
  plan->counter = decision.counter;
  fill_node(original, plan);
  return true;
}

void make_view(const Candidate& candidate, const NodeParams& original, const uint32_t (&cluster)[3],
               LaunchView* out) {
  out->params = original.kernelParams;
  out->captures = candidate.captures;
  read_geometry(original, cluster, out->geometry);
}

// Plans a node as the fast side of a launch would, which suits nearly every node of a graph. False:
// call plan_launch().
bool plan_like_fast_side(const NodeParams& original, const uint32_t (&cluster)[3], NodePlan* plan) {
  LaunchPlan& launch = plan->launch;
  const uintptr_t slot = find_handle(handle_of(original));
  if ((slot & (kUntracked | kUnmatched)) == kUntracked) {
    launch.action = LaunchAction::original;
    launch.outcome = Outcome::untracked;
    launch.record = nullptr;
    launch.arguments = nullptr;
    launch.candidate = nullptr;
    launch.decision = nullptr;
    plan->counter = counter_of(0, Outcome::untracked);
    return true;
  }
  void** const params = original.kernelParams;
  if ((slot & kSimple) == 0 || params == nullptr || original.extra != nullptr) return false;
  const Candidate& candidate = simple_candidate_of(slot);
  Way way;
  const Decision* decision =
      find_decision_by_one(candidate, read_fast_key(candidate.fast_key, params), &way);
  if (decision != nullptr && way == Way::chosen) {
    if (!decision->choices->is_fast) return false;
    decision = choose_fast(*decision->choices, params, PlainGeometry{original});
    if (decision != nullptr) way = way_now(*decision);
  }
  if (decision == nullptr || way == Way::undecided || is_quarantined(*decision)) return false;
  const bool has_form =
      decision->fast.way == FastWay::direct || decision->fast.way == FastWay::computed;
  const bool is_redirect = decision->kind == DecisionKind::ready && way != Way::slow && has_form;
  const bool has_whole_checks =
      is_redirect ? decision->fast.way == FastWay::direct : way == Way::original;
  if (!is_redirect && !keeps_original(decision->kind)) return false;
  LaunchView view;
  if (!has_whole_checks) {
    make_view(candidate, original, cluster, &view);
    if (!pattern_holds(candidate, view)) return false;
    if (is_redirect && !solution_holds(*decision, view)) return false;
  } else if (!fast_checks_hold(decision->fast.checks, params)) {
    return false;
  }
  launch.record = candidate.record;
  launch.arguments = params;
  launch.candidate = &candidate;
  plan->is_kept = true;
  if (is_redirect) return make_redirect(*decision, original, view, plan);
  launch.action = LaunchAction::original;
  launch.outcome = outcome_of(decision->kind);
  launch.decision = decision;
  plan->counter = counter_of_plan(launch);
  return true;
}

}  // namespace

LaunchAction plan_node(const NodeParams& original, const uint32_t (&cluster)[3], NodePlan* plan) {
  plan->is_kept = false;
  if (plan_like_fast_side(original, cluster, plan)) {
    if (plan->launch.action == LaunchAction::redirect) {
      LaunchView view;
      make_view(*plan->launch.candidate, original, cluster, &view);
      record_shape_of_node(plan->launch, view);
    }
    return plan->launch.action;
  }
  LaunchRequest request;
  return plan_node(original, cluster, &request, plan);
}

CounterIndex counter_of_kept(const KeptPlan& kept) {
  return kept.is_redirect() ? kept.decision->counter
                            : counter_of(kept.decision->series, outcome_of(kept.decision->kind));
}

bool plan_again(const KeptPlan& kept, const NodeParams& original, const uint32_t (&cluster)[3],
                NodePlan* plan) {
  LaunchView view;
  if (kept.decision->fast.way != FastWay::direct) {
    make_view(*kept.candidate, original, cluster, &view);
  }
  plan->launch.record = kept.candidate->record;
  plan->launch.arguments = original.kernelParams;
  plan->launch.candidate = kept.candidate;
  plan->is_kept = true;
  return make_redirect(*kept.decision, original, view, plan);
}

LaunchAction plan_node(const NodeParams& original, const uint32_t (&cluster)[3],
                       LaunchRequest* request, NodePlan* plan) {
  plan->is_kept = false;
  memset(static_cast<void*>(request), 0, sizeof *request);
  request->handle = handle_of(original);
  request->view.params = original.kernelParams;
  request->extra = original.extra;
  read_geometry(original, cluster, request->view.geometry);
  if (original.ctx != nullptr) {
    const ContextScope scope(original.ctx);
    plan->counter = plan_uncounted(request, &plan->launch);
  } else {
    plan->counter = plan_uncounted(request, &plan->launch);
  }
  if (plan->launch.action == LaunchAction::redirect) {
    fill_node(original, plan);
    record_shape_of_node(plan->launch, request->view);
  }
  return plan->launch.action;
}

void fill_node(const NodeParams& original, NodePlan* plan) {
  plan->params = params_of(original, plan->launch);
}

NodeParams params_of(const NodeParams& original, const LaunchPlan& launch) {
  const uint32_t* const planned = launch.geometry;
  NodeParams params = original;
  put_kernel(original, *launch.decision, &params);
  put_geometry(planned, &params);
  params.kernelParams = launch.params;
  params.extra = nullptr;
  return params;
}

void refuse_node(NodePlan* plan, Outcome outcome) {
  plan->launch.action = LaunchAction::original;
  plan->launch.outcome = outcome;
  plan->counter = counter_of(plan->launch.decision->series, outcome);
}

}  // namespace fibshim
