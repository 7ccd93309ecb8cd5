// A program, or a library, that is linked with libcuda.so.1 and knows no CUDA runtime. Its image lies
// beside it.
#include <cuda.h>
#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/gpu/frameworks/host.h"

using namespace fibshim_test;

namespace {

// The driver, loaded once for the process's life.
struct Driver {
  CUresult error;
  CUcontext context;
  CUmodule module;
  CUlibrary library;
};

void find_image(char (&path)[PATH_MAX]) {
  Dl_info self;
  dladdr(reinterpret_cast<void*>(&run_plus_one), &self);
  char real[PATH_MAX];
  // A program's own name may be relative to where it was started.
  if (realpath(strchr(self.dli_fname, '/') != nullptr ? self.dli_fname : "/proc/self/exe", real) ==
      nullptr) {
    real[0] = 0;
  }
  char* slash = strrchr(real, '/');
  if (slash != nullptr) *slash = 0;
  snprintf(path, sizeof path, "%.4000s/driver_kernels.fatbin", real);
}

Driver start() {
  Driver driver = {};
  char image[PATH_MAX];
  find_image(image);
  CUdevice device = 0;
  if ((driver.error = cuInit(0)) == CUDA_SUCCESS &&
      (driver.error = cuDeviceGet(&device, 0)) == CUDA_SUCCESS &&
      (driver.error = cuDevicePrimaryCtxRetain(&driver.context, device)) == CUDA_SUCCESS &&
      (driver.error = cuCtxSetCurrent(driver.context)) == CUDA_SUCCESS &&
      (driver.error = cuModuleLoad(&driver.module, image)) == CUDA_SUCCESS) {
    driver.error =
        cuLibraryLoadFromFile(&driver.library, image, nullptr, nullptr, 0, nullptr, nullptr, 0);
  }
  return driver;
}

// Launches with one attribute.
CUresult launch_ex(CUfunction function, CUlaunchAttribute attribute, unsigned blocks,
                   void** params) {
  CUlaunchConfig config = {};
  config.gridDimX = blocks;
  config.gridDimY = config.gridDimZ = 1;
  config.blockDimX = kBlock;
  config.blockDimY = config.blockDimZ = 1;
  config.attrs = &attribute;
  config.numAttrs = 1;
  return cuLaunchKernelEx(&config, function, params, nullptr);
}

CUresult launch(const Driver& driver, const char* way, CUdeviceptr x, CUdeviceptr y, int n) {
  void* params[] = {&x, &y, &n};
  const auto blocks = static_cast<unsigned>(n / kBlock);
  CUfunction function = nullptr;
  const auto find = [&](const char* name) {
    return cuModuleGetFunction(&function, driver.module, name);
  };
  CUresult error = CUDA_ERROR_INVALID_VALUE;
  CUlaunchAttribute attribute = {};
  if (strcmp(way, "launch") == 0) {
    error = find("driver_plus_one");
    if (error != CUDA_SUCCESS) return error;
    return cuLaunchKernel(function, blocks, 1, 1, kBlock, 1, 1, 0, nullptr, params, nullptr);
  }
  if (strcmp(way, "library") == 0) {
    CUkernel kernel = nullptr;
    error = cuLibraryGetKernel(&kernel, driver.library, "driver_library_plus_one");
    if (error != CUDA_SUCCESS) return error;
    return cuLaunchKernel(reinterpret_cast<CUfunction>(kernel), blocks, 1, 1, kBlock, 1, 1, 0,
                          nullptr, params, nullptr);
  }
  if (strcmp(way, "cooperative") == 0) {
    error = find("driver_cooperative_plus_one");
    if (error != CUDA_SUCCESS) return error;
    return cuLaunchCooperativeKernel(function, blocks, 1, 1, kBlock, 1, 1, 0, nullptr, params);
  }
  if (strcmp(way, "cooperative_ex") == 0) {
    error = find("driver_cooperative_ex_plus_one");
    if (error != CUDA_SUCCESS) return error;
    attribute.id = CU_LAUNCH_ATTRIBUTE_COOPERATIVE;
    attribute.value.cooperative = 1;
    return launch_ex(function, attribute, blocks, params);
  }
  if (strcmp(way, "cluster") == 0) {
    error = find("driver_cluster_plus_one");
    if (error != CUDA_SUCCESS) return error;
    attribute.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
    attribute.value.clusterDim.x = kCluster;
    attribute.value.clusterDim.y = 1;
    attribute.value.clusterDim.z = 1;
    return launch_ex(function, attribute, blocks, params);
  }
  return error;
}

CUresult launch_all(const char* way, int n, int times, const float* x, float* y) {
  static const Driver driver = start();
  if (driver.error != CUDA_SUCCESS) return driver.error;
  const size_t bytes = static_cast<size_t>(n) * sizeof(float);
  const size_t all_bytes = bytes * static_cast<size_t>(times);
  CUdeviceptr device_x = 0;
  CUdeviceptr device_y = 0;
  CUresult error = cuCtxSetCurrent(driver.context);
  if (error == CUDA_SUCCESS) error = cuMemAlloc(&device_x, bytes);
  if (error == CUDA_SUCCESS) error = cuMemAlloc(&device_y, all_bytes);
  if (error == CUDA_SUCCESS) error = cuMemsetD8(device_y, 0, all_bytes);
  if (error == CUDA_SUCCESS) error = cuMemcpyHtoD(device_x, x, bytes);
  for (int i = 0; i < times && error == CUDA_SUCCESS; ++i) {
    error = launch(driver, way, device_x, device_y + static_cast<size_t>(i) * bytes, n);
  }
  if (error == CUDA_SUCCESS) error = cuMemcpyDtoH(y, device_y, all_bytes);
  if (device_x != 0) (void)cuMemFree(device_x);
  if (device_y != 0) (void)cuMemFree(device_y);
  return error;
}

}  // namespace

const char* run_plus_one(const char* way, int n, int times) {
  static char error_text[32];
  return run_and_judge(n, times, [&](const float* x, float* y) -> const char* {
    const CUresult error = launch_all(way, n, times, x, y);
    if (error == CUDA_SUCCESS) return nullptr;
    snprintf(error_text, sizeof error_text, "CUDA error %d", static_cast<int>(error));
    return error_text;
  });
}
