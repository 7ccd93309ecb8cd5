#include "shim/launch/served_solutions.h"

#include <atomic>
#include <stdio.h>

#include "shim/abi/snapshot.h"
#include "shim/counters/counters.h"
#include "shim/registry/decisions.h"
#include "shim/base/log.h"
#include "shim/base/settings_in_force.h"
#include "shim/driver/sticky_errors.h"

namespace fibshim {
namespace {

constexpr uint32_t kBeingWritten = UINT32_MAX;

// Of series of one solution, the first has the failures.
struct Served {
  std::atomic<uint32_t> first;  // series; 0: no solution is known
  std::atomic<uint32_t> failures;
  std::atomic<bool> is_quarantined;
  char solution[118];  // written before `first`
};
constinit Served g_served[kSeriesCapacity] = {};
std::atomic<uint32_t> g_quarantines{0};
std::atomic<uint32_t> g_end{0};  // past the last series that has a solution

// 0: not known.
uint32_t first_of(uint32_t series) {
  const uint32_t first = g_served[series].first.load(std::memory_order_acquire);
  return first == kBeingWritten ? 0 : first;
}

bool tells_of_the_solution(CUresult result) {
  switch (result) {
    case CUDA_ERROR_NOT_INITIALIZED:
    case CUDA_ERROR_DEINITIALIZED:
    case CUDA_ERROR_INVALID_CONTEXT:
    case CUDA_ERROR_CONTEXT_IS_DESTROYED:
    case CUDA_ERROR_INVALID_HANDLE:  // the stream: the kernel is ours
    case CUDA_ERROR_NOT_READY:
    case CUDA_ERROR_SYSTEM_NOT_READY: return false;
    default: break;
  }
  const bool is_of_capture = result >= CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED &&
                             result <= CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
  return !is_of_capture && find_sticky_error(result) == nullptr;
}

}  // namespace

void record_solution(uint32_t series, const char* solution) {
  const uint32_t first = first_series_like(series);
  if (first == 0) return;
  Served& served = g_served[series];
  uint32_t unknown = 0;
  if (!served.first.compare_exchange_strong(unknown, kBeingWritten)) return;
  snprintf(served.solution, sizeof served.solution, "%s", solution);
  served.first.store(first, std::memory_order_release);
  uint32_t end = g_end.load(std::memory_order_relaxed);
  while (end <= series && !g_end.compare_exchange_weak(end, series + 1)) {
  }
}

const char* solution_of_series(uint32_t series) {
  return first_of(series) == 0 ? "" : g_served[series].solution;
}

void record_failure(uint32_t series, CUresult result) {
  const uint32_t limit = quarantine_limit();
  const uint32_t first = first_of(series);
  if (limit == 0 || first == 0 || !tells_of_the_solution(result)) return;
  Served& served = g_served[first];
  if (served.failures.fetch_add(1, std::memory_order_relaxed) + 1 != limit) return;
  if (!quarantine_solution(series)) return;
  const char* pattern = nullptr;
  const char* definition = nullptr;
  names_of_series(series, &pattern, &definition);
  log_message(
      LogLevel::warn,
      "%s: solution %s is left alone after %u failures (FIBSHIM_QUARANTINE=%u): the original "
      "runs until the folder is swapped or the process starts again",
      definition, solution_of_series(series), limit, limit);
}

bool quarantine_solution(uint32_t series) {
  const uint32_t first = first_of(series);
  if (first == 0 || g_served[first].is_quarantined.exchange(true)) return false;
  quarantine_decisions(is_series_quarantined);
  g_quarantines.fetch_add(1, std::memory_order_release);
  return true;
}

bool is_series_quarantined(uint32_t series) {
  const uint32_t first = first_of(series);
  return first != 0 && g_served[first].is_quarantined.load(std::memory_order_acquire);
}

uint32_t quarantine_count() { return g_quarantines.load(std::memory_order_acquire); }

void end_quarantines() {
  const uint32_t end = g_end.load(std::memory_order_acquire);
  for (uint32_t series = 0; series < end; ++series) {
    g_served[series].failures.store(0, std::memory_order_relaxed);
    g_served[series].is_quarantined.store(false, std::memory_order_relaxed);
  }
}

}  // namespace fibshim
