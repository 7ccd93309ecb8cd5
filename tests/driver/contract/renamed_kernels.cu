// A second image: a kernel that the first has, too, with other parameters, and one that it lacks.
// If it is loaded after the first is unloaded, its kernels get the first one's handles.
#include <stdint.h>

extern "C" __global__ void sim_store(int64_t value, int64_t* to, int32_t unused) {
  *to = value + unused;
}

extern "C" __global__ void sim_other(int32_t* to) { *to = 1; }
