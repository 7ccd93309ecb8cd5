// The hooks: what the host calls in the driver's place. Thin; each does one thing beside the real
// call.
//
// Any thread, any time, before cuInit too. The real pointer is resolved on demand; where the
// process has no driver at all the answer is what a missing driver means. Out-parameters are
// touched only after success and when they are not null.
#include "shim/hooks/hooks.h"

#include <string.h>

#include "shim/graphs/captures.h"
#include "shim/registry/devices_in_use.h"
#include "shim/driver/driver.h"
#include "shim/graphs/graphs.h"
#include "shim/registry/handles.h"
#include "shim/registry/image_identity.h"
#include "shim/launch/launch_entry.h"
#include "shim/launch/launch_path.h"
#include "shim/launch/launch_slow.h"
#include "shim/base/read_section.h"
#include "shim/launch/recording.h"
#include "shim/life/runtime.h"
#include "shim/base/settings_in_force.h"
#include "shim/hooks/hook_addresses.h"
#include "shim/launch/lost_context.h"

namespace fibshim {
namespace {

template <class Handle>
uintptr_t as_owner(Handle handle) {
  return reinterpret_cast<uintptr_t>(handle);
}

// What came in, for patterns that ask for an image. `owner` is where the host wants its handle.
template <class Owner>
CUresult note_load(CUresult result, const Owner* owner, const void* image) {
  if (result == CUDA_SUCCESS && owner != nullptr) note_image(as_owner(*owner), image);
  return result;
}

template <class Owner>
CUresult note_file_load(CUresult result, const Owner* owner, const char* path) {
  if (result == CUDA_SUCCESS && owner != nullptr) note_image_file(as_owner(*owner), path);
  return result;
}

void exchange_result(CUresult result, void** function) {
  if (result == CUDA_SUCCESS && function != nullptr && *function != nullptr && is_active() &&
      resolve_driver()) {
    *function = exchange_pointer(*function);
  }
}

// Remembers handles that were enumerated: their names come from the driver.
template <class Handle, class GetName>
void remember_all(const Handle* handles, unsigned count, HandleKind kind, uintptr_t owner,
                  GetName get_name) {
  if (handles == nullptr || get_name == nullptr || !ensure_started()) return;
  for (unsigned i = 0; i < count; ++i) {
    const char* name = nullptr;
    if (handles[i] != nullptr && get_name(&name, handles[i]) == CUDA_SUCCESS) {
      (void)remember_handle(handles[i], kind, owner, name);
    }
  }
}

// Before any context may end.
void forget_context() {
  forget_functions();
  drop_recording_events();
}

// --- launches ---

LaunchRequest make_request(CUfunction function, const unsigned (&geometry)[7], void** params,
                           void** extra, CUstream stream, bool is_per_thread_stream) {
  LaunchRequest request;
  request.handle = function;
  request.extra = extra;
  request.stream = stream;
  request.is_per_thread_stream = is_per_thread_stream;
  request.must_keep_kernel = false;
  request.view.params = params;
  for (int i = 0; i < 6; ++i) request.view.geometry[i] = geometry[i];
  request.view.geometry[kClusterX] = 1;
  request.view.geometry[kClusterY] = 1;
  request.view.geometry[kClusterZ] = 1;
  request.view.geometry[kSharedMem] = geometry[6];
  return request;
}

using LaunchFunction = PFN_cuLaunchKernel_v4000;
using LaunchExFunction = PFN_cuLaunchKernelEx_v11060;

void set_geometry(const LaunchPlan& plan, CUlaunchConfig* config) {
  const uint32_t* geometry = plan.geometry;
  config->gridDimX = geometry[kGridX];
  config->gridDimY = geometry[kGridY];
  config->gridDimZ = geometry[kGridZ];
  config->blockDimX = geometry[kBlockX];
  config->blockDimY = geometry[kBlockY];
  config->blockDimZ = geometry[kBlockZ];
  config->sharedMemBytes = geometry[kSharedMem];
}

void add_cluster(const LaunchPlan& plan, CUlaunchAttribute* attribute) {
  memset(attribute, 0, sizeof *attribute);
  attribute->id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
  attribute->value.clusterDim.x = plan.geometry[kClusterX];
  attribute->value.clusterDim.y = plan.geometry[kClusterY];
  attribute->value.clusterDim.z = plan.geometry[kClusterZ];
}

// The launch as the host asked for it. What is recorded does not go on in launch_entry.cc: its end must
// be seen.
CUresult launch_original(const LaunchFrame& frame, const LaunchFunctions& functions) {
  const auto call = [&](const auto& slot, auto... extra) {
    return call_real(slot, reinterpret_cast<CUfunction>(frame.function),
                     static_cast<unsigned>(frame.grid[0]), static_cast<unsigned>(frame.grid[1]),
                     static_cast<unsigned>(frame.grid[2]), static_cast<unsigned>(frame.block_xy[0]),
                     static_cast<unsigned>(frame.block_xy[1]), static_cast<unsigned>(frame.block_z),
                     static_cast<unsigned>(frame.shared_mem), frame.stream, frame.params, extra...);
  };
  if (functions.has_extra) return call(*functions.launch, frame.extra);
  return functions.is_per_thread_stream ? call(real::cuLaunchCooperativeKernel_ptsz)
                                        : call(real::cuLaunchCooperativeKernel);
}

// The replacement of a launch that came without attributes.
CUresult launch_plain(const LaunchPlan& plan, CUstream stream, LaunchFunction launch,
                      LaunchExFunction launch_ex) {
  const uint32_t* geometry = plan.geometry;
  if (__builtin_expect(!plan.decision->binding->has_cluster, 1)) {
    return launch(plan.kernel, geometry[kGridX], geometry[kGridY], geometry[kGridZ],
                  geometry[kBlockX], geometry[kBlockY], geometry[kBlockZ], geometry[kSharedMem],
                  stream, plan.params, nullptr);
  }
  if (launch_ex == nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  CUlaunchConfig config = {};
  CUlaunchAttribute attribute;
  set_geometry(plan, &config);
  config.hStream = stream;
  add_cluster(plan, &attribute);
  config.attrs = &attribute;
  config.numAttrs = 1;
  return launch_ex(&config, plan.kernel, plan.params, nullptr);
}

// What a redirected launch leaves behind where a stream is capturing: the host may read the node,
// and must find its own kernel.
class CaptureNote {
 public:
  CaptureNote(const LaunchRequest& request, const LaunchPlan& plan)
      : request_(request),
        plan_(plan),
        is_needed_(plan.action == LaunchAction::redirect &&
                   __builtin_expect(g_active_captures.load(std::memory_order_relaxed) != 0, 0)),
        saved_(is_needed_ ? save_launch(request, plan) : nullptr) {}
  CaptureNote(const CaptureNote&) = delete;
  CaptureNote& operator=(const CaptureNote&) = delete;

  // False: no memory, so the launch may not be redirected.
  bool can_be_made() const { return !is_needed_ || saved_ != nullptr; }

  void make(CUresult result) const {
    if (saved_ == nullptr) return;
    if (result == CUDA_SUCCESS) {
      remember_captured_node(request_, saved_);
    } else {
      release_saved(saved_);
    }
  }

 private:
  const LaunchRequest& request_;
  const LaunchPlan& plan_;
  bool is_needed_;
  SavedNode* saved_;
};

// A launch whose redirection turns out to be impossible.
void refuse(LaunchPlan* plan) {
  count(counter_of(plan->decision->series, Outcome::fallback_refused));
  plan->outcome = Outcome::fallback_refused;
}

constexpr unsigned kMaxAttributes = 32;

// The host's attributes, but for what must fit the replacement: its cluster, whether it waits for
// the kernel before it, and that it is no cooperative kernel. False: too many to copy.
bool fit_attributes(const CUlaunchConfig& original, const LaunchPlan& plan,
                    CUlaunchAttribute* attributes, unsigned* count) {
  const Decision& decision = *plan.decision;
  const Solution& solution =
      decision.snapshot->begin(decision.snapshot->solutions)[decision.binding->solution];
  *count = 0;
  for (unsigned i = 0; i < original.numAttrs; ++i) {
    const CUlaunchAttribute& attribute = original.attrs[i];
    switch (attribute.id) {
      case CU_LAUNCH_ATTRIBUTE_COOPERATIVE:
      case CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION:
      case CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE:
      case CU_LAUNCH_ATTRIBUTE_PREFERRED_CLUSTER_DIMENSION: continue;
      case CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION:
        if (!solution.waits_for_previous) continue;
        break;
      default: break;
    }
    if (*count == kMaxAttributes) return false;
    attributes[(*count)++] = attribute;
  }
  if (decision.binding->has_cluster) {
    if (*count == kMaxAttributes) return false;
    add_cluster(plan, &attributes[(*count)++]);
  }
  return true;
}

// A node that the device itself updates keeps its kernel: its parameters are written elsewhere.
bool is_device_updatable(const CUlaunchConfig& config) {
  for (unsigned i = 0; i < config.numAttrs; ++i) {
    if (config.attrs[i].id == CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE &&
        config.attrs[i].value.deviceUpdatableKernelNode.deviceUpdatable != 0) {
      return true;
    }
  }
  return false;
}

}  // namespace

__attribute__((noinline)) CUresult launch_config_slowly(const CUlaunchConfig* config,
                                                        CUfunction function, void** params,
                                                        void** extra,
                                                        const LaunchFunctions& functions) {
  if (functions.launch_ex->load(std::memory_order_relaxed) == nullptr && !resolve_driver()) {
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  const LaunchExFunction launch = functions.launch_ex->load(std::memory_order_relaxed);
  if (launch == nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  const auto original = [&] { return launch(config, function, params, extra); };
  // The driver refuses such a call.
  if (config == nullptr || (config->numAttrs != 0 && config->attrs == nullptr)) return original();
  const unsigned geometry[7] = {config->gridDimX,      config->gridDimY,  config->gridDimZ,
                                config->blockDimX,     config->blockDimY, config->blockDimZ,
                                config->sharedMemBytes};
  LaunchRequest request = make_request(function, geometry, params, extra, config->hStream,
                                       functions.is_per_thread_stream);
  request.must_keep_kernel = is_device_updatable(*config);
  for (unsigned i = 0; i < config->numAttrs; ++i) {
    const CUlaunchAttribute& attribute = config->attrs[i];
    if (attribute.id != CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION) continue;
    request.view.geometry[kClusterX] = attribute.value.clusterDim.x;
    request.view.geometry[kClusterY] = attribute.value.clusterDim.y;
    request.view.geometry[kClusterZ] = attribute.value.clusterDim.z;
  }
  const ReadSection section;
  LaunchPlan plan;
  plan_launch(&request, &plan);
  if (plan.action == LaunchAction::fail) return plan.error;
  LaunchRecording recording(request, plan);
  if (plan.action == LaunchAction::original) return recording.end(original());
  CUlaunchConfig replaced = *config;
  CUlaunchAttribute attributes[kMaxAttributes];
  set_geometry(plan, &replaced);
  replaced.attrs = attributes;
  if (!fit_attributes(*config, plan, attributes, &replaced.numAttrs)) {
    refuse(&plan);
    return recording.end(original());
  }
  const CaptureNote note(request, plan);
  if (!note.can_be_made()) {
    refuse(&plan);
    return recording.end(original());
  }
  begin_redirect(plan);
  const CUresult result = recording.end(launch(&replaced, plan.kernel, plan.params, nullptr));
  note.make(result);
  if (!finish_redirect(plan, result)) return result;
  plan.outcome = Outcome::error;
  return recording.end(original());
}

__attribute__((noinline)) LaunchResult route_slowly(const LaunchFrame& frame,
                                                    const LaunchFunctions& functions) {
  // The original, too, is called through the real pointer.
  if (!functions.has_original() && (!resolve_driver() || !functions.has_original())) {
    return done(CUDA_ERROR_NOT_SUPPORTED);
  }
  const unsigned geometry[7] = {
      static_cast<unsigned>(frame.grid[0]),     static_cast<unsigned>(frame.grid[1]),
      static_cast<unsigned>(frame.grid[2]),     static_cast<unsigned>(frame.block_xy[0]),
      static_cast<unsigned>(frame.block_xy[1]), static_cast<unsigned>(frame.block_z),
      static_cast<unsigned>(frame.shared_mem)};
  LaunchRequest request = make_request(reinterpret_cast<CUfunction>(frame.function), geometry,
                                       frame.params, functions.has_extra ? frame.extra : nullptr,
                                       frame.stream, functions.is_per_thread_stream);
  const ReadSection section;
  LaunchPlan plan;
  plan_launch(&request, &plan);
  if (plan.action == LaunchAction::fail) return done(plan.error);
  LaunchRecording recording(request, plan);
  const auto original = [&] {
    return recording.is_on() ? done(recording.end(launch_original(frame, functions))) : kGoesOn;
  };
  if (plan.action == LaunchAction::original) return original();
  const CaptureNote note(request, plan);
  if (!note.can_be_made()) {
    refuse(&plan);
    return original();
  }
  begin_redirect(plan);
  const CUresult result = recording.end(
      launch_plain(plan, request.stream, functions.launch->load(std::memory_order_relaxed),
                   functions.launch_ex->load(std::memory_order_relaxed)));
  note.make(result);
  if (!finish_redirect(plan, result)) return done(result);
  plan.outcome = Outcome::error;
  return original();
}

}  // namespace fibshim

using namespace fibshim;  // NOLINT(google-build-using-namespace): this file is all hooks

// --- resolve ---

// The real call comes first, with the caller's own version and flags; then the pointer is
// exchanged.
CUresult hook_cuGetProcAddress(const char* symbol, void** function, int version, cuuint64_t flags) {
  const CUresult result = call_real(real::cuGetProcAddress, symbol, function, version, flags);
  exchange_result(result, function);
  return result;
}

CUresult hook_cuGetProcAddress_v2(const char* symbol, void** function, int version,
                                  cuuint64_t flags, CUdriverProcAddressQueryResult* status) {
  const CUresult result =
      call_real(real::cuGetProcAddress_v2, symbol, function, version, flags, status);
  exchange_result(result, function);
  return result;
}

// --- make contexts ---

namespace fibshim {
namespace {

CUresult note_context(CUresult result, CUdevice device) {
  if (result == CUDA_SUCCESS) note_device_use(device);
  return result;
}

}  // namespace
}  // namespace fibshim

CUresult hook_cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  const CUresult result = call_real(real::cuDevicePrimaryCtxRetain, context, device);
  if (result == CUDA_SUCCESS) note_primary_context(device, *context);
  return note_context(result, device);
}

CUresult hook_cuCtxCreate(CUcontext* context, unsigned flags, CUdevice device) {
  return note_context(call_real(real::cuCtxCreate, context, flags, device), device);
}

CUresult hook_cuCtxCreate_v2(CUcontext* context, unsigned flags, CUdevice device) {
  return note_context(call_real(real::cuCtxCreate_v2, context, flags, device), device);
}

CUresult hook_cuCtxCreate_v3(CUcontext* context, CUexecAffinityParam* params, int param_count,
                             unsigned flags, CUdevice device) {
  return note_context(call_real(real::cuCtxCreate_v3, context, params, param_count, flags, device),
                      device);
}

CUresult hook_cuCtxCreate_v4(CUcontext* context, CUctxCreateParams* params, unsigned flags,
                             CUdevice device) {
  return note_context(call_real(real::cuCtxCreate_v4, context, params, flags, device), device);
}

CUresult hook_cuGreenCtxCreate(CUgreenCtx* context, CUdevResourceDesc resources, CUdevice device,
                               unsigned flags) {
  return note_context(call_real(real::cuGreenCtxCreate, context, resources, device, flags), device);
}

// --- bring images in ---

CUresult hook_cuModuleLoad(CUmodule* module, const char* file) {
  (void)ensure_started();
  return note_file_load(call_real(real::cuModuleLoad, module, file), module, file);
}

CUresult hook_cuModuleLoadData(CUmodule* module, const void* image) {
  (void)ensure_started();
  return note_load(call_real(real::cuModuleLoadData, module, image), module, image);
}

CUresult hook_cuModuleLoadDataEx(CUmodule* module, const void* image, unsigned option_count,
                                 CUjit_option* options, void** values) {
  (void)ensure_started();
  return note_load(
      call_real(real::cuModuleLoadDataEx, module, image, option_count, options, values), module,
      image);
}

CUresult hook_cuModuleLoadFatBinary(CUmodule* module, const void* fatbin) {
  (void)ensure_started();
  return note_load(call_real(real::cuModuleLoadFatBinary, module, fatbin), module, fatbin);
}

CUresult hook_cuLibraryLoadData(CUlibrary* library, const void* code, CUjit_option* jit_options,
                                void** jit_values, unsigned jit_count,
                                CUlibraryOption* library_options, void** library_values,
                                unsigned library_count) {
  (void)ensure_started();
  return note_load(call_real(real::cuLibraryLoadData, library, code, jit_options, jit_values,
                             jit_count, library_options, library_values, library_count),
                   library, code);
}

CUresult hook_cuLibraryLoadFromFile(CUlibrary* library, const char* file, CUjit_option* jit_options,
                                    void** jit_values, unsigned jit_count,
                                    CUlibraryOption* library_options, void** library_values,
                                    unsigned library_count) {
  (void)ensure_started();
  return note_file_load(
      call_real(real::cuLibraryLoadFromFile, library, file, jit_options, jit_values, jit_count,
                library_options, library_values, library_count),
      library, file);
}

// --- hand handles out ---

CUresult hook_cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name) {
  const CUresult result = call_real(real::cuModuleGetFunction, function, module, name);
  if (result == CUDA_SUCCESS && function != nullptr) {
    (void)remember_handle(*function, HandleKind::function, as_owner(module), name);
  }
  return result;
}

CUresult hook_cuModuleEnumerateFunctions(CUfunction* functions, unsigned count, CUmodule module) {
  const CUresult result = call_real(real::cuModuleEnumerateFunctions, functions, count, module);
  if (result == CUDA_SUCCESS) {
    remember_all(functions, count, HandleKind::function, as_owner(module),
                 FIBSHIM_REAL(cuFuncGetName));
  }
  return result;
}

CUresult hook_cuLibraryGetKernel(CUkernel* kernel, CUlibrary library, const char* name) {
  const CUresult result = call_real(real::cuLibraryGetKernel, kernel, library, name);
  if (result == CUDA_SUCCESS && kernel != nullptr) {
    (void)remember_handle(*kernel, HandleKind::kernel, as_owner(library), name);
  }
  return result;
}

CUresult hook_cuLibraryEnumerateKernels(CUkernel* kernels, unsigned count, CUlibrary library) {
  const CUresult result = call_real(real::cuLibraryEnumerateKernels, kernels, count, library);
  if (result == CUDA_SUCCESS) {
    remember_all(kernels, count, HandleKind::kernel, as_owner(library),
                 FIBSHIM_REAL(cuKernelGetName));
  }
  return result;
}

CUresult hook_cuLibraryGetModule(CUmodule* module, CUlibrary library) {
  const CUresult result = call_real(real::cuLibraryGetModule, module, library);
  if (result == CUDA_SUCCESS && module != nullptr) {
    remember_library_module(as_owner(*module), as_owner(library));
  }
  return result;
}

CUresult hook_cuKernelGetFunction(CUfunction* function, CUkernel kernel) {
  const CUresult result = call_real(real::cuKernelGetFunction, function, kernel);
  const auto get_name = FIBSHIM_REAL(cuFuncGetName);
  const char* name = nullptr;
  if (result == CUDA_SUCCESS && function != nullptr && get_name != nullptr && ensure_started() &&
      get_name(&name, *function) == CUDA_SUCCESS) {
    // It dies with the kernel's library or with the context: as one whose owner is unknown it is
    // forgotten at the first of either.
    (void)remember_handle(*function, HandleKind::function, 0, name, library_of(kernel));
  }
  return result;
}

// --- launch ---

// launch_entry.cc holds the exported functions of all launches but the oldest.

// Geometry and arguments were set on the function, where only the driver can read them.
CUresult hook_cuLaunch(CUfunction function) {
  count_kept(function);
  return call_real(real::cuLaunch, function);
}

CUresult hook_cuLaunchGrid(CUfunction function, int grid_width, int grid_height) {
  count_kept(function);
  return call_real(real::cuLaunchGrid, function, grid_width, grid_height);
}

CUresult hook_cuLaunchGridAsync(CUfunction function, int grid_width, int grid_height,
                                CUstream stream) {
  count_kept(function);
  return call_real(real::cuLaunchGridAsync, function, grid_width, grid_height, stream);
}

// The kernels of all devices wait for one another: all of them are kept.
CUresult hook_cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS* launches, unsigned count,
                                                   unsigned flags) {
  for (unsigned i = 0; launches != nullptr && i < count; ++i) count_kept(launches[i].function);
  return call_real(real::cuLaunchCooperativeKernelMultiDevice, launches, count, flags);
}

// --- end handles ---

// What is remembered dies first: once the driver has unloaded, another thread may be given the same
// handle values again.
CUresult hook_cuModuleUnload(CUmodule module) {
  forget_owner(as_owner(module));
  forget_image(as_owner(module));
  return call_real(real::cuModuleUnload, module);
}

CUresult hook_cuLibraryUnload(CUlibrary library) {
  forget_owner(as_owner(library));
  forget_image(as_owner(library));
  return call_real(real::cuLibraryUnload, library);
}

CUresult hook_cuCtxDestroy(CUcontext context) {
  forget_context();
  note_context_end(context);
  forget_lost_context(context);
  return call_real(real::cuCtxDestroy, context);
}

CUresult hook_cuCtxDestroy_v2(CUcontext context) {
  forget_context();
  note_context_end(context);
  forget_lost_context(context);
  return call_real(real::cuCtxDestroy_v2, context);
}

CUresult hook_cuCtxDetach(CUcontext context) {
  forget_context();
  note_context_end(context);
  forget_lost_context(context);
  return call_real(real::cuCtxDetach, context);
}

CUresult hook_cuDevicePrimaryCtxRelease(CUdevice device) {
  forget_context();
  const CUresult result = call_real(real::cuDevicePrimaryCtxRelease, device);
  note_primary_context_end(device, false);
  forget_lost_primary_context(device);
  return result;
}

CUresult hook_cuDevicePrimaryCtxRelease_v2(CUdevice device) {
  forget_context();
  const CUresult result = call_real(real::cuDevicePrimaryCtxRelease_v2, device);
  note_primary_context_end(device, false);
  forget_lost_primary_context(device);
  return result;
}

CUresult hook_cuDevicePrimaryCtxReset(CUdevice device) {
  forget_context();
  const CUresult result = call_real(real::cuDevicePrimaryCtxReset, device);
  note_primary_context_end(device, true);
  forget_lost_primary_context(device);
  return result;
}

CUresult hook_cuDevicePrimaryCtxReset_v2(CUdevice device) {
  forget_context();
  const CUresult result = call_real(real::cuDevicePrimaryCtxReset_v2, device);
  note_primary_context_end(device, true);
  forget_lost_primary_context(device);
  return result;
}

CUresult hook_cuGreenCtxDestroy(CUgreenCtx context) {
  forget_context();
  note_green_context_end(context);
  return call_real(real::cuGreenCtxDestroy, context);
}
