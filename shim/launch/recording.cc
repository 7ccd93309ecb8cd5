#include "shim/launch/recording.h"

#include <string.h>

#include "shim/base/log.h"
#include "shim/counters/counters.h"
#include "shim/driver/driver.h"
#include "shim/driver/real_dl.h"
#include "shim/driver/stream_context.h"
#include "shim/launch/captures.h"
#include "shim/base/slow_reasons.h"
#include "shim/registry/devices.h"
#include "shim/registry/handles.h"
#include "shim/registry/modules.h"

namespace fibshim {
namespace {

// Written before g_is_recording.
const RecorderApi* g_recorder;
RecorderHost g_host;
bool g_is_locked_for_fork;  // by the current fork; another waits for the handlers' first lock

void read_recording_settings(RecordingSettings* out) {
  expand_path(record_folder(), out->folder, sizeof out->folder);
  out->limit_bytes = record_limit();
  out->mode = mode();
  out->times = record_times();
}

void find_origin(const void* record, KernelOrigin* out) {
  ImageIdentity image = {};
  (void)find_image(static_cast<const Record*>(record)->entry->image_owner, &image);
  *out = {image.hashes, image.kind, current_sm()};
}

void set_kernel(LaunchToRecord* launch, const Record* record) {
  *launch = {};
  if (record == nullptr) return;
  launch->symbol = record->symbol;
  launch->params = record->params;
  launch->param_count = record->param_count;
  launch->has_params = record->has_params;
  launch->record = record;
  launch->known_kernel = &const_cast<Record*>(record)->recorded;
}

void set_reading(LaunchToRecord* launch, const LaunchPlan& plan) {
  launch->arguments = plan.arguments;
  launch->runs_original = plan.action == LaunchAction::original;
  if (plan.candidate == nullptr || plan.decision == nullptr || plan.arguments == nullptr) return;
  // A launch for which the pattern's own `where` does not hold is no call of the definition.
  LaunchView view;
  view.params = plan.arguments;
  view.captures = plan.candidate->captures;
  memcpy(view.geometry, launch->geometry, sizeof view.geometry);
  if (plan.outcome == Outcome::fallback_where && !pattern_holds(*plan.candidate, view)) return;
  launch->series = plan.decision->series;
  launch->captures = plan.candidate->captures;
  const auto [pattern, definition] = names_of_series(launch->series);
  launch->pattern = pattern;
  launch->definition = definition;
}

void record(LaunchToRecord* launch) {
  g_recorder->begin_launch(launch);
  g_recorder->end_launch(launch, true);
}

}  // namespace

void start_recording(const RecorderApi& recorder, const Snapshot& snapshot) {
  g_host = {snapshot.text(snapshot.root), log_message,       read_recording_settings, find_origin,
            find_driver_function,         context_of_stream, real_dlopen(),           real_dlsym()};
  g_recorder = &recorder;
  recorder.start(g_host);
  g_slow_reasons.fetch_add(1, std::memory_order_relaxed);
  suspend_fast_side();
  g_is_recording.store(true, std::memory_order_release);
}

void LaunchRecording::begin(const LaunchRequest& request, const LaunchPlan& plan) {
  plan_ = &plan;
  set_kernel(&launch_, plan.record);
  launch_.geometry = request.view.geometry;
  launch_.stream = request.stream == nullptr && request.is_per_thread_stream ? CU_STREAM_PER_THREAD
                                                                             : request.stream;
  launch_.has_captures = g_active_captures.load(std::memory_order_relaxed) != 0;
  launch_.is_node = launch_.has_captures && is_capturing(launch_.stream, false);
  set_reading(&launch_, plan);
  g_recorder->begin_launch(&launch_);
}

void LaunchRecording::finish(CUresult result) {
  launch_.outcome = plan_->outcome;
  g_recorder->end_launch(&launch_, result == CUDA_SUCCESS);
}

void record_node(const uint32_t (&geometry)[kGeometryCount], const LaunchPlan& plan) {
  if (!is_recording()) return;
  static_assert(kRecordedGeometryCount == kGeometryCount);
  LaunchToRecord launch;
  set_kernel(&launch, plan.record);
  launch.is_node = true;
  launch.geometry = geometry;
  launch.outcome = plan.outcome;
  set_reading(&launch, plan);
  record(&launch);
}

void record_bare_launch(const Record& record_of_handle) {
  if (!is_recording()) return;
  LaunchToRecord launch;
  set_kernel(&launch, &record_of_handle);
  launch.outcome =
      record_of_handle.candidate_count == 0 ? Outcome::untracked : Outcome::fallback_refused;
  record(&launch);
}

void drop_recording_events() {
  if (is_recording()) g_recorder->drop_events();
}

void lock_recording_for_fork() {
  g_is_locked_for_fork = is_recording();
  if (g_is_locked_for_fork) g_recorder->lock_for_fork();
}

void unlock_recording_after_fork(bool is_child) {
  if (g_is_locked_for_fork) g_recorder->unlock_after_fork(is_child);
}

}  // namespace fibshim
