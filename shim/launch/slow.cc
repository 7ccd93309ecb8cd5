// The slow side: launches that the fast side does not handle. It may lock, log, allocate and call
// the driver. Plans the launch (plan/plan.h), counts it and makes it.
#include <string.h>

#include "shim/base/log.h"
#include "shim/base/pool.h"
#include "shim/base/read_section.h"
#include "shim/base/slow_reasons.h"
#include "shim/counters/counters.h"
#include "shim/driver/driver.h"
#include "shim/driver/stream_context.h"
#include "shim/launch/captures.h"
#include "shim/launch/eager_plan.h"
#include "shim/launch/launch.h"
#include "shim/launch/lost_context.h"
#include "shim/launch/recording.h"
#include "shim/launch/served_solutions.h"
#include "shim/launch/shadow_launch.h"
#include "shim/launch/shadow_rules.h"
#include "shim/launch/workspace.h"
#include "shim/plan/remembered.h"
#include "shim/registry/devices.h"
#include "shim/registry/generation.h"
#include "shim/registry/handles.h"

namespace fibshim {
namespace {

Pool g_memory_pool;

// Remembers a plan for the fast side of this thread. `changes`: handle_changes() before it was made.
void remember(const LaunchRequest& request, const LaunchPlan& plan, uint64_t changes) {
  ReaderState* const reader = t_fast_reader;
  if (reader == nullptr || plan.record == nullptr || !plan.record->inputs.are_whole) return;
  if (plan.action == LaunchAction::redirect && plan.workspace_bytes != 0) return;
  const Record& record = *plan.record;
  const bool depends_on_device = record.kind == HandleKind::kernel && are_devices_told_apart();
  if (depends_on_device || record.candidates[0].generation->mode != Mode::apply ||
      g_slow_reasons.load(std::memory_order_relaxed) != 0) {
    return;
  }
  if (reader->memory == nullptr) {
    reader->memory = static_cast<LaunchMemory*>(g_memory_pool.allocate(sizeof(LaunchMemory)));
    if (reader->memory == nullptr) return;
  }
  remember_launch(request, plan, counter_of_plan(plan), changes, reader->memory);
}

// A launch on the slow side, with or without a CUlaunchConfig.
struct SlowLaunch {
  LaunchRequest request;
  const CUlaunchConfig* config;  // null: none
  const LaunchFunctions* functions;
};

// Makes the replacement's launch. Requires a redirect and the attributes from plan_attributes().
CUresult launch_planned(const SlowLaunch& launch, const LaunchPlan& plan,
                        CUlaunchAttribute* attributes, unsigned attribute_count) {
  const uint32_t* const geometry = plan.geometry;
  const CUfunction kernel = plan.decision->kernel;
  if (launch.config == nullptr && attribute_count == 0) {
    return launch.functions->launch->load(std::memory_order_relaxed)(
        kernel, geometry[kGridX], geometry[kGridY], geometry[kGridZ], geometry[kBlockX],
        geometry[kBlockY], geometry[kBlockZ], geometry[kSharedMem], launch.request.stream,
        plan.params, nullptr);
  }
  const auto launch_ex = launch.functions->launch_ex->load(std::memory_order_relaxed);
  if (launch_ex == nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  CUlaunchConfig config = {};
  if (launch.config != nullptr) config = *launch.config;
  put_geometry(geometry, &config);
  config.hStream = launch.request.stream;
  config.attrs = attributes;
  config.numAttrs = attribute_count;
  return launch_ex(&config, kernel, plan.params, nullptr);
}

// Launches the original for the host, and the solution on copies to check it.
template <class Original>
__attribute__((noinline)) CUresult launch_checked(const SlowLaunch& launch, LaunchPlan* plan,
                                                  const Original& original) {
  plan->outcome = Outcome::shadowed;
  const CounterIndex counter = counter_of(plan->decision->series, Outcome::shadowed);
  count(counter);
  ShadowLaunch shadow(launch.request, *plan);
  LaunchPlan* const copied = shadow.plan();
  if (copied != nullptr && copied->workspace_bytes != 0 &&
      !give_workspace(launch.request, copied)) {
    shadow.give_up(CUDA_ERROR_OUT_OF_MEMORY);
  } else if (copied != nullptr) {
    SlowLaunch bare = launch;
    bare.config = nullptr;
    CUlaunchAttribute attributes[kMaxAttributes];
    unsigned attribute_count = 0;
    (void)plan_attributes(nullptr, 0, *copied, attributes, &attribute_count);
    const CUresult result = launch_planned(bare, *copied, attributes, attribute_count);
    if (result != CUDA_SUCCESS) shadow.give_up(result);
  }
  const CUresult result = original();
  shadow.compare(result == CUDA_SUCCESS);
  return result;
}

// `call_original`: makes the host's own launch.
template <class CallOriginal>
CUresult launch_slowly(SlowLaunch* launch, const CallOriginal& call_original) {
  // A captured launch becomes a node unchanged: graphs are rewritten later (graphs/).
  if (__builtin_expect(g_active_captures.load(std::memory_order_relaxed) != 0, 0) &&
      may_be_capturing(launch->request.stream, launch->request.is_per_thread_stream)) {
    return call_original();
  }
  const ReadSection section;
  const uint64_t changes = handle_changes();
  LaunchPlan plan;
  plan_eager(&launch->request, &plan);
  remember(launch->request, plan, changes);
  if (plan.action == LaunchAction::fail) return plan.decision->error;
  LaunchRecording recording(launch->request, plan);
  const auto original = [&] { return recording.end(call_original()); };
  if (plan.action == LaunchAction::original) return original();
  if (plan.workspace_bytes != 0 && !give_workspace(launch->request, &plan)) {
    refuse_redirect(&plan);
    return original();
  }

  CUlaunchAttribute attributes[kMaxAttributes];
  unsigned attribute_count = 0;
  const bool has_config = launch->config != nullptr;
  const bool fits = plan_attributes(has_config ? launch->config->attrs : nullptr,
                                    has_config ? launch->config->numAttrs : 0, plan, attributes,
                                    &attribute_count);
  if (!fits) {
    refuse_redirect(&plan);
    return original();
  }
  if (__builtin_expect(is_sampled(*plan.decision), 0)) {
    return launch_checked(*launch, &plan, original);
  }
  count(plan.decision->counter);
  const CUresult result = recording.end(launch_planned(*launch, plan, attributes, attribute_count));
  if (result == CUDA_SUCCESS) return result;
  const bool falls_back = plan.decision->on_error == OnError::fallback;
  if (!end_failed_launch(plan.decision->counter, result, falls_back)) return result;
  plan.outcome = Outcome::error_fallback;
  return original();
}

LaunchRequest make_request(const void* handle, CUstream stream, void** params, void** extra,
                           const LaunchFunctions& functions) {
  LaunchRequest request;
  request.handle = handle;
  request.view.params = params;
  request.view.captures = nullptr;
  request.extra = extra;
  request.stream = stream;
  request.is_per_thread_stream = functions.is_per_thread_stream;
  request.must_keep_kernel = false;
  for (uint32_t i = kClusterX; i <= kClusterZ; ++i) request.view.geometry[i] = 1;
  return request;
}

void report_failed_launch(uint32_t series, CUresult result, bool falls_back) {
  static std::atomic<uint64_t> was_reported[kSeriesCapacity / 64];
  const uint64_t bit = uint64_t{1} << series % 64;
  if ((was_reported[series / 64].fetch_or(bit, std::memory_order_relaxed) & bit) != 0) return;
  const auto [pattern, definition] = names_of_series(series);
  log_message(LogLevel::error, "%s (pattern %s): the launch of its solution returns %s; %s",
              definition, pattern, ErrorText(result).text,
              falls_back ? "the original runs"
                         : "so does the call (FIBSHIM_ON_ERROR=fallback runs the original)");
}

}  // namespace

Target route_slowly(LaunchFrame& frame, const LaunchFunctions& functions) {
  if (driver_function(functions.api) == nullptr &&
      (!resolve_driver() || driver_function(functions.api) == nullptr)) {
    return end_launch(frame, CUDA_ERROR_NOT_SUPPORTED);
  }
  SlowLaunch launch = {
      make_request(reinterpret_cast<const void*>(frame.function), frame.stream, frame.params,
                   functions.has_extra ? frame.extra : nullptr, functions),
      nullptr, &functions};
  uint32_t* const geometry = launch.request.view.geometry;
  for (uint32_t i = 0; i < 3; ++i) geometry[kGridX + i] = static_cast<uint32_t>(frame.grid[i]);
  geometry[kBlockX] = static_cast<uint32_t>(frame.block_xy[0]);
  geometry[kBlockY] = static_cast<uint32_t>(frame.block_xy[1]);
  geometry[kBlockZ] = static_cast<uint32_t>(frame.block_z);
  geometry[kSharedMem] = static_cast<uint32_t>(frame.shared_mem);
  const auto original = [&] {
    const auto call = [&](auto function, auto... extra) {
      return reinterpret_cast<decltype(function)>(driver_function(functions.api))(
          reinterpret_cast<CUfunction>(frame.function), geometry[kGridX], geometry[kGridY],
          geometry[kGridZ], geometry[kBlockX], geometry[kBlockY], geometry[kBlockZ],
          geometry[kSharedMem], frame.stream, frame.params, extra...);
    };
    if (functions.has_extra) return call(PFN_cuLaunchKernel_v4000{}, frame.extra);
    return call(PFN_cuLaunchCooperativeKernel_v9000{});
  };
  return end_launch(frame, launch_slowly(&launch, original));
}

CUresult launch_config_slowly(const CUlaunchConfig* config, CUfunction function, void** params,
                              void** extra, const LaunchFunctions& functions) {
  if (driver_function(functions.api) == nullptr &&
      (!resolve_driver() || driver_function(functions.api) == nullptr)) {
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  const auto original = [&] {
    return functions.launch_ex->load(std::memory_order_relaxed)(config, function, params, extra);
  };
  // The driver refuses such a call.
  if (config == nullptr || (config->numAttrs != 0 && config->attrs == nullptr)) return original();
  SlowLaunch launch = {make_request(function, config->hStream, params, extra, functions), config,
                       &functions};
  launch.request.must_keep_kernel = is_device_updatable(config->attrs, config->numAttrs);
  uint32_t* const geometry = launch.request.view.geometry;
  get_geometry(*config, geometry);
  for (unsigned i = 0; i < config->numAttrs; ++i) {
    const CUlaunchAttribute& attribute = config->attrs[i];
    if (attribute.id != CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION) continue;
    geometry[kClusterX] = attribute.value.clusterDim.x;
    geometry[kClusterY] = attribute.value.clusterDim.y;
    geometry[kClusterZ] = attribute.value.clusterDim.z;
  }
  return launch_slowly(&launch, original);
}

void lock_slow_side_for_fork() { g_memory_pool.lock_for_fork(); }

void unlock_slow_side_after_fork(bool is_child) { g_memory_pool.unlock_after_fork(is_child); }

bool end_failed_launch(uint32_t hit, CUresult result, bool falls_back) {
  uncount(hit);
  const uint32_t series = series_of_counter(hit);
  count(counter_of(series, falls_back ? Outcome::error_fallback : Outcome::error));
  if (find_sticky_error(result) != nullptr) {
    // This launch did not cause the error: a kernel that ran before did.
    report_if_lost("a launch", result);
  } else {
    report_failed_launch(series, result, falls_back);
  }
  record_failure(series, result);
  return falls_back;
}

}  // namespace fibshim
