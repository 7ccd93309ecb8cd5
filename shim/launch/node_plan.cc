#include "shim/launch/node_plan.h"

#include <string.h>

#include "shim/launch/eager_plan.h"

namespace fibshim {

LaunchAction plan_node(const NodeParams& original, NodePlan* plan) {
  LaunchRequest request;
  memset(static_cast<void*>(&request), 0, sizeof request);
  request.handle = original.func != nullptr ? static_cast<const void*>(original.func)
                                            : static_cast<const void*>(original.kern);
  request.view.params = original.kernelParams;
  request.extra = original.extra;
  uint32_t* const given = request.view.geometry;
  given[kGridX] = original.gridDimX;
  given[kGridY] = original.gridDimY;
  given[kGridZ] = original.gridDimZ;
  given[kBlockX] = original.blockDimX;
  given[kBlockY] = original.blockDimY;
  given[kBlockZ] = original.blockDimZ;
  given[kClusterX] = given[kClusterY] = given[kClusterZ] = 1;
  given[kSharedMem] = original.sharedMemBytes;
  plan_eager(&request, &plan->launch);
  if (plan->launch.action != LaunchAction::redirect) return plan->launch.action;

  const uint32_t* const planned = plan->launch.geometry;
  NodeParams& params = plan->params;
  params = original;
  params.func = nullptr;
  params.kern = plan->launch.decision->node_kernel;
  // With `func` the context was the function's own; a kernel takes the current one when it is null.
  if (original.func != nullptr) params.ctx = nullptr;
  params.gridDimX = planned[kGridX];
  params.gridDimY = planned[kGridY];
  params.gridDimZ = planned[kGridZ];
  params.blockDimX = planned[kBlockX];
  params.blockDimY = planned[kBlockY];
  params.blockDimZ = planned[kBlockZ];
  params.sharedMemBytes = planned[kSharedMem];
  params.kernelParams = plan->launch.params;
  params.extra = nullptr;
  return LaunchAction::redirect;
}

SavedNode* save_original(const NodeParams& original, NodePlan* plan) {
  SavedNode* const saved = save_node(original, plan->launch);
  if (saved == nullptr) return nullptr;
  const Decision& decision = *plan->launch.decision;
  const Binding& binding = *decision.binding;
  void** const kept = saved_params(*saved).kernelParams;
  if (binding.is_identity != 0) {
    plan->params.kernelParams = kept;
    return saved;
  }
  const ArgumentMap* const arguments = decision.snapshot->begin(binding.arguments);
  for (uint32_t i = 0; i < binding.arguments.count; ++i) {
    const ArgumentMap& argument = arguments[i];
    if (argument.kind != ArgumentMap::Kind::pass) continue;
    plan->launch.pointers[i] = static_cast<char*>(kept[argument.param]) + argument.offset;
  }
  return saved;
}

}  // namespace fibshim
