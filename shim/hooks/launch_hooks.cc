// The exported launch functions, but for those with more arguments than fit into registers, which on x86-64 are in
// launch/fast.cc.
#include "shim/hooks/hooks.h"

#include "shim/hooks/call_real.h"
#include "shim/launch/launch.h"

using namespace fibshim;  // NOLINT(google-build-using-namespace): this file is all hooks

#if !defined(__x86_64__) || defined(__SANITIZE_THREAD__)

// For machines other than x86-64, and for ThreadSanitizer, which sees no assembly: these copy arguments.
#define FIBSHIM_GEOMETRY                                                                 \
  unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y, \
      unsigned block_z, unsigned shared_mem, CUstream stream, void **params

// `last`: the last argument, or null. The others: its name, if the function has it.
#define FIBSHIM_HOOK(name, last, ...)                                                    \
  CUresult hook_##name(CUfunction function,                                              \
                       FIBSHIM_GEOMETRY __VA_OPT__(, ) __VA_OPT__(void**) __VA_ARGS__) { \
    LaunchFrame frame = {reinterpret_cast<uint64_t>(function),                           \
                         {grid_x, grid_y, grid_z},                                       \
                         {block_x, block_y},                                             \
                         0,                                                              \
                         0,                                                              \
                         block_z,                                                        \
                         shared_mem,                                                     \
                         stream,                                                         \
                         params,                                                         \
                         last};                                                          \
    const Target target = fibshim_route_##name(&frame);                                  \
    if (target == reinterpret_cast<Target>(&fibshim_return_result)) {                    \
      return static_cast<CUresult>(frame.function);                                      \
    }                                                                                    \
    return reinterpret_cast<decltype(FIBSHIM_REAL(name))>(target)(                       \
        function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_mem, stream, \
        params __VA_OPT__(, ) __VA_ARGS__);                                              \
  }

FIBSHIM_HOOK(cuLaunchKernel, extra, extra)
FIBSHIM_HOOK(cuLaunchKernel_ptsz, extra, extra)
FIBSHIM_HOOK(cuLaunchCooperativeKernel, nullptr)
FIBSHIM_HOOK(cuLaunchCooperativeKernel_ptsz, nullptr)
#undef FIBSHIM_HOOK
#undef FIBSHIM_GEOMETRY

#endif

CUresult hook_cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction function, void** params,
                               void** extra) {
  return launch_cuLaunchKernelEx(config, function, params, extra);
}

CUresult hook_cuLaunchKernelEx_ptsz(const CUlaunchConfig* config, CUfunction function,
                                    void** params, void** extra) {
  return launch_cuLaunchKernelEx_ptsz(config, function, params, extra);
}

// --- launches in the way of CUDA before 4 ---

// Geometry and arguments were set on the function, where only the driver can read them.
CUresult hook_cuLaunch(CUfunction function) {
  count_kept(function);
  return call_real(real::cuLaunch, function);
}

CUresult hook_cuLaunchGrid(CUfunction function, int grid_width, int grid_height) {
  count_kept(function);
  return call_real(real::cuLaunchGrid, function, grid_width, grid_height);
}

CUresult hook_cuLaunchGridAsync(CUfunction function, int grid_width, int grid_height,
                                CUstream stream) {
  count_kept(function);
  return call_real(real::cuLaunchGridAsync, function, grid_width, grid_height, stream);
}

// The kernels of all devices wait for one another, so none is replaced.
CUresult hook_cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS* launches, unsigned count,
                                                   unsigned flags) {
  for (unsigned i = 0; launches != nullptr && i < count; ++i) count_kept(launches[i].function);
  return call_real(real::cuLaunchCooperativeKernelMultiDevice, launches, count, flags);
}
