#include "shim/launch/served_solutions.h"

#include <atomic>
#include <stdio.h>
#include <string.h>

#include "shim/abi/control_format.h"
#include "shim/abi/hash.h"
#include "shim/abi/snapshot.h"
#include "shim/counters/counters.h"
#include "shim/registry/decisions.h"
#include "shim/base/log.h"
#include "shim/base/settings_in_force.h"
#include "shim/driver/sticky_errors.h"

namespace fibshim {
namespace {

constexpr uint32_t kBeingWritten = UINT32_MAX;

// A series and its solution. Of several series of one solution, the first counts the failures.
struct Served {
  std::atomic<uint32_t> first;  // the first series of the solution; 0: unknown
  std::atomic<uint32_t> failures;
  std::atomic<bool> is_quarantined;
  std::atomic<bool> is_to_be_told;
  char solution[110];  // written before `first`, like `identity`
  uint64_t identity;
};
constinit Served g_served[kSeriesCapacity] = {};
std::atomic<uint32_t> g_end{0};  // past the last series that has a solution
std::atomic<uint32_t> g_quarantine_count{0};
std::atomic<bool> g_has_found{false};  // some Served::is_to_be_told is set
// Solutions that ranks of the job have found wrong, in the order of arrival.
std::atomic<uint64_t> g_job_quarantines[kMaxJobQuarantines];

// Returns 0 if unknown.
uint32_t first_of(uint32_t series) {
  const uint32_t first = g_served[series].first.load(std::memory_order_acquire);
  return first == kBeingWritten ? 0 : first;
}

uint64_t identity_of(const Snapshot& snapshot, const Solution& solution) {
  uint64_t hash = hash_bytes(kEmptyHash, snapshot.digest, sizeof snapshot.digest);
  for (const Offset at : {solution.definition, solution.name}) {
    hash = hash_bytes(hash, snapshot.text(at), strlen(snapshot.text(at)) + 1);
  }
  return hash | 1;
}

bool is_of_job(uint64_t identity) {
  for (const std::atomic<uint64_t>& known : g_job_quarantines) {
    const uint64_t one = known.load();
    if (one == 0 || one == identity) return one != 0;
  }
  return false;
}

// Returns false if it was known already, or there is no room.
bool add_of_job(uint64_t identity) {
  for (std::atomic<uint64_t>& place : g_job_quarantines) {
    uint64_t known = 0;
    if (place.compare_exchange_strong(known, identity)) return true;
    if (known == identity) return false;
  }
  return false;
}

void quarantine_for_job(uint32_t series) {
  if (!quarantine_solution(series, false)) return;
  log_message(LogLevel::warn,
              "%s: solution %s is left alone: a process of job %s has found it wrong; the original "
              "runs until the folder is swapped or the process starts again",
              names_of_series(series).definition, solution_of_series(series), job_label());
}

bool is_fault_of_solution(CUresult result) {
  switch (result) {
    case CUDA_ERROR_NOT_INITIALIZED:
    case CUDA_ERROR_DEINITIALIZED:
    case CUDA_ERROR_INVALID_CONTEXT:
    case CUDA_ERROR_CONTEXT_IS_DESTROYED:
    case CUDA_ERROR_INVALID_HANDLE:  // the host's stream, as the kernel handle is ours
    case CUDA_ERROR_NOT_READY:
    case CUDA_ERROR_SYSTEM_NOT_READY: return false;
    default: break;
  }
  const bool is_of_capture = result >= CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED &&
                             result <= CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
  return !is_of_capture && find_sticky_error(result) == nullptr;
}

}  // namespace

void record_solution(uint32_t series, const Snapshot& snapshot, const Solution& solution) {
  const uint32_t first = first_series_like(series);
  if (first == 0) return;
  Served& served = g_served[series];
  uint32_t unknown = 0;
  if (!served.first.compare_exchange_strong(unknown, kBeingWritten)) return;
  snprintf(served.solution, sizeof served.solution, "%s", snapshot.text(solution.name));
  served.identity = identity_of(snapshot, solution);
  served.first.store(first);
  uint32_t end = g_end.load(std::memory_order_relaxed);
  while (end <= series && !g_end.compare_exchange_weak(end, series + 1)) {
  }
  // quarantine_identity() finds this series for identities that are added from now on.
  if (is_of_job(served.identity)) quarantine_for_job(series);
}

const char* solution_of_series(uint32_t series) {
  return first_of(series) == 0 ? "" : g_served[series].solution;
}

void record_failure(uint32_t series, CUresult result) {
  const uint32_t limit = quarantine_limit();
  const uint32_t first = first_of(series);
  if (limit == 0 || first == 0 || !is_fault_of_solution(result)) return;
  Served& served = g_served[first];
  if (served.failures.fetch_add(1, std::memory_order_relaxed) + 1 != limit) return;
  if (!quarantine_solution(series, false)) return;
  log_message(
      LogLevel::warn,
      "%s: solution %s is left alone after %u failures (FIBSHIM_QUARANTINE=%u): the original "
      "runs until the folder is swapped or the process starts again",
      names_of_series(series).definition, solution_of_series(series), limit, limit);
}

bool quarantine_solution(uint32_t series, bool tells_job) {
  const uint32_t first = first_of(series);
  if (first == 0 || g_served[first].is_quarantined.exchange(true)) return false;
  quarantine_decisions(is_series_quarantined);
  g_quarantine_count.fetch_add(1);
  if (tells_job) {
    g_served[series].is_to_be_told.store(true);
    g_has_found.store(true);
  }
  return true;
}

uint64_t next_found_quarantine() {
  if (!g_has_found.exchange(false)) return 0;
  const uint32_t end = g_end.load(std::memory_order_acquire);
  for (uint32_t series = 0; series < end; ++series) {
    if (!g_served[series].is_to_be_told.exchange(false)) continue;
    g_has_found.store(true);
    return g_served[series].identity;
  }
  return 0;
}

void quarantine_identity(uint64_t identity) {
  if (!add_of_job(identity)) return;
  const uint32_t end = g_end.load();
  for (uint32_t series = 0; series < end; ++series) {
    if (first_of(series) != 0 && g_served[series].identity == identity) quarantine_for_job(series);
  }
}

uint32_t quarantine_count() { return g_quarantine_count.load(std::memory_order_relaxed); }

bool is_series_quarantined(uint32_t series) {
  const uint32_t first = first_of(series);
  return first != 0 && g_served[first].is_quarantined.load(std::memory_order_acquire);
}

void end_quarantines() {
  for (std::atomic<uint64_t>& identity : g_job_quarantines) identity.store(0);
  const uint32_t end = g_end.load(std::memory_order_acquire);
  for (uint32_t series = 0; series < end; ++series) {
    g_served[series].failures.store(0, std::memory_order_relaxed);
    g_served[series].is_quarantined.store(false, std::memory_order_relaxed);
    g_served[series].is_to_be_told.store(false, std::memory_order_relaxed);
  }
}

}  // namespace fibshim
