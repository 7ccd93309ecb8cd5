// One launch, from the exported function to the driver.
//
//   launch/fast.cc   the exported functions, and the path of nearly every launch
//   launch/slow.cc   everything else
//
// Any thread, any time, even before cuInit. In any doubt the original runs.
#pragma once

#include <atomic>

#include "shim/driver/driver.h"

namespace fibshim {

// The arguments of a cuLaunchKernel call: the registers as the trampoline saved them, then the
// stack. 32-bit arguments are the low halves of their slots; the high halves are undefined.
struct LaunchFrame {
  uint64_t function;  // finally the CUresult, if the trampoline is to return
  uint64_t grid[3];
  uint64_t block_xy[2];
  uint64_t alignment;
  uint64_t return_address;
  uint64_t block_z;
  uint64_t shared_mem;
  CUstream stream;
  void** params;
  void** extra;  // absent in cuLaunchCooperativeKernel
};

// Where the trampoline jumps with the host's own arguments: the driver's function, or
// an end of a trampoline.
using Target = void*;

enum class LaunchApi : uint8_t {
  kernel,
  kernel_ptsz,
  cooperative,
  cooperative_ptsz,
  ex,
  ex_ptsz,
};

// Returns the driver's own function, or null if unknown.
inline Target driver_function(LaunchApi api) {
  switch (api) {
    case LaunchApi::kernel: return reinterpret_cast<Target>(FIBSHIM_REAL(cuLaunchKernel));
    case LaunchApi::kernel_ptsz: return reinterpret_cast<Target>(FIBSHIM_REAL(cuLaunchKernel_ptsz));
    case LaunchApi::cooperative:
      return reinterpret_cast<Target>(FIBSHIM_REAL(cuLaunchCooperativeKernel));
    case LaunchApi::cooperative_ptsz:
      return reinterpret_cast<Target>(FIBSHIM_REAL(cuLaunchCooperativeKernel_ptsz));
    case LaunchApi::ex: return reinterpret_cast<Target>(FIBSHIM_REAL(cuLaunchKernelEx));
    case LaunchApi::ex_ptsz: return reinterpret_cast<Target>(FIBSHIM_REAL(cuLaunchKernelEx_ptsz));
  }
  return nullptr;
}

// The functions that one exported launch function may need.
struct LaunchFunctions {
  LaunchApi api;  // the exported function
  const std::atomic<PFN_cuLaunchKernel_v4000>* launch;
  const std::atomic<PFN_cuLaunchKernelEx_v11060>* launch_ex;
  bool is_per_thread_stream;  // stream 0 is the per-thread default stream
  bool has_extra;
};

// Defined in return_result.cc: returns the result that end_launch() has put into the frame.
extern "C" __attribute__((visibility("hidden"))) void fibshim_return_result();

inline Target end_launch(LaunchFrame& frame, CUresult result,
                         Target end = reinterpret_cast<Target>(&fibshim_return_result)) {
  frame.function = static_cast<uint32_t>(result);
  return end;
}

// Any launch. Tries the fast side.
extern "C" {
__attribute__((visibility("hidden"))) Target fibshim_route_cuLaunchKernel(LaunchFrame* frame);
__attribute__((visibility("hidden"))) Target fibshim_route_cuLaunchKernel_ptsz(LaunchFrame* frame);
__attribute__((visibility("hidden"))) Target fibshim_route_cuLaunchCooperativeKernel(
    LaunchFrame* frame);
__attribute__((visibility("hidden"))) Target fibshim_route_cuLaunchCooperativeKernel_ptsz(
    LaunchFrame* frame);
}
CUresult launch_cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction function, void** params,
                                 void** extra);
CUresult launch_cuLaunchKernelEx_ptsz(const CUlaunchConfig* config, CUfunction function,
                                      void** params, void** extra);

// The slow side. Call outside a read section of the fast side.
Target route_slowly(LaunchFrame& frame, const LaunchFunctions& functions);
CUresult launch_config_slowly(const CUlaunchConfig* config, CUfunction function, void** params,
                              void** extra, const LaunchFunctions& functions);

// For the atfork handlers.
void lock_slow_side_for_fork();
void unlock_slow_side_after_fork(bool is_child);

// Call if a redirected launch that was counted as `hit` has failed. Counts it as an error instead,
// and reports the first one of its series. Returns true if the original must run. Slow side.
bool end_failed_launch(uint32_t hit, CUresult result, bool falls_back);

// Counts a launch whose geometry and arguments only the driver can read; it keeps its kernel.
void count_kept(const void* handle);

}  // namespace fibshim
