// Decides, for one launch, whether a replacement runs instead, and with what.
//
// Hot: runs on every launch of a kernel that a pattern fits. Forbidden here, and kept out by a test
// of the object's undefined symbols: locks, allocation, getenv, dlsym, logging, exceptions and
// driver calls. Whatever needs one of those is in launch_slow.cc. In any doubt the original runs.
#ifndef FIBSHIM_SHIM_LAUNCH_LAUNCH_PATH_H_
#define FIBSHIM_SHIM_LAUNCH_LAUNCH_PATH_H_

#include "shim/driver/cuda_names.h"

#include "shim/abi/snapshot.h"
#include "shim/counters/counters.h"
#include "shim/registry/decisions.h"
#include "shim/registry/handles.h"

namespace fibshim {

// The arguments of a cuLaunchKernel, where the caller put them: the registers as launch_entry.cc saved
// them, then the stack. 32-bit arguments are the low halves of their slots; the rest is not theirs.
struct LaunchFrame {
  uint64_t function;
  uint64_t grid[3];
  uint64_t block_xy[2];
  uint64_t hit;          // of a redirected launch: Decision::counter
  uint64_t reserved[2];  // so that the stack is aligned
  uint64_t return_address;
  uint64_t block_z;
  uint64_t shared_mem;
  CUstream stream;
  void** params;
  void** extra;  // not there in cuLaunchCooperativeKernel
};

// How a launch ended, in one register, so that the commonest end is a plain zero:
//   kGoesOn     it goes on to the driver as the host made it
//   kIsDone     with its CUresult in the low half
//   neither     the CUresult of a redirected launch, and `hit` in the frame says whose
// finish_launch() makes a CUresult, or kGoesOn, of all of them.
using LaunchResult = uint64_t;
inline constexpr LaunchResult kGoesOn = uint64_t{1} << 32;
inline constexpr LaunchResult kIsDone = uint64_t{1} << 33;
inline LaunchResult done(CUresult result) { return kIsDone | static_cast<uint32_t>(result); }
LaunchResult finish_launch(const LaunchFrame& frame, LaunchResult result);

// What the slow side needs to know of the function that was called.
struct LaunchFunctions {
  const std::atomic<PFN_cuLaunchKernel_v4000>* launch;
  const std::atomic<PFN_cuLaunchKernelEx_v11060>* launch_ex;
  bool (*has_original)();  // whether the driver's own of the function that was called is known
  bool is_per_thread_stream;
  bool has_extra;
};

// Any launch; in hooks.cc.
LaunchResult route_slowly(const LaunchFrame& frame, const LaunchFunctions& functions);
CUresult launch_config_slowly(const CUlaunchConfig* config, CUfunction function, void** params,
                              void** extra, const LaunchFunctions& functions);

// Whatever makes every launch of the process take the slow side adds one here: recording, and
// each stream capture under way.
extern std::atomic<int> g_slow_reasons;

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
  const Record* record;    // of the original; null: its handle is not known
  void* const* arguments;  // the original's, one pointer each; null: they cannot be read
  Outcome outcome;         // what the launch is counted as, or will be once it was redirected
  const Decision* decision;
  void** params;
  uint32_t geometry[kGeometryCount];
  void* pointers[kMaxParams];
  int64_t values[kMaxParams];
  void* unpacked[kMaxParams];
  Decision uncached;  // where `decision` points when there was no memory to remember it
};

// Fills the plan, and counts the launch unless it is to be redirected. The plan is read within the
// same read section as it is made in.
void plan_launch(LaunchRequest* request, LaunchPlan* plan);

// Counts a launch that is about to be redirected: a process that ends within it has counted it.
inline void begin_redirect(const LaunchPlan& plan) { count(plan.decision->counter); }

// Counts it otherwise where it failed. True when the original must run after all: the replacement
// could not be launched, and its definition's on_error is fallback.
bool finish_redirect(const LaunchPlan& plan, CUresult result);

// Series 0: launches that no pattern knows.
inline void count_untracked() { count(counter_of(0, Outcome::untracked)); }

}  // namespace fibshim

#endif  // FIBSHIM_SHIM_LAUNCH_LAUNCH_PATH_H_
