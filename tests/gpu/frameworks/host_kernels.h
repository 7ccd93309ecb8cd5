// The kernels of the C++ hosts, for inclusion where HOST_KERNEL(name) gives the host's own name for
// one. All compute y = x + 1, and the special ones only if they were launched as they ask.
#pragma once

#include <cooperative_groups.h>

#include "tests/gpu/frameworks/host.h"

__device__ inline int global_index() {
  return static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
}

__device__ inline void add_one(const float* x, float* y, int n) {
  const int i = global_index();
  if (i < n) y[i] = x[i] + 1;
}

__device__ inline void add_one_after_sync(const float* x, float* y, int n) {
  const int i = global_index();
  if (i < n) y[i] = x[i];
  cooperative_groups::this_grid().sync();
  if (i < n) y[i] += 1;
}

extern "C" __global__ void HOST_KERNEL(plus_one)(const float* x, float* y, int n) {
  add_one(x, y, n);
}

extern "C" __global__ void HOST_KERNEL(cooperative_plus_one)(const float* x, float* y, int n) {
  add_one_after_sync(x, y, n);
}

extern "C" __global__ void HOST_KERNEL(cluster_plus_one)(const float* x, float* y, int n) {
#if __CUDA_ARCH__ >= 900
  const auto cluster = cooperative_groups::this_cluster();
  cluster.sync();
  const int i = global_index();
  if (i < n && cluster.num_blocks() == fibshim_test::kCluster) y[i] = x[i] + 1;
#endif
}
