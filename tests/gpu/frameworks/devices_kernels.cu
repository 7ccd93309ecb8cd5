// The image of devices.cc: a kernel for each of its scenarios.
#define HOST_KERNEL(name) devices_##name
#include "tests/gpu/frameworks/host_kernels.h"

#define SCENARIO_KERNEL(name)                                                             \
  extern "C" __global__ void devices_##name##_plus_one(const float* x, float* y, int n) { \
    add_one(x, y, n);                                                                     \
  }
SCENARIO_KERNEL(library)
SCENARIO_KERNEL(module)
SCENARIO_KERNEL(foreign)
SCENARIO_KERNEL(contexts)
SCENARIO_KERNEL(capture)
SCENARIO_KERNEL(threads)
SCENARIO_KERNEL(default_stream)
