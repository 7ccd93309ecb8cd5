// What the exported launch functions in launch_entry.cc hand a launch to when it is anything but a plain
// one of a kernel that no pattern knows. Defined in launch_path.cc.
#ifndef FIBSHIM_SHIM_LAUNCH_LAUNCH_ENTRY_H_
#define FIBSHIM_SHIM_LAUNCH_LAUNCH_ENTRY_H_

#include "shim/hooks/hooks.h"
#include "shim/launch/launch_path.h"

// Launches whose arguments do not fit the registers: LAUNCH(exported name)
#define FIBSHIM_FRAMED_LAUNCHES(LAUNCH) \
  LAUNCH(cuLaunchKernel)                \
  LAUNCH(cuLaunchKernel_ptsz)           \
  LAUNCH(cuLaunchCooperativeKernel)     \
  LAUNCH(cuLaunchCooperativeKernel_ptsz)

// Launches with a CUlaunchConfig.
#define FIBSHIM_CONFIG_LAUNCHES(LAUNCH) \
  LAUNCH(cuLaunchKernelEx)              \
  LAUNCH(cuLaunchKernelEx_ptsz)

// `slot` is the handle's, or 0 where it was not found at once; `reader` the thread's own, or null. Unless it is
// null the thread is within its read section, which these leave.
extern "C" {
#define LAUNCH(name)                                                                \
  __attribute__((visibility("hidden"))) fibshim::LaunchResult fibshim_route_##name( \
      fibshim::LaunchFrame* frame, uintptr_t slot, fibshim::ReaderState* reader);
FIBSHIM_FRAMED_LAUNCHES(LAUNCH)
#undef LAUNCH
#define LAUNCH(name)                                                                              \
  __attribute__((visibility("hidden")))                                                           \
  CUresult fibshim_route_##name(const CUlaunchConfig* config, CUfunction function, void** params, \
                                void** extra, uintptr_t slot, fibshim::ReaderState* reader);
FIBSHIM_CONFIG_LAUNCHES(LAUNCH)
#undef LAUNCH
// finish_launch().
__attribute__((visibility("hidden"))) fibshim::LaunchResult fibshim_finish_launch(
    const fibshim::LaunchFrame* frame, fibshim::LaunchResult result);
}

#endif  // FIBSHIM_SHIM_LAUNCH_LAUNCH_ENTRY_H_
