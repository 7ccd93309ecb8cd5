// Decides, for one launch, whether a replacement runs instead, and with what.
//
// Hot: runs on every launch of a kernel that a pattern fits. Forbidden here, and kept out by a test
// of the object's undefined symbols: locks, allocation, getenv, dlsym, logging, exceptions and
// driver calls. Whatever needs one of those is in launch_slow.cc. In any doubt the original runs.
#ifndef FIBSHIM_SHIM_LAUNCH_PATH_H_
#define FIBSHIM_SHIM_LAUNCH_PATH_H_

#include "shim/cuda_names.h"

#include "loader/snapshot.h"
#include "shim/counters.h"
#include "shim/decisions.h"
#include "shim/handles.h"

namespace fibshim {

// One launch as the host asked for it. `view.params` is null when `extra` holds a packed buffer.
struct LaunchRequest {
  const void* handle;
  LaunchView view;
  void** extra;
  CUstream stream;
  bool is_per_thread_stream;
  bool must_keep_kernel;  // something else refers to the original's node: count, never redirect
};

enum class LaunchAction : uint8_t {
  original,  // call the driver with the host's own arguments; everything is counted
  redirect,  // launch `kernel` with `params` and `geometry`, then finish_redirect
  fail,      // return `error`; it is counted
};

// What to do instead, and room for it. Lives on the caller's stack; not zeroed.
struct LaunchPlan {
  LaunchAction action;
  CUresult error;
  CUfunction kernel;
  const Decision* decision;
  void** params;
  uint32_t geometry[kGeometryCount];
  void* pointers[kMaxParams];
  int64_t values[kMaxParams];
  void* unpacked[kMaxParams];
  Decision uncached;  // where `decision` points when there was no memory to remember it
};

// Fills the plan, and counts the launch unless it is to be redirected.
void plan_launch(LaunchRequest* request, LaunchPlan* plan);

// Counts the launch that the plan led to. True when the original must run after all: the
// replacement could not be launched and FIBSHIM_ON_ERROR is fallback.
bool finish_redirect(const LaunchPlan& plan, CUresult result);

// Series 0: launches that no pattern knows.
inline void count_untracked() { count(counter_of(0, Outcome::untracked)); }

}  // namespace fibshim

#endif  // FIBSHIM_SHIM_LAUNCH_PATH_H_
