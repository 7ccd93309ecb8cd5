// A second image: a kernel that the first has too, with other parameters, and one that it lacks.
// Loaded after the first is gone, its kernels come out at the first one's addresses.
#include <stdint.h>

extern "C" __global__ void sim_store(int64_t value, int64_t* to, int32_t unused) {
  *to = value + unused;
}

extern "C" __global__ void sim_other(int32_t* to) { *to = 1; }
