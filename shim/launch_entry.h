// The slow sides of the launch hooks: functions of the hooks' own types, which launch_entry.cc
// jumps to when a launch is anything but a plain one of a kernel that no pattern knows. Defined in
// hooks.cc.
#ifndef FIBSHIM_SHIM_LAUNCH_ENTRY_H_
#define FIBSHIM_SHIM_LAUNCH_ENTRY_H_

#include "shim/hooks.h"

// LAUNCH(exported name, register that holds the kernel's handle on x86-64)
#define FIBSHIM_LAUNCHES(LAUNCH)           \
  LAUNCH(cuLaunchKernel, "rdi")            \
  LAUNCH(cuLaunchKernel_ptsz, "rdi")       \
  LAUNCH(cuLaunchKernelEx, "rsi")          \
  LAUNCH(cuLaunchKernelEx_ptsz, "rsi")     \
  LAUNCH(cuLaunchCooperativeKernel, "rdi") \
  LAUNCH(cuLaunchCooperativeKernel_ptsz, "rdi")

#define LAUNCH(name, handle_register) \
  extern "C" __attribute__((visibility("hidden"))) decltype(hook_##name) fibshim_slow_##name;
FIBSHIM_LAUNCHES(LAUNCH)
#undef LAUNCH

#endif  // FIBSHIM_SHIM_LAUNCH_ENTRY_H_
