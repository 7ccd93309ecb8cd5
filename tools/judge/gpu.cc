#include "tools/judge/gpu.h"

#include <dlfcn.h>

#include <algorithm>

#include <cudaTypedefs.h>
#include <fmt/format.h>

#include "shim/plan/plan.h"

namespace fibshim::judge {

// One row for each function: member and type, and the name that libcuda exports.
#define FIBSHIM_JUDGE_DRIVER(ROW)                                       \
  ROW(cuInit, cuInit, v2000)                                            \
  ROW(cuDriverGetVersion, cuDriverGetVersion, v2020)                    \
  ROW(cuGetErrorName, cuGetErrorName, v6000)                            \
  ROW(cuDeviceGetCount, cuDeviceGetCount, v2000)                        \
  ROW(cuDeviceGet, cuDeviceGet, v2000)                                  \
  ROW(cuDeviceGetName, cuDeviceGetName, v2000)                          \
  ROW(cuDeviceGetUuid, cuDeviceGetUuid_v2, v11040)                      \
  ROW(cuDeviceGetAttribute, cuDeviceGetAttribute, v2000)                \
  ROW(cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain, v7000)        \
  ROW(cuCtxSetCurrent, cuCtxSetCurrent, v4000)                          \
  ROW(cuMemGetInfo, cuMemGetInfo_v2, v3020)                             \
  ROW(cuMemAlloc, cuMemAlloc_v2, v3020)                                 \
  ROW(cuMemFree, cuMemFree_v2, v3020)                                   \
  ROW(cuMemcpyHtoDAsync, cuMemcpyHtoDAsync_v2, v3020)                   \
  ROW(cuMemcpyDtoH, cuMemcpyDtoH_v2, v3020)                             \
  ROW(cuMemcpyDtoDAsync, cuMemcpyDtoDAsync_v2, v3020)                   \
  ROW(cuMemsetD32Async, cuMemsetD32Async, v3020)                        \
  ROW(cuMemsetD8Async, cuMemsetD8Async, v3020)                          \
  ROW(cuStreamCreate, cuStreamCreate, v2000)                            \
  ROW(cuStreamSynchronize, cuStreamSynchronize, v2000)                  \
  ROW(cuStreamBeginCapture, cuStreamBeginCapture_v2, v10010)            \
  ROW(cuStreamEndCapture, cuStreamEndCapture, v10000)                   \
  ROW(cuGraphInstantiateWithFlags, cuGraphInstantiateWithFlags, v11040) \
  ROW(cuGraphLaunch, cuGraphLaunch, v10000)                             \
  ROW(cuEventCreate, cuEventCreate, v2000)                              \
  ROW(cuEventRecord, cuEventRecord, v2000)                              \
  ROW(cuEventElapsedTime, cuEventElapsedTime, v2000)                    \
  ROW(cuLibraryLoadData, cuLibraryLoadData, v12000)                     \
  ROW(cuLibraryGetKernel, cuLibraryGetKernel, v12000)                   \
  ROW(cuKernelGetAttribute, cuKernelGetAttribute, v12000)               \
  ROW(cuKernelSetAttribute, cuKernelSetAttribute, v12000)               \
  ROW(cuLaunchKernelEx, cuLaunchKernelEx, v11060)

struct Gpu::Driver {
#define ROW(name, exported, version) PFN_##name##_##version name##_call = nullptr;
  FIBSHIM_JUDGE_DRIVER(ROW)
#undef ROW
  DeviceInfo info;
  CUdevice device = 0;
  CUstream stream = nullptr;
  std::vector<CUevent> events;
  CUfunction workspace_of = nullptr;
  CUdeviceptr workspace = 0;
  int64_t workspace_bytes = 0;  // 0: there is none

  Result<void> check(CUresult result, const char* call) const {
    if (result == CUDA_SUCCESS) return {};
    const char* name = nullptr;
    if (cuGetErrorName_call(result, &name) != CUDA_SUCCESS || name == nullptr) name = "error";
    return fail(static_cast<ErrorCode>(result),
                fmt::format("{}: {} ({})", call, name, static_cast<int>(result)));
  }
};

// Calls a driver function and returns a Result.
#define FIBSHIM_CALL(name, ...) driver_->check(driver_->name##_call(__VA_ARGS__), #name)

Gpu::Gpu() : driver_(std::make_unique<Driver>()) {}
// The end of the process frees the context and all that belongs to it: a context that faulted
// cannot be cleaned up.
Gpu::~Gpu() = default;

const DeviceInfo& Gpu::info() const { return driver_->info; }

Result<std::unique_ptr<Gpu>> Gpu::open(int ordinal) {
  void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* const why = dlerror();
    return fail(ErrorCode::not_found,
                fmt::format("no CUDA driver: {} (fibshim doctor tells more)", why));
  }
  std::unique_ptr<Gpu> gpu(new Gpu);
  Driver* const driver = gpu->driver_.get();
  std::string missing;
#define ROW(name, exported, version)                                                         \
  driver->name##_call = reinterpret_cast<PFN_##name##_##version>(dlsym(library, #exported)); \
  if (driver->name##_call == nullptr && missing.empty()) missing = #exported;
  FIBSHIM_JUDGE_DRIVER(ROW)
#undef ROW
  if (!missing.empty()) {
    return fail(ErrorCode::not_found,
                "the CUDA driver has no " + missing + ": a driver of CUDA 12.0 or later is needed");
  }
  const auto check = [&](CUresult result, const char* call) { return driver->check(result, call); };
  Dl_info place{};
  if (dladdr(reinterpret_cast<void*>(driver->cuInit_call), &place) != 0) {
    driver->info.driver_path = place.dli_fname;
  }
  int count = 0;
  FIBSHIM_TRY(check(driver->cuInit_call(0), "cuInit"));
  (void)driver->cuDriverGetVersion_call(&driver->info.driver_version);
  FIBSHIM_TRY(check(driver->cuDeviceGetCount_call(&count), "cuDeviceGetCount"));
  if (ordinal < 0 || ordinal >= count) {
    return fail(ErrorCode::invalid_value,
                fmt::format("there is no GPU {}: the driver sees {}", ordinal, count));
  }
  CUcontext context = nullptr;
  char name[256] = "";
  CUuuid uuid{};
  int major = 0, minor = 0, l2_bytes = 0;
  size_t free_bytes = 0, total_bytes = 0;
  const auto attribute = [&](int* value, CUdevice_attribute which) {
    return check(driver->cuDeviceGetAttribute_call(value, which, driver->device),
                 "cuDeviceGetAttribute");
  };
  for (const Result<void>& step :
       {check(driver->cuDeviceGet_call(&driver->device, ordinal), "cuDeviceGet"),
        check(driver->cuDeviceGetName_call(name, sizeof name, driver->device), "cuDeviceGetName"),
        check(driver->cuDeviceGetUuid_call(&uuid, driver->device), "cuDeviceGetUuid"),
        attribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR),
        attribute(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR),
        attribute(&l2_bytes, CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE),
        check(driver->cuDevicePrimaryCtxRetain_call(&context, driver->device),
              "cuDevicePrimaryCtxRetain"),
        check(driver->cuCtxSetCurrent_call(context), "cuCtxSetCurrent"),
        check(driver->cuMemGetInfo_call(&free_bytes, &total_bytes), "cuMemGetInfo"),
        check(driver->cuStreamCreate_call(&driver->stream, CU_STREAM_NON_BLOCKING),
              "cuStreamCreate")}) {
    FIBSHIM_TRY(step);
  }
  driver->info.name = name;
  driver->info.sm = 10 * major + minor;
  driver->info.l2_bytes = static_cast<uint64_t>(std::max(l2_bytes, 0));
  driver->info.free_bytes = free_bytes;
  driver->info.uuid = "GPU";
  for (size_t i = 0; i < sizeof uuid.bytes; ++i) {
    const bool starts_group = i == 0 || i == 4 || i == 6 || i == 8 || i == 10;
    driver->info.uuid +=
        fmt::format("{}{:02x}", starts_group ? "-" : "", static_cast<unsigned char>(uuid.bytes[i]));
  }
  return gpu;
}

Result<CUfunction> Gpu::load_kernel(std::string_view image, const std::string& name,
                                    bool takes_large_clusters) {
  CUlibrary library = nullptr;
  CUkernel kernel = nullptr;
  FIBSHIM_TRY(FIBSHIM_CALL(cuLibraryLoadData, &library, image.data(), nullptr, nullptr, 0, nullptr,
                           nullptr, 0));
  FIBSHIM_TRY(FIBSHIM_CALL(cuLibraryGetKernel, &kernel, library, name.c_str()));
  int room = 0, taken = 0;
  FIBSHIM_TRY(FIBSHIM_CALL(cuDeviceGetAttribute, &room,
                           CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, driver_->device));
  FIBSHIM_TRY(FIBSHIM_CALL(cuKernelGetAttribute, &taken, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES,
                           kernel, driver_->device));
  FIBSHIM_TRY(FIBSHIM_CALL(cuKernelSetAttribute, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                           room - taken, kernel, driver_->device));
  if (takes_large_clusters) {
    FIBSHIM_TRY(FIBSHIM_CALL(cuKernelSetAttribute,
                             CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1, kernel,
                             driver_->device));
  }
  return reinterpret_cast<CUfunction>(kernel);  // cuLaunchKernel accepts it in this form
}

Result<CUdeviceptr> Gpu::allocate(size_t bytes) {
  CUdeviceptr memory = 0;
  FIBSHIM_TRY(FIBSHIM_CALL(cuMemAlloc, &memory, bytes));
  return memory;
}

Result<void> Gpu::release(CUdeviceptr memory) { return FIBSHIM_CALL(cuMemFree, memory); }

Result<void> Gpu::to_device(CUdeviceptr to, const void* from, size_t bytes) {
  if (bytes == 0) return {};
  // From pageable memory cuMemcpyHtoD may return while the last part is under way, and our stream
  // does not wait for others. So this copies in our stream, and synchronises.
  FIBSHIM_TRY(FIBSHIM_CALL(cuMemcpyHtoDAsync, to, from, bytes, driver_->stream));
  return synchronize();
}

Result<void> Gpu::to_host(void* to, CUdeviceptr from, size_t bytes) {
  return bytes == 0 ? Result<void>() : FIBSHIM_CALL(cuMemcpyDtoH, to, from, bytes);
}

Result<void> Gpu::copy(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
  return FIBSHIM_CALL(cuMemcpyDtoDAsync, to, from, bytes, driver_->stream);
}

Result<void> Gpu::fill32(CUdeviceptr to, uint32_t value, size_t words) {
  return FIBSHIM_CALL(cuMemsetD32Async, to, value, words, driver_->stream);
}

Result<void> Gpu::fill8(CUdeviceptr to, uint8_t value, size_t bytes) {
  if (bytes == 0) return {};
  return FIBSHIM_CALL(cuMemsetD8Async, to, value, bytes, driver_->stream);
}

Result<void> Gpu::prepare_workspace(CUfunction kernel, const Launch& launch) {
  Driver& driver = *driver_;
  if (launch.workspace_bytes == 0 ||
      (driver.workspace_of == kernel && driver.workspace_bytes >= launch.workspace_bytes)) {
    return {};
  }
  if (driver.workspace_bytes != 0) FIBSHIM_TRY(release(driver.workspace));
  driver.workspace_bytes = 0;
  driver.workspace = FIBSHIM_TRY(allocate(static_cast<size_t>(launch.workspace_bytes)));
  driver.workspace_bytes = launch.workspace_bytes;
  driver.workspace_of = kernel;
  return fill8(driver.workspace, 0, static_cast<size_t>(launch.workspace_bytes));
}

Result<void> Gpu::launch(CUfunction kernel, const Launch& launch) {
  FIBSHIM_TRY(prepare_workspace(kernel, launch));
  std::vector<void*> params;
  for (const auto& param : launch.params) params.push_back(const_cast<uint8_t*>(param.data()));
  if (launch.workspace_bytes != 0) params[launch.workspace_param] = &driver_->workspace;
  CUlaunchAttribute cluster = cluster_attribute(launch.geometry.data());
  const bool has_cluster =
      launch.geometry[kClusterX] * launch.geometry[kClusterY] * launch.geometry[kClusterZ] != 1;
  CUlaunchConfig config{};
  put_geometry(launch.geometry.data(), &config);
  config.hStream = driver_->stream;
  config.attrs = has_cluster ? &cluster : nullptr;
  config.numAttrs = has_cluster ? 1 : 0;
  return FIBSHIM_CALL(cuLaunchKernelEx, &config, kernel, params.data(), nullptr);
}

Result<void> Gpu::synchronize() { return FIBSHIM_CALL(cuStreamSynchronize, driver_->stream); }

Result<CUgraphExec> Gpu::capture(CUfunction kernel, const Launch& one, int count) {
  CUgraph graph = nullptr;
  CUgraphExec executable = nullptr;
  FIBSHIM_TRY(prepare_workspace(kernel, one));
  FIBSHIM_TRY(
      FIBSHIM_CALL(cuStreamBeginCapture, driver_->stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
  Result<void> launched;
  for (int i = 0; i < count && launched; ++i) launched = launch(kernel, one);
  FIBSHIM_TRY(FIBSHIM_CALL(cuStreamEndCapture, driver_->stream, &graph));
  FIBSHIM_TRY(launched);
  FIBSHIM_TRY(FIBSHIM_CALL(cuGraphInstantiateWithFlags, &executable, graph, 0));
  return executable;
}

Result<void> Gpu::launch_graph(CUgraphExec graph) {
  return FIBSHIM_CALL(cuGraphLaunch, graph, driver_->stream);
}

Result<void> Gpu::mark(int event) {
  while (driver_->events.size() <= static_cast<size_t>(event)) {
    CUevent made = nullptr;
    FIBSHIM_TRY(FIBSHIM_CALL(cuEventCreate, &made, CU_EVENT_DEFAULT));
    driver_->events.push_back(made);
  }
  return FIBSHIM_CALL(cuEventRecord, driver_->events[static_cast<size_t>(event)], driver_->stream);
}

Result<std::vector<double>> Gpu::elapsed(int pairs) {
  FIBSHIM_TRY(synchronize());
  std::vector<double> times;
  for (int i = 0; i < pairs; ++i) {
    float milliseconds = 0;
    FIBSHIM_TRY(FIBSHIM_CALL(cuEventElapsedTime, &milliseconds,
                             driver_->events[static_cast<size_t>(2 * i)],
                             driver_->events[static_cast<size_t>(2 * i + 1)]));
    times.push_back(milliseconds);
  }
  return times;
}

}  // namespace fibshim::judge
