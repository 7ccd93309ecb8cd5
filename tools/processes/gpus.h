// The GPUs of this machine, by the driver. Asking loads the driver into this process.
#pragma once

#include <stdint.h>

#include <string>
#include <vector>

namespace fibshim::tools {

struct GpuInfo {
  std::string name;
  uint32_t sm;  // 90 for compute capability 9.0
};

struct DriverInfo {
  std::string fault;  // why there is no usable GPU; empty: there is
  std::string path;   // of libcuda.so.1; empty: it could not be loaded, or is no CUDA driver
  int version = 0;    // 12040 for CUDA 12.4
  std::vector<GpuInfo> gpus;
};

DriverInfo ask_driver();

}  // namespace fibshim::tools
