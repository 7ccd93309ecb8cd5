#include "shim/launch/node_plan.h"

#include <string.h>

#include "shim/driver/context_scope.h"
#include "shim/launch/eager_plan.h"

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

bool is_tracked_kernel(const void* handle) { return find_tracked(handle) != nullptr; }

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

LaunchAction plan_node(const NodeParams& original, const uint32_t (&cluster)[3], NodePlan* plan) {
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
