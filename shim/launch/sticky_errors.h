// The errors that poison a context: every later call in it returns the same one (cuda.h says so of each).
//
// The first that the shim sees of a context is reported, once, with what is known of the launches that were
// redirected. A launch does nothing for it: what has been redirected is read from the counters. Where the
// context was found clean before, by a cuCtxSynchronize, only what came after that can be at fault, and the
// counts of then are kept: at most kReadsPerSynchronise of them are read for each synchronisation, on an
// average. With FIBSHIM_TRACE_LAST=on the last launches of each stream are known exactly.
//
// Seen are the results of the hooks of waiting calls, of redirected launches, and of whatever else
// call_real() calls. Launches of kernels that no pattern knows go to the driver with a jump, and do not come
// back.
#ifndef FIBSHIM_SHIM_LAUNCH_STICKY_ERRORS_H_
#define FIBSHIM_SHIM_LAUNCH_STICKY_ERRORS_H_

#include "shim/driver/cuda_names.h"
#include "shim/launch/redirect_trace.h"

namespace fibshim {

struct StickyError {
  CUresult code;
  const char* name;
  const char* cause;
};

inline constexpr char kKernelFault[] = "a kernel that ran in it is at fault";
inline constexpr char kHardwareFault[] = "the hardware is at fault";

inline constexpr StickyError kStickyErrors[] = {
    {CUDA_ERROR_ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS", kKernelFault},
    {CUDA_ERROR_LAUNCH_TIMEOUT, "CUDA_ERROR_LAUNCH_TIMEOUT", kKernelFault},
    {CUDA_ERROR_ASSERT, "CUDA_ERROR_ASSERT", kKernelFault},
    {CUDA_ERROR_HARDWARE_STACK_ERROR, "CUDA_ERROR_HARDWARE_STACK_ERROR", kKernelFault},
    {CUDA_ERROR_ILLEGAL_INSTRUCTION, "CUDA_ERROR_ILLEGAL_INSTRUCTION", kKernelFault},
    {CUDA_ERROR_MISALIGNED_ADDRESS, "CUDA_ERROR_MISALIGNED_ADDRESS", kKernelFault},
    {CUDA_ERROR_INVALID_ADDRESS_SPACE, "CUDA_ERROR_INVALID_ADDRESS_SPACE", kKernelFault},
    {CUDA_ERROR_INVALID_PC, "CUDA_ERROR_INVALID_PC", kKernelFault},
    {CUDA_ERROR_LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED", kKernelFault},
    // CUDA_ERROR_TENSOR_MEMORY_LEAK, of toolkits from 13.0 on.
    {static_cast<CUresult>(721), "CUDA_ERROR_TENSOR_MEMORY_LEAK", kKernelFault},
    {CUDA_ERROR_ECC_UNCORRECTABLE, "CUDA_ERROR_ECC_UNCORRECTABLE", kHardwareFault},
    {CUDA_ERROR_NVLINK_UNCORRECTABLE, "CUDA_ERROR_NVLINK_UNCORRECTABLE", kHardwareFault},
    {static_cast<CUresult>(226), "CUDA_ERROR_CONTAINED", kHardwareFault},
    {CUDA_ERROR_EXTERNAL_DEVICE, "CUDA_ERROR_EXTERNAL_DEVICE", kHardwareFault},
};

// Null: not one of them.
constexpr const StickyError* find_sticky_error(CUresult result) {
  for (const StickyError& error : kStickyErrors) {
    if (error.code == result) return &error;
  }
  return nullptr;
}

inline constexpr uint32_t kReadsPerSynchronise = 256;

// `call` has returned `result`: reports the context if that is one of them. `stream`: what it waited for, or
// null. Slow: calls the driver, and logs.
void note_error(const char* call, CUresult result, const StreamId* stream = nullptr);

// Some redirected launch of the series became a node of a graph: it may run at any time.
void note_graph_node(uint32_t series);

// Around a call that waits for a whole context, the current one unless it is named, or for a stream.
class ContextWait {
 public:
  explicit ContextWait(CUcontext context);
  ~ContextWait();
  ContextWait(const ContextWait&) = delete;
  ContextWait& operator=(const ContextWait&) = delete;
  CUresult end(const char* call, CUresult result);

 private:
  CUcontext context_;
  uint64_t traced_;
  bool has_counts_;  // is the one whose counts g_pending holds
};

// The context ends, or a device's primary one does: its handle may be another's at once.
void forget_errors_of_context(CUcontext context);
void forget_errors_of_primary_context(CUdevice device);

}  // namespace fibshim

#endif  // FIBSHIM_SHIM_LAUNCH_STICKY_ERRORS_H_
