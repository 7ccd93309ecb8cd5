// Asks the driver for the GPUs of this machine. This loads the driver into the calling process.
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
  std::string fault;  // why there is no usable GPU; empty: there is one
  std::string path;   // of libcuda.so.1; empty: it could not be loaded, or is not a CUDA driver
  int version = 0;    // 12040 for CUDA 12.4
  std::vector<GpuInfo> gpus;
};

DriverInfo ask_driver();

}  // namespace fibshim::tools
