#include "shim/launch/captures.h"

#include <pthread.h>
#include <stdint.h>

#include "shim/base/slow_reasons.h"
#include "shim/driver/context_scope.h"
#include "shim/driver/driver.h"
#include "shim/driver/stream_context.h"
#include "shim/registry/handles.h"

namespace fibshim {

constinit std::atomic<int> g_active_captures{0};

namespace {

// `stream` is claimed first and stored last, after the other members: no reader may see one
// capture's stream with the context of the capture that had its slot before.
struct Capture {
  std::atomic<uintptr_t> stream;  // or kFree or kClaimed
  std::atomic<uintptr_t> thread;  // owner of the per-thread stream; 0: not a per-thread stream
  std::atomic<CUcontext> context;
  std::atomic<CUdevice> device;  // whose primary context this may be; kNone: of no device
};

constexpr CUdevice kNone = -1;

// The primary contexts as the driver last returned them; null: unknown. A context that is made
// again has the same handle.
constexpr int kMostDevices = 64;
constinit std::atomic<CUcontext> g_primary_contexts[kMostDevices] = {};

constexpr uintptr_t kFree = 0;
constexpr uintptr_t kClaimed = 3;  // not written yet; like 1 and 2, no stream's handle

// Captures beyond this number are counted but never end: launches then stay on the slow side,
// nothing worse.
constexpr int kMostCaptures = 256;
constinit Capture g_captures[kMostCaptures] = {};

struct StreamKey {
  uintptr_t stream;
  uintptr_t thread;
};

StreamKey key_of(CUstream stream, bool is_per_thread_stream) {
  stream = named_stream(stream, is_per_thread_stream);
  return {reinterpret_cast<uintptr_t>(stream),
          stream == CU_STREAM_PER_THREAD ? static_cast<uintptr_t>(pthread_self()) : 0};
}

// Returns the current device, or kNone if the context is known not to be its primary one.
CUdevice primary_device_of(CUcontext context) {
  const auto get_device = FIBSHIM_REAL(cuCtxGetDevice);
  CUdevice device = kNone;
  if (get_device == nullptr || get_device(&device) != CUDA_SUCCESS) return kNone;
  const CUcontext primary = primary_context_of(device);
  return primary == nullptr || primary == context ? device : kNone;
}

// Call when a capture has ended.
void count_ended_capture() {
  g_active_captures.fetch_sub(1, std::memory_order_relaxed);
  g_slow_reasons.fetch_sub(1, std::memory_order_relaxed);
  resume_fast_side();
}

// Returns true if this call has ended it, and not another thread.
bool end_capture(Capture* capture, uintptr_t stream) {
  if (!capture->stream.compare_exchange_strong(stream, kFree)) return false;
  count_ended_capture();
  return true;
}

template <class Is>
void end_captures(Is is) {
  if (__builtin_expect(g_active_captures.load(std::memory_order_relaxed) == 0, 1)) return;
  for (Capture& capture : g_captures) {
    const uintptr_t stream = capture.stream.load(std::memory_order_acquire);
    if (stream != kFree && stream != kClaimed && is(capture, stream)) {
      end_capture(&capture, stream);
    }
  }
}

}  // namespace

void record_capture(CUstream stream, bool is_per_thread_stream) {
  g_active_captures.fetch_add(1, std::memory_order_relaxed);
  g_slow_reasons.fetch_add(1, std::memory_order_relaxed);
  suspend_fast_side();
  const StreamKey key = key_of(stream, is_per_thread_stream);
  const CUcontext context = context_of_stream(reinterpret_cast<CUstream>(key.stream));
  const CUdevice device = primary_device_of(context);
  for (Capture& capture : g_captures) {
    uintptr_t none = kFree;
    if (!capture.stream.compare_exchange_strong(none, kClaimed)) continue;
    capture.thread.store(key.thread, std::memory_order_relaxed);
    capture.context.store(context, std::memory_order_relaxed);
    capture.device.store(device, std::memory_order_relaxed);
    capture.stream.store(key.stream, std::memory_order_release);
    return;
  }
}

void end_capture_of_stream(CUstream stream, bool is_per_thread_stream) {
  if (__builtin_expect(g_active_captures.load(std::memory_order_relaxed) == 0, 1)) return;
  const StreamKey key = key_of(stream, is_per_thread_stream);
  const CUcontext context =
      key.thread == 0 ? nullptr : context_of_stream(reinterpret_cast<CUstream>(key.stream));
  end_captures([&](const Capture& capture, uintptr_t at) {
    return at == key.stream && capture.thread.load(std::memory_order_relaxed) == key.thread &&
           (key.thread == 0 || capture.context.load(std::memory_order_relaxed) == context);
  });
}

void end_captures_of_stream(CUstream stream) {
  if (stream != nullptr && stream != CU_STREAM_PER_THREAD) end_capture_of_stream(stream, false);
}

void end_captures_of_context(CUcontext context) {
  end_captures([&](const Capture& capture, uintptr_t) {
    return context != nullptr && capture.context.load(std::memory_order_relaxed) == context;
  });
}

void record_primary_context(CUdevice device, CUcontext context) {
  if (device < 0 || device >= kMostDevices) return;
  g_primary_contexts[device].store(context, std::memory_order_relaxed);
}

CUcontext primary_context_of(CUdevice device) {
  if (device < 0 || device >= kMostDevices) return nullptr;
  return g_primary_contexts[device].load(std::memory_order_relaxed);
}

void end_captures_of_primary_context(CUdevice device, bool is_reset) {
  if (__builtin_expect(g_active_captures.load(std::memory_order_relaxed) == 0, 1)) return;
  // Other users may still hold a context that was released.
  if (!is_reset && is_primary_context_active(device)) return;
  end_captures([&](const Capture& capture, uintptr_t) {
    return capture.device.load(std::memory_order_relaxed) == device;
  });
}

void end_captures_in_child() {
  for (Capture& capture : g_captures) capture.stream.store(kFree, std::memory_order_relaxed);
  while (g_active_captures.load(std::memory_order_relaxed) > 0) count_ended_capture();
}

}  // namespace fibshim
