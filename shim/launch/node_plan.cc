#include "shim/launch/node_plan.h"

#include <string.h>

#include "shim/driver/context_scope.h"
#include "shim/launch/eager_plan.h"
#include "shim/plan/fast_plan.h"
#include "shim/registry/decisions.h"

namespace fibshim {
namespace {

// A CUfunction where the decision has one: it is of the original's own context.
void put_kernel(const NodeParams& original, const Decision& decision, NodeParams* params) {
  const bool has_function = decision.kernel != reinterpret_cast<CUfunction>(decision.node_kernel);
  params->func = has_function ? decision.kernel : nullptr;
  params->kern = has_function ? nullptr : decision.node_kernel;
  params->ctx = original.ctx;
}

}  // namespace

bool learn_tracked_kernel(const void* handle) { return find_tracked(handle) != nullptr; }

void read_geometry(const NodeParams& params, const uint32_t (&cluster)[3],
                   uint32_t (&geometry)[kGeometryCount]) {
  geometry[kGridX] = params.gridDimX;
  geometry[kGridY] = params.gridDimY;
  geometry[kGridZ] = params.gridDimZ;
  geometry[kBlockX] = params.blockDimX;
  geometry[kBlockY] = params.blockDimY;
  geometry[kBlockZ] = params.blockDimZ;
  for (int i = 0; i < 3; ++i) geometry[kClusterX + i] = cluster[0] == 0 ? 1 : cluster[i];
  geometry[kSharedMem] = params.sharedMemBytes;
}

namespace {

// The replacement's arguments and geometry, by the fast form of a decision. False: plan_launch() must be asked.
bool make_directly(const Decision& decision, const NodeParams& original, LaunchPlan* plan,
                   uint32_t (&geometry)[kPlainGeometryCount]) {
  static_assert(kMaxFastArguments <= kMaxParams &&
                offsetof(NodeParams, sharedMemBytes) - offsetof(NodeParams, gridDimX) ==
                    kPlainSharedMem * sizeof(uint32_t));
  const auto geometry_of = [&](uint32_t i) { return (&original.gridDimX)[i]; };
  if (!fast_checks_hold(decision.fast.checks, original.kernelParams) ||
      !make_fast_geometry(decision.fast, original.kernelParams, geometry_of, geometry)) {
    return false;
  }
  auto& room = reinterpret_cast<void*(&)[kMaxFastArguments]>(plan->pointers);
  plan->params = make_fast_arguments(decision.fast, original.kernelParams, room);
  return true;
}

// The same where it takes expressions.
bool make_computed(const Candidate& candidate, const Decision& decision, const LaunchView& view,
                   LaunchPlan* plan, uint32_t (&geometry)[kPlainGeometryCount]) {
  if (!pattern_holds(candidate, view) || !solution_holds(decision, view)) return false;
  memcpy(geometry, decision.fast.geometry, sizeof geometry);
  for (uint32_t left = decision.fast.has_dynamic; left != 0; left &= left - 1) {
    const auto index = static_cast<uint32_t>(__builtin_ctz(left));
    const uint32_t target = index == kSharedMem ? kPlainSharedMem : index;
    if (!compute_dimension(decision, index, view, &geometry[target])) return false;
  }
  plan->params = const_cast<void**>(view.params);
  if (decision.binding->is_identity != 0) return true;
  plan->params = plan->pointers;
  return compute_arguments(decision, view, plan->pointers, plan->values);
}

bool keeps_original(DecisionKind kind) {
  return kind == DecisionKind::no_solution || kind == DecisionKind::arch ||
         kind == DecisionKind::refused;
}

// What the fast side of a launch would do with it: nearly every node of a graph is like that, and a graph has many. False:
// plan_launch() must be asked.
bool plan_like_fast_side(const NodeParams& original, const uint32_t (&cluster)[3], NodePlan* plan) {
  LaunchPlan& launch = plan->launch;
  const uintptr_t slot = find_handle(handle_of(original));
  launch.action = LaunchAction::original;
  if ((slot & (kUntracked | kUnmatched)) == kUntracked) {
    launch.outcome = Outcome::untracked;
    launch.record = nullptr;
    launch.arguments = nullptr;
    launch.candidate = nullptr;
    launch.decision = nullptr;
    plan->counter = counter_of(0, Outcome::untracked);
    return true;
  }
  if ((slot & kSimple) == 0 || original.kernelParams == nullptr || original.extra != nullptr) {
    return false;
  }
  const Candidate& candidate = simple_candidate_of(slot);
  const int64_t key = read_fast_key(candidate.fast_key, original.kernelParams);
  const Decision* decision = find_decision_by_one(candidate, key);
  if (decision != nullptr && way_now(*decision) == Way::chosen) {
    if (!decision->choices->is_fast) return false;
    decision = choose_fast(*decision->choices, original.kernelParams,
                           [&](uint32_t i) { return (&original.gridDimX)[i]; });
  }
  if (decision == nullptr || is_quarantined(*decision)) return false;
  Way way = way_now(*decision);
  if (way == Way::sampled) way = plain_way(decision->fast);
  LaunchView view;
  if (way == Way::computed || way == Way::slow) {
    view.params = original.kernelParams;
    view.captures = candidate.captures;
    read_geometry(original, cluster, view.geometry);
  }
  uint32_t geometry[kPlainGeometryCount];
  switch (way) {
    case Way::direct:
      if (!make_directly(*decision, original, &launch, geometry)) return false;
      launch.action = LaunchAction::redirect;
      break;
    case Way::computed:
      if (!make_computed(candidate, *decision, view, &launch, geometry)) return false;
      launch.action = LaunchAction::redirect;
      break;
    case Way::original:
      if (!fast_checks_hold(decision->fast.checks, original.kernelParams)) return false;
      break;
    default:
      if (!keeps_original(decision->kind) || !pattern_holds(candidate, view)) return false;
      break;
  }
  launch.outcome = outcome_of(decision->kind);
  launch.record = candidate.record;
  launch.arguments = original.kernelParams;
  launch.candidate = &candidate;
  launch.decision = decision;
  plan->counter = counter_of_plan(launch);
  if (launch.action != LaunchAction::redirect) return true;
  for (uint32_t i = 0; i < kPlainSharedMem; ++i) launch.geometry[i] = geometry[i];
  for (uint32_t i = kClusterX; i <= kClusterZ; ++i) launch.geometry[i] = 1;
  launch.geometry[kSharedMem] = geometry[kPlainSharedMem];
  fill_node(original, plan);
  return true;
}

}  // namespace

LaunchAction plan_node(const NodeParams& original, const uint32_t (&cluster)[3], NodePlan* plan) {
  if (plan_like_fast_side(original, cluster, plan)) return plan->launch.action;
  LaunchRequest request;
  return plan_node(original, cluster, &request, plan);
}

LaunchAction plan_node(const NodeParams& original, const uint32_t (&cluster)[3],
                       LaunchRequest* request, NodePlan* plan) {
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
  if (plan->launch.action == LaunchAction::redirect) fill_node(original, plan);
  return plan->launch.action;
}

void fill_node(const NodeParams& original, NodePlan* plan) {
  plan->params = params_of(original, plan->launch);
}

NodeParams params_of(const NodeParams& original, const LaunchPlan& launch) {
  const uint32_t* const planned = launch.geometry;
  NodeParams params = original;
  put_kernel(original, *launch.decision, &params);
  params.gridDimX = planned[kGridX];
  params.gridDimY = planned[kGridY];
  params.gridDimZ = planned[kGridZ];
  params.blockDimX = planned[kBlockX];
  params.blockDimY = planned[kBlockY];
  params.blockDimZ = planned[kBlockZ];
  params.sharedMemBytes = planned[kSharedMem];
  params.kernelParams = launch.params;
  params.extra = nullptr;
  return params;
}

void refuse_node(NodePlan* plan, Outcome outcome) {
  plan->launch.action = LaunchAction::original;
  plan->launch.outcome = outcome;
  plan->counter = counter_of(plan->launch.decision->series, outcome);
}

const Solution& solution_of(const NodePlan& plan) {
  const Decision& decision = *plan.launch.decision;
  const Snapshot& snapshot = *decision.snapshot;
  return snapshot.begin(snapshot.solutions)[decision.binding->solution];
}

}  // namespace fibshim
