// What the launch path needs seldom: everything that locks, logs, allocates or calls the driver.
#ifndef FIBSHIM_SHIM_LAUNCH_LAUNCH_SLOW_H_
#define FIBSHIM_SHIM_LAUNCH_LAUNCH_SLOW_H_

#include "shim/launch/launch_path.h"

namespace fibshim {

// The slot value of a handle that is met for the first time, or for the first time in this generation;
// 0 when nothing can be learnt of it.
uintptr_t learn_handle(const void* handle);

// A launch through a handle that the shim knows nothing of, and cannot learn of: counts it.
void count_unknown();

// The GPU that a launch goes to, and its class, for the key (devices_in_use.h). Asks the driver.
int64_t device_key_of_launch(const LaunchRequest& request);

// Counts under "(unresolved)": the candidate's axes cannot be computed from this launch.
void count_unresolved(const Candidate& candidate);

// Counts a launch that keeps its kernel whatever it is: of one that a pattern fits as refused, under
// "(unresolved)".
void count_kept(const void* handle);

// The replacement could not be launched: counts that, and says so once per series. True when the original
// must run.
bool end_failed_launch(uint32_t series, CUresult result, OnError on_error);

}  // namespace fibshim

#endif  // FIBSHIM_SHIM_LAUNCH_LAUNCH_SLOW_H_
