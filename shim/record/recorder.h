// Records every launch of the process into a file (recording_format.h), while FIBSHIM_RECORD is set.
//
// Every launch then takes the slow side. What it has not met before is added under a mutex; what it
// has is counted with atomic additions. When the file is full, what is known is counted on, and the
// rest together. Each process writes a file of its own; a forked child begins one at its first launch.
// Nothing here waits for the GPU, and a stream that captures is left alone.
#ifndef FIBSHIM_SHIM_RECORD_RECORDER_H_
#define FIBSHIM_SHIM_RECORD_RECORDER_H_

#include <atomic>

#include "shim/driver/cuda_names.h"

#include "shim/graphs/graphs.h"
#include "shim/registry/handles.h"
#include "shim/launch/launch_path.h"
#include "shim/record/launch_timer.h"
#include "shim/abi/recording_format.h"

namespace fibshim {

// Set before the first handle is remembered, and never changed.
extern std::atomic<bool> g_is_recording;
inline bool is_recording() { return g_is_recording.load(std::memory_order_relaxed); }

// Makes every handle and every launch of the process pass by here. runtime.cc's start alone calls it.
void start_recording(const Snapshot& snapshot);

// One launch, from its plan to what the driver answered. Does nothing while nothing is recorded.
class LaunchRecording {
 public:
  LaunchRecording(const LaunchRequest& request, const LaunchPlan& plan) {
    if (__builtin_expect(is_recording(), 0)) begin(request, plan);
  }
  LaunchRecording(const LaunchRecording&) = delete;
  LaunchRecording& operator=(const LaunchRecording&) = delete;

  // Counts the launch if the driver took it. Returns `result`.
  CUresult end(CUresult result) {
    if (__builtin_expect(plan_ != nullptr, 0)) finish(result);
    return result;
  }

  bool is_on() const { return plan_ != nullptr; }

 private:
  void begin(const LaunchRequest& request, const LaunchPlan& plan);
  void finish(CUresult result);

  const LaunchPlan* plan_ = nullptr;
  RecordedKernel* kernel_ = nullptr;
  RecordedGeometry* geometry_ = nullptr;
  bool is_node_ = false;
  LaunchTimer timer_;
};

// A kernel node that was added to a graph.
void record_node(const NodeParams& original, const LaunchPlan& plan);

// A launch of a handle whose geometry and arguments only the driver can read.
void record_bare_launch(const Record& record);

// For the atfork handlers.
void lock_recorder_for_fork();
void unlock_recorder_after_fork(bool is_child);

}  // namespace fibshim

#endif  // FIBSHIM_SHIM_RECORD_RECORDER_H_
