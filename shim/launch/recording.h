// Reports launches to libfibrecord.so if FIBSHIM_RECORD is set (recorder_api.h).
//
// While the process records, every launch takes the slow side and is reported here. Otherwise this
// costs a launch on the slow side one branch.
#pragma once

#include "shim/abi/recorder_api.h"
#include "shim/base/settings_in_force.h"
#include "shim/plan/plan.h"

namespace fibshim {

// Records handles and launches from now on. Called by life/runtime.cc before any handle is learnt.
void start_recording(const RecorderApi& recorder, const Snapshot& snapshot);

// Records one launch, from its plan to the driver's result. No-op unless the process records.
class LaunchRecording {
 public:
  LaunchRecording(const LaunchRequest& request, const LaunchPlan& plan) {
    if (__builtin_expect(is_recording(), 0)) begin(request, plan);
  }
  LaunchRecording(const LaunchRecording&) = delete;
  LaunchRecording& operator=(const LaunchRecording&) = delete;

  // Counts the launch if the driver accepted it. Returns `result`.
  CUresult end(CUresult result) {
    if (__builtin_expect(plan_ != nullptr, 0)) finish(result);
    return result;
  }

  bool is_on() const { return plan_ != nullptr; }

 private:
  void begin(const LaunchRequest& request, const LaunchPlan& plan);
  void finish(CUresult result);

  const LaunchPlan* plan_ = nullptr;
  LaunchToRecord launch_;  // written while `plan_` is set
};

// Records a kernel node that was added to a graph. `geometry`: the original's.
void record_node(const uint32_t (&geometry)[kGeometryCount], const LaunchPlan& plan);

// Records a launch whose geometry and arguments only the driver can read.
void record_bare_launch(const Record& record);

// Call before a context ends.
void drop_recording_events();

// The atfork handlers.
void lock_recording_for_fork();
void unlock_recording_after_fork(bool is_child);

}  // namespace fibshim
