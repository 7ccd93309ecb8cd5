#include "shim/launch/launch_slow.h"

#include "shim/driver/driver.h"
#include "shim/registry/images.h"
#include "shim/base/log.h"
#include "shim/base/read_section.h"
#include "shim/launch/recording.h"
#include "shim/registry/in_force.h"
#include "shim/launch/served_solutions.h"
#include "shim/base/settings_in_force.h"
#include "shim/launch/lost_context.h"

namespace fibshim {

namespace {

void report_failed_launch(uint32_t series, CUresult result, OnError on_error) {
  static std::atomic<uint64_t> was_reported[kSeriesCapacity / 64];
  const uint64_t bit = uint64_t{1} << series % 64;
  if ((was_reported[series / 64].fetch_or(bit, std::memory_order_relaxed) & bit) != 0) return;
  const char* pattern = nullptr;
  const char* definition = nullptr;
  names_of_series(series, &pattern, &definition);
  log_message(LogLevel::error, "%s (pattern %s): the launch of its solution returns %d; %s",
              definition, pattern, static_cast<int>(result),
              on_error == OnError::fallback
                  ? "the original runs"
                  : "so does the call (FIBSHIM_ON_ERROR=fallback runs the original)");
}

}  // namespace

uintptr_t learn_handle(const void* handle) { return remember_stranger(handle); }

void count_unknown() {
  // Without a generation there are no counters: the shim is off.
  if (has_started()) count_untracked();
}

int64_t device_key_of_launch(const LaunchRequest& request) {
  // Real streams belong to a context, which need not be the current one.
  const auto stream_context = FIBSHIM_REAL(cuStreamGetCtx);
  const auto push = FIBSHIM_REAL(cuCtxPushCurrent_v2);
  const auto pop = FIBSHIM_REAL(cuCtxPopCurrent_v2);
  const bool is_default = request.stream == nullptr || request.stream == CU_STREAM_LEGACY ||
                          request.stream == CU_STREAM_PER_THREAD;
  const auto get_current = FIBSHIM_REAL(cuCtxGetCurrent);
  CUcontext context = nullptr;
  CUcontext current = nullptr;
  if (is_default || stream_context == nullptr || push == nullptr || pop == nullptr) {
    return current_device_key();
  }
  // The current device may be another one.
  if (stream_context(request.stream, &context) != CUDA_SUCCESS) return key_of_device(kNoDevice);
  const bool is_current =
      get_current != nullptr && get_current(&current) == CUDA_SUCCESS && current == context;
  if (is_current) return current_device_key();
  if (push(context) != CUDA_SUCCESS) return key_of_device(kNoDevice);
  const int64_t device = current_device_key();
  (void)pop(&context);
  return device;
}

void count_unresolved(const Candidate& candidate) {
  count(counter_of(unresolved_series(candidate), Outcome::fallback_where));
}

void count_kept(const void* handle) {
  const ReadSection section;
  uintptr_t slot = find_handle(handle);
  if (slot == 0 || (slot & kUnmatched) != 0) slot = learn_handle(handle);
  if (slot == 0) return count_unknown();
  if ((slot & kUntracked) != 0) return count_untracked();
  const Record& record = *record_of(slot);
  record_bare_launch(record);
  if (record.candidate_count == 0) return count_untracked();
  count(counter_of(unresolved_series(record.candidates[0]), Outcome::fallback_refused));
}

bool end_failed_launch(uint32_t series, CUresult result, OnError on_error) {
  count(counter_of(series, Outcome::error));
  if (find_sticky_error(result) != nullptr) {
    // Not this launch's: of a kernel that ran before.
    report_if_lost("a launch", result);
  } else {
    report_failed_launch(series, result, on_error);
  }
  note_failure(series, result);
  return on_error == OnError::fallback;
}

}  // namespace fibshim
