// A program of the CUDA runtime, or a library: linked with the static or the shared libcudart, or
// compiled for per-thread default streams. FLAVOUR begins its kernels' names.
#define JOIN(flavour, name) flavour##_##name
#define JOIN_EXPANDED(flavour, name) JOIN(flavour, name)
#define HOST_KERNEL(name) JOIN_EXPANDED(FLAVOUR, name)
#include "tests/gpu/frameworks/host_kernels.h"

#include <string.h>

using namespace fibshim_test;

namespace {

cudaError_t launch(const char* way, const float* x, float* y, int n) {
  const dim3 grid(static_cast<unsigned>(n / kBlock));
  const dim3 block(kBlock);
  if (strcmp(way, "launch") == 0) {
    HOST_KERNEL(plus_one)<<<grid, block>>>(x, y, n);
    return cudaGetLastError();
  }
  if (strcmp(way, "cooperative") == 0) {
    void* arguments[] = {&x, &y, &n};
    return cudaLaunchCooperativeKernel(HOST_KERNEL(cooperative_plus_one), grid, block, arguments);
  }
  if (strcmp(way, "cluster") == 0) {
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim.x = kCluster;
    attribute.val.clusterDim.y = 1;
    attribute.val.clusterDim.z = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = block;
    config.attrs = &attribute;
    config.numAttrs = 1;
    return cudaLaunchKernelEx(&config, HOST_KERNEL(cluster_plus_one), x, y, n);
  }
  return cudaErrorInvalidValue;
}

cudaError_t launch_all(const char* way, int n, int times, const float* x, float* y) {
  const size_t bytes = static_cast<size_t>(n) * sizeof(float);
  float* device_x = nullptr;
  float* device_y = nullptr;
  cudaError_t error = cudaMalloc(&device_x, bytes);
  if (error == cudaSuccess) error = cudaMalloc(&device_y, bytes * static_cast<size_t>(times));
  if (error == cudaSuccess) error = cudaMemset(device_y, 0, bytes * static_cast<size_t>(times));
  if (error == cudaSuccess) error = cudaMemcpy(device_x, x, bytes, cudaMemcpyHostToDevice);
  for (int i = 0; i < times && error == cudaSuccess; ++i) {
    error = launch(way, device_x, device_y + static_cast<size_t>(i) * static_cast<size_t>(n), n);
  }
  if (error == cudaSuccess) {
    error = cudaMemcpy(y, device_y, bytes * static_cast<size_t>(times), cudaMemcpyDeviceToHost);
  }
  (void)cudaFree(device_x);
  (void)cudaFree(device_y);
  return error;
}

}  // namespace

const char* run_plus_one(const char* way, int n, int times) {
  return run_and_judge(n, times, [&](const float* x, float* y) -> const char* {
    const cudaError_t error = launch_all(way, n, times, x, y);
    return error == cudaSuccess ? nullptr : cudaGetErrorName(error);
  });
}
