// Contexts that are current for the life of a scope. Slow paths: each makes a few driver calls.
#pragma once

#include <atomic>

#include "shim/driver/driver.h"

namespace fibshim {

// Returns the current context, or null if there is none.
inline CUcontext current_context() {
  const auto get_current = FIBSHIM_REAL(cuCtxGetCurrent);
  CUcontext context = nullptr;
  return get_current != nullptr && get_current(&context) == CUDA_SUCCESS ? context : nullptr;
}
inline bool has_current_context() { return current_context() != nullptr; }

// Returns a green context as a context, or null if the driver does not tell.
inline CUcontext context_of_green(CUgreenCtx green) {
  const auto get_context = FIBSHIM_REAL(cuCtxFromGreenCtx);
  CUcontext context = nullptr;
  return get_context != nullptr && get_context(&context, green) == CUDA_SUCCESS ? context : nullptr;
}

// Also true if the driver cannot report it.
inline bool is_primary_context_active(CUdevice device) {
  const auto get_state = FIBSHIM_REAL(cuDevicePrimaryCtxGetState);
  unsigned flags = 0;
  int is_active = 1;
  return get_state == nullptr || get_state(device, &flags, &is_active) != CUDA_SUCCESS ||
         is_active != 0;
}

// Makes a given context current.
class ContextScope {
 public:
  explicit ContextScope(CUcontext context) {
    const auto get_current = FIBSHIM_REAL(cuCtxGetCurrent);
    const auto push = FIBSHIM_REAL(cuCtxPushCurrent_v2);
    CUcontext current = nullptr;
    is_current_ =
        get_current != nullptr && get_current(&current) == CUDA_SUCCESS && current == context;
    if (is_current_ || push == nullptr || FIBSHIM_REAL(cuCtxPopCurrent_v2) == nullptr) return;
    is_pushed_ = is_current_ = push(context) == CUDA_SUCCESS;
  }
  ~ContextScope() {
    CUcontext context = nullptr;
    if (is_pushed_) (void)FIBSHIM_REAL(cuCtxPopCurrent_v2)(&context);
  }
  ContextScope(const ContextScope&) = delete;
  ContextScope& operator=(const ContextScope&) = delete;

  bool is_current() const { return is_current_; }

 private:
  bool is_current_ = false;
  bool is_pushed_ = false;
};

// Returns the context's device, or -1 if the driver does not tell.
inline CUdevice device_of_context(CUcontext context) {
  const ContextScope scope(context);
  const auto get_device = FIBSHIM_REAL(cuCtxGetDevice);
  CUdevice device = -1;
  return context != nullptr && scope.is_current() && get_device != nullptr &&
                 get_device(&device) == CUDA_SUCCESS
             ? device
             : -1;
}

// Bit i: the primary context of device i ended with a scope, since the host had released it meanwhile.
inline std::atomic<uint64_t> g_ended_primary_contexts{0};

// Makes a device's primary context current if it is active.
class PrimaryContextScope {
 public:
  PrimaryContextScope() = default;
  PrimaryContextScope(const PrimaryContextScope&) = delete;
  PrimaryContextScope& operator=(const PrimaryContextScope&) = delete;
  ~PrimaryContextScope() {
    if (!is_current_) return;
    CUcontext context = nullptr;
    (void)FIBSHIM_REAL(cuCtxPopCurrent_v2)(&context);
    (void)FIBSHIM_REAL(cuDevicePrimaryCtxRelease_v2)(device_);
    if (device_ < 64 && !is_primary_context_active(device_)) {
      g_ended_primary_contexts.fetch_or(uint64_t{1} << device_, std::memory_order_acq_rel);
    }
  }

  bool enter(CUdevice device) {
    const auto get_state = FIBSHIM_REAL(cuDevicePrimaryCtxGetState);
    const auto retain = FIBSHIM_REAL(cuDevicePrimaryCtxRetain);
    const auto release = FIBSHIM_REAL(cuDevicePrimaryCtxRelease_v2);
    const auto push = FIBSHIM_REAL(cuCtxPushCurrent_v2);
    unsigned flags = 0;
    int is_active = 0;
    CUcontext context = nullptr;
    if (get_state == nullptr || retain == nullptr || release == nullptr || push == nullptr ||
        FIBSHIM_REAL(cuCtxPopCurrent_v2) == nullptr ||
        get_state(device, &flags, &is_active) != CUDA_SUCCESS || is_active == 0 ||
        retain(&context, device) != CUDA_SUCCESS) {
      return false;
    }
    device_ = device;
    is_current_ = push(context) == CUDA_SUCCESS;
    if (!is_current_) (void)release(device);
    return is_current_;
  }

 private:
  CUdevice device_ = 0;
  bool is_current_ = false;
};

}  // namespace fibshim
