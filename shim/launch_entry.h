// What the exported launch functions in launch_entry.cc hand a launch to when it is anything but a plain
// one of a kernel that no pattern knows. Defined in hooks.cc.
#ifndef FIBSHIM_SHIM_LAUNCH_ENTRY_H_
#define FIBSHIM_SHIM_LAUNCH_ENTRY_H_

#include "shim/hooks.h"
#include "shim/launch_path.h"

// Launches whose arguments do not fit the registers: LAUNCH(exported name)
#define FIBSHIM_FRAMED_LAUNCHES(LAUNCH) \
  LAUNCH(cuLaunchKernel)                \
  LAUNCH(cuLaunchKernel_ptsz)           \
  LAUNCH(cuLaunchCooperativeKernel)     \
  LAUNCH(cuLaunchCooperativeKernel_ptsz)

// Launches with a CUlaunchConfig: these have a slow side of their own type.
#define FIBSHIM_CONFIG_LAUNCHES(LAUNCH) \
  LAUNCH(cuLaunchKernelEx)              \
  LAUNCH(cuLaunchKernelEx_ptsz)

extern "C" {
#define LAUNCH(name)                    \
  __attribute__((visibility("hidden"))) \
  fibshim::LaunchResult fibshim_route_##name(const fibshim::LaunchFrame* frame, uintptr_t slot);
FIBSHIM_FRAMED_LAUNCHES(LAUNCH)
#undef LAUNCH
#define LAUNCH(name) \
  __attribute__((visibility("hidden"))) decltype(hook_##name) fibshim_slow_##name;
FIBSHIM_CONFIG_LAUNCHES(LAUNCH)
#undef LAUNCH
}

#endif  // FIBSHIM_SHIM_LAUNCH_ENTRY_H_
