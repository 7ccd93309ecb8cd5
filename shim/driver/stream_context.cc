#include "shim/driver/stream_context.h"

#include "shim/driver/driver.h"

namespace fibshim {

CUcontext context_of_stream(CUstream stream) {
  const auto get_context = FIBSHIM_REAL(cuStreamGetCtx);
  const auto get_current = FIBSHIM_REAL(cuCtxGetCurrent);
  const bool is_default =
      stream == nullptr || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD;
  CUcontext context = nullptr;
  const CUresult result =
      is_default || get_context == nullptr
          ? (get_current == nullptr ? CUDA_ERROR_NOT_SUPPORTED : get_current(&context))
          : get_context(stream, &context);
  return result == CUDA_SUCCESS ? context : nullptr;
}

bool may_be_capturing(CUstream stream, bool is_per_thread_stream) {
  const auto ask = FIBSHIM_REAL(cuStreamIsCapturing);
  // An error may be transient, so try a few times.
  for (int i = 0; ask != nullptr && i < 8; ++i) {
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    if (ask(named_stream(stream, is_per_thread_stream), &status) != CUDA_SUCCESS) continue;
    return status != CU_STREAM_CAPTURE_STATUS_NONE;
  }
  return true;
}

bool is_capturing(CUstream stream, bool is_per_thread_stream) {
  const auto ask = FIBSHIM_REAL(cuStreamIsCapturing);
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  return ask != nullptr &&
         ask(named_stream(stream, is_per_thread_stream), &status) == CUDA_SUCCESS &&
         status != CU_STREAM_CAPTURE_STATUS_NONE;
}

}  // namespace fibshim
