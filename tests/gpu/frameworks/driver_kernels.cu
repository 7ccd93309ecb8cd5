// The image of driver_host.cc.
#define HOST_KERNEL(name) driver_##name
#include "tests/gpu/frameworks/host_kernels.h"

extern "C" __global__ void driver_library_plus_one(const float* x, float* y, int n) {
  add_one(x, y, n);
}

extern "C" __global__ void driver_cooperative_ex_plus_one(const float* x, float* y, int n) {
  add_one_after_sync(x, y, n);
}
