// Which GPUs the driver of this machine shows.
#ifndef FIBSHIM_TOOLS_PROCESSES_GPUS_H_
#define FIBSHIM_TOOLS_PROCESSES_GPUS_H_

#include <stdint.h>

#include <string>
#include <vector>

namespace fibshim::tools {

// Their compute capabilities, such as 90, one for each GPU. Loads libcuda.so.1. None: *why says why.
std::vector<uint32_t> compute_capabilities(std::string* why);

}  // namespace fibshim::tools

#endif  // FIBSHIM_TOOLS_PROCESSES_GPUS_H_
