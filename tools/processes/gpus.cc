#include "tools/processes/gpus.h"

#include <dlfcn.h>

#include <fmt/format.h>

namespace fibshim::tools {

DriverInfo ask_driver() {
  DriverInfo out;
  // Never closed: drivers do not support unloading well.
  void* const driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (driver == nullptr) {
    out.fault = dlerror();
    return out;
  }
  const auto init = reinterpret_cast<int (*)(unsigned)>(dlsym(driver, "cuInit"));
  const auto get_version = reinterpret_cast<int (*)(int*)>(dlsym(driver, "cuDriverGetVersion"));
  const auto get_count = reinterpret_cast<int (*)(int*)>(dlsym(driver, "cuDeviceGetCount"));
  const auto get_name =
      reinterpret_cast<int (*)(char*, int, int)>(dlsym(driver, "cuDeviceGetName"));
  const auto get_attribute =
      reinterpret_cast<int (*)(int*, int, int)>(dlsym(driver, "cuDeviceGetAttribute"));
  Dl_info place{};
  if (init == nullptr || get_version == nullptr || get_count == nullptr || get_name == nullptr ||
      get_attribute == nullptr || dladdr(reinterpret_cast<void*>(init), &place) == 0) {
    out.fault = "libcuda.so.1 lacks functions that every CUDA driver has";
    return out;
  }
  out.path = place.dli_fname;
  get_version(&out.version);
  int count = 0;
  int error = init(0);
  if (error == 0) error = get_count(&count);
  constexpr int kComputeCapabilityMajor = 75, kComputeCapabilityMinor = 76;
  for (int device = 0; error == 0 && device < count; ++device) {
    char name[128] = "";
    int major = 0, minor = 0;
    get_name(name, sizeof name - 1, device);
    error = get_attribute(&major, kComputeCapabilityMajor, device);
    if (error == 0) error = get_attribute(&minor, kComputeCapabilityMinor, device);
    if (error == 0) out.gpus.push_back({name, static_cast<uint32_t>(major * 10 + minor)});
  }
  if (out.gpus.empty()) out.fault = fmt::format("no usable GPU (CUDA error {})", error);
  return out;
}

}  // namespace fibshim::tools
