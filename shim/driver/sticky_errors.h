// Errors from which a context never recovers: every later call in it returns the same one (as
// cuda.h documents for each).
#pragma once

#include "shim/driver/cuda_names.h"

namespace fibshim {

struct StickyError {
  CUresult code;
  const char* cause;
};

inline constexpr char kKernelFault[] = "a kernel that ran in it is at fault";
inline constexpr char kHardwareFault[] = "the hardware is at fault";

inline constexpr StickyError kStickyErrors[] = {
    {CUDA_ERROR_ILLEGAL_ADDRESS, kKernelFault},
    {CUDA_ERROR_LAUNCH_TIMEOUT, kKernelFault},
    {CUDA_ERROR_ASSERT, kKernelFault},
    {CUDA_ERROR_HARDWARE_STACK_ERROR, kKernelFault},
    {CUDA_ERROR_ILLEGAL_INSTRUCTION, kKernelFault},
    {CUDA_ERROR_MISALIGNED_ADDRESS, kKernelFault},
    {CUDA_ERROR_INVALID_ADDRESS_SPACE, kKernelFault},
    {CUDA_ERROR_INVALID_PC, kKernelFault},
    {CUDA_ERROR_LAUNCH_FAILED, kKernelFault},
    // CUDA_ERROR_TENSOR_MEMORY_LEAK, in toolkits from 13.0 on.
    {static_cast<CUresult>(721), kKernelFault},
    {CUDA_ERROR_ECC_UNCORRECTABLE, kHardwareFault},
    {CUDA_ERROR_NVLINK_UNCORRECTABLE, kHardwareFault},
    {static_cast<CUresult>(226), kHardwareFault},  // CUDA_ERROR_CONTAINED
    {CUDA_ERROR_EXTERNAL_DEVICE, kHardwareFault},
};

// Returns null if the result is no sticky error.
constexpr const StickyError* find_sticky_error(CUresult result) {
  for (const StickyError& error : kStickyErrors) {
    if (error.code == result) return &error;
  }
  return nullptr;
}

}  // namespace fibshim
