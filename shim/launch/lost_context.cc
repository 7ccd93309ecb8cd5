#include "shim/launch/lost_context.h"

#include <atomic>
#include <stdarg.h>
#include <stdio.h>

#include "shim/base/log.h"
#include "shim/counters/counters.h"
#include "shim/driver/driver.h"
#include "shim/launch/served_solutions.h"
#include "shim/registry/generation.h"

namespace fibshim {
namespace {

struct LostContext {
  std::atomic<uintptr_t> context;  // 0: free
  std::atomic<CUdevice> device;    // -1: unknown
};
LostContext g_lost[64];
constexpr uintptr_t kUnknownContext = 1;

// True for the first caller. Contexts for which there is no room are not reported.
bool is_first_report(CUcontext context, CUdevice device) {
  const uintptr_t key = context == nullptr ? kUnknownContext : reinterpret_cast<uintptr_t>(context);
  for (LostContext& one : g_lost) {
    uintptr_t found = 0;
    if (one.context.compare_exchange_strong(found, key)) {
      one.device.store(device, std::memory_order_relaxed);
      return true;
    }
    if (found == key) return false;
  }
  return false;
}

// Text that is cut when it is full.
struct Text {
  char bytes[1400];
  size_t used;

  void add(const char* format, ...) __attribute__((format(printf, 2, 3))) {
    va_list arguments;
    va_start(arguments, format);
    const int length = vsnprintf(bytes + used, sizeof bytes - used, format, arguments);
    va_end(arguments);
    if (length > 0) used += static_cast<size_t>(length);
    if (used >= sizeof bytes) used = sizeof bytes - 1;
  }
};

constexpr uint32_t kMostNamed = 6;

void report_solutions(CUdevice device) {
  Text text = {};
  uint32_t found = 0;
  for (uint32_t series = 1; series < series_count(); ++series) {
    const int32_t device_of_series = device_of(series);
    const bool may_be_elsewhere =
        device >= 0 && device_of_series >= 0 && device != device_of_series;
    if (may_be_elsewhere || hits_of(series) == 0 || ++found > kMostNamed) continue;
    text.add("%s%s (solution %s of %s)", found == 1 ? "" : ", ", names_of_series(series).definition,
             solution_of_series(series), folder_of_series(series));
  }
  if (found == 0) {
    log_message(LogLevel::error, "no replacement has run there, so none is at fault");
    return;
  }
  if (found > kMostNamed) text.add(" and %u definitions more", found - kMostNamed);
  log_message(LogLevel::error, "replacements that have run there: %s", text.bytes);
  log_message(
      LogLevel::error,
      "the faulty kernel may be one of them or one of the program's own: compute-sanitizer or "
      "CUDA_LAUNCH_BLOCKING=1 finds it; FIBSHIM_MODE=observe runs the program without "
      "replacements");
}

template <class Is>
void forget(Is is) {
  for (LostContext& one : g_lost) {
    const uintptr_t context = one.context.load(std::memory_order_relaxed);
    if (context != 0 && is(one, context)) one.context.store(0, std::memory_order_relaxed);
  }
}

}  // namespace

void report_if_lost(const char* call, CUresult result) {
  const StickyError* const error = find_sticky_error(result);
  if (error == nullptr || !has_generation()) return;
  const auto get_current = FIBSHIM_REAL(cuCtxGetCurrent);
  const auto get_device = FIBSHIM_REAL(cuCtxGetDevice);
  CUcontext context = nullptr;
  CUdevice device = -1;
  if (get_current != nullptr) (void)get_current(&context);
  // A lost context may refuse to report its device.
  if (get_device == nullptr || get_device(&device) != CUDA_SUCCESS) device = -1;
  if (!is_first_report(context, device)) return;
  char where[32] = "";
  if (device >= 0) snprintf(where, sizeof where, " on device %d", device);
  log_message(LogLevel::error,
              "%s returns %s: the CUDA context %p%s is lost, every later call in it returns the "
              "same; %s",
              call, ErrorText(error->code).text, static_cast<void*>(context), where, error->cause);
  if (error->cause != kHardwareFault) report_solutions(device);
}

void forget_lost_context(CUcontext context) {
  const auto key = reinterpret_cast<uintptr_t>(context);
  forget([&](const LostContext&, uintptr_t at) { return at == key || at == kUnknownContext; });
}

void forget_lost_primary_context(CUdevice device) {
  forget([&](const LostContext& one, uintptr_t) {
    const CUdevice of = one.device.load(std::memory_order_relaxed);
    return of == device || of == -1;
  });
}

}  // namespace fibshim
