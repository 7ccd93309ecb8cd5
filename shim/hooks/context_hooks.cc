// Hooks for contexts: create them, and destroy them with everything in them.
#include "shim/hooks/hooks.h"

#include "shim/base/upcalls.h"
#include "shim/driver/context_scope.h"
#include "shim/graphs/exec_table.h"
#include "shim/hooks/call_real.h"
#include "shim/launch/captures.h"
#include "shim/launch/lost_context.h"
#include "shim/launch/shadow_launch.h"
#include "shim/launch/workspace.h"
#include "shim/life/ended_contexts.h"
#include "shim/registry/devices.h"

namespace fibshim {
namespace {

CUresult record_context(CUresult result, CUdevice device) {
  if (result != CUDA_SUCCESS) return result;
  // Makes the process visible to operators even if it launches nothing.
  (void)upcalls().ensure_started();
  record_device_use(device);
  return result;
}

void end_context(CUcontext context) {
  forget_functions_of_ending(context);
  drop_shadow_of_context(context);
  end_captures_of_context(context);
  forget_modules_of_ended(context);
  count_ended_stream();
  forget_lost_context(context);
}

template <class Function>
CUresult end_context(const std::atomic<Function>& function, CUcontext context) {
  end_context(context);
  return call_real(function, context);
}

// `handle`: of what is released or reset, and the primary context of `device` with it.
template <class Function, class Handle>
CUresult end_primary_context(const std::atomic<Function>& function, Handle handle, CUdevice device,
                             bool is_reset) {
  const CUcontext context = primary_context_of(device);
  forget_functions_of_ending(context);
  if (is_reset) forget_modules_of_ended(context);
  hold_execs_of_context(context);
  count_ended_stream();
  const CUresult result = call_real(function, handle);
  // Other users may still hold a context that was released. Only now is it known if it has ended.
  const bool has_ended = is_reset || !is_primary_context_active(device);
  if (has_ended) drop_shadow_of_context(context);
  if (!is_reset && has_ended) forget_modules_of_ended(context);
  let_go_execs_of_context(context);
  end_captures_of_primary_context(device, is_reset);
  forget_lost_primary_context(device);
  return result;
}

}  // namespace
}  // namespace fibshim

using namespace fibshim;  // NOLINT(google-build-using-namespace): this file is all hooks

// --- create ---

CUresult hook_cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  const CUresult result = call_real(real::cuDevicePrimaryCtxRetain, context, device);
  if (result == CUDA_SUCCESS) record_primary_context(device, *context);
  return record_context(result, device);
}

CUresult hook_cuCtxCreate(CUcontext* context, unsigned flags, CUdevice device) {
  return record_context(call_real(real::cuCtxCreate, context, flags, device), device);
}

CUresult hook_cuCtxCreate_v2(CUcontext* context, unsigned flags, CUdevice device) {
  return record_context(call_real(real::cuCtxCreate_v2, context, flags, device), device);
}

CUresult hook_cuCtxCreate_v3(CUcontext* context, CUexecAffinityParam* params, int param_count,
                             unsigned flags, CUdevice device) {
  return record_context(
      call_real(real::cuCtxCreate_v3, context, params, param_count, flags, device), device);
}

CUresult hook_cuCtxCreate_v4(CUcontext* context, CUctxCreateParams* params, unsigned flags,
                             CUdevice device) {
  return record_context(call_real(real::cuCtxCreate_v4, context, params, flags, device), device);
}

CUresult hook_cuGreenCtxCreate(CUgreenCtx* context, CUdevResourceDesc resources, CUdevice device,
                               unsigned flags) {
  return record_context(call_real(real::cuGreenCtxCreate, context, resources, device, flags),
                        device);
}

// --- destroy ---

CUresult hook_cuCtxDestroy(CUcontext context) { return end_context(real::cuCtxDestroy, context); }

CUresult hook_cuCtxDestroy_v2(CUcontext context) {
  return end_context(real::cuCtxDestroy_v2, context);
}

CUresult hook_cuCtxDetach(CUcontext context) { return end_context(real::cuCtxDetach, context); }

CUresult hook_cuDevicePrimaryCtxRelease(CUdevice device) {
  return end_primary_context(real::cuDevicePrimaryCtxRelease, device, device, false);
}

CUresult hook_cuDevicePrimaryCtxRelease_v2(CUdevice device) {
  return end_primary_context(real::cuDevicePrimaryCtxRelease_v2, device, device, false);
}

CUresult hook_cuDevicePrimaryCtxReset(CUdevice device) {
  return end_primary_context(real::cuDevicePrimaryCtxReset, device, device, true);
}

CUresult hook_cuDevicePrimaryCtxReset_v2(CUdevice device) {
  return end_primary_context(real::cuDevicePrimaryCtxReset_v2, device, device, true);
}

CUresult hook_cuGreenCtxDestroy(CUgreenCtx green) {
  const CUcontext context = context_of_green(green);
  const CUdevice device = device_of_context(context);
  end_workspaces_of_context(context);  // their memory is the primary context's
  end_context(context);
  // It holds the primary context, too.
  return end_primary_context(real::cuGreenCtxDestroy, green, device, false);
}
