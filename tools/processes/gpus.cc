#include "tools/processes/gpus.h"

#include <dlfcn.h>

#include <fmt/format.h>

namespace fibshim::tools {

std::vector<uint32_t> compute_capabilities(std::string* why) {
  // Never closed: drivers do not like it.
  void* const driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (driver == nullptr) {
    *why = dlerror();
    return {};
  }
  const auto init = reinterpret_cast<int (*)(unsigned)>(dlsym(driver, "cuInit"));
  const auto get_count = reinterpret_cast<int (*)(int*)>(dlsym(driver, "cuDeviceGetCount"));
  const auto get_attribute =
      reinterpret_cast<int (*)(int*, int, int)>(dlsym(driver, "cuDeviceGetAttribute"));
  if (init == nullptr || get_count == nullptr || get_attribute == nullptr) {
    *why = "libcuda.so.1 lacks functions that every CUDA driver has";
    return {};
  }
  int count = 0;
  int error = init(0);
  if (error == 0) error = get_count(&count);
  std::vector<uint32_t> sms;
  constexpr int kComputeCapabilityMajor = 75;
  constexpr int kComputeCapabilityMinor = 76;
  for (int device = 0; error == 0 && device < count; ++device) {
    int major = 0;
    int minor = 0;
    error = get_attribute(&major, kComputeCapabilityMajor, device);
    if (error == 0) error = get_attribute(&minor, kComputeCapabilityMinor, device);
    if (error == 0) sms.push_back(static_cast<uint32_t>(major * 10 + minor));
  }
  if (sms.empty()) *why = fmt::format("no usable GPU (CUDA error {})", error);
  return sms;
}

}  // namespace fibshim::tools
