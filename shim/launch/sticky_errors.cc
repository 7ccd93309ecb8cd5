#include "shim/launch/sticky_errors.h"

#include <atomic>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "shim/counters/counters.h"
#include "shim/driver/driver.h"
#include "shim/base/log.h"
#include "shim/life/runtime.h"
#include "shim/launch/served_solutions.h"
#include "shim/base/settings_in_force.h"

namespace fibshim {
namespace {

// --- counts of hits, by series

uint64_t hits_of(uint32_t series) {
  uint64_t hits = 0;
  for (uint32_t i = 0; const uint64_t* shard = shard_at(i); ++i) {
    hits += __atomic_load_n(shard + counter_of(series, Outcome::hit), __ATOMIC_RELAXED);
  }
  return hits;
}

// What they were when a context was last found clean; and of the synchronisation under way that may tell
// again. One thread at a time has g_pending: whoever took g_is_waiting from false to true.
uint64_t g_clean[kSeriesCapacity];
std::atomic<CUcontext> g_clean_context{nullptr};
uint64_t g_pending[kSeriesCapacity];
uint32_t g_pending_count;
std::atomic<bool> g_is_waiting{false};
std::atomic<uint64_t> g_waits_since{kSeriesCapacity};  // the first one tells

std::atomic<uint64_t> g_in_graph[kSeriesCapacity / 64];  // bit per series

bool is_in_graph(uint32_t series) {
  return (g_in_graph[series / 64].load(std::memory_order_relaxed) >> series % 64 & 1) != 0;
}

uint32_t shard_count() {
  uint32_t count = 0;
  while (shard_at(count) != nullptr) ++count;
  return count;
}

// True when the caller has g_pending, filled.
bool begin_counting() {
  const uint64_t reads = uint64_t{series_count()} * shard_count();
  const uint64_t waits = g_waits_since.fetch_add(1, std::memory_order_relaxed) + 1;
  if (reads == 0 || waits * kReadsPerSynchronise < reads) return false;
  if (g_is_waiting.exchange(true, std::memory_order_acquire)) return false;
  g_waits_since.store(0, std::memory_order_relaxed);
  g_pending_count = series_count();
  for (uint32_t series = 1; series < g_pending_count; ++series) g_pending[series] = hits_of(series);
  return true;
}

void keep_counts(CUcontext context) {
  // Readers look at it before and after: nobody takes one context's counts for another's.
  g_clean_context.store(nullptr, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);
  for (uint32_t series = 1; series < g_pending_count; ++series) {
    __atomic_store_n(&g_clean[series], g_pending[series], __ATOMIC_RELAXED);
  }
  g_clean_context.store(context, std::memory_order_release);
}

// --- the contexts that were reported

struct Poisoned {
  std::atomic<uintptr_t> context;  // 0: free
  std::atomic<CUdevice> device;    // -1: not known
};
Poisoned g_poisoned[64];
constexpr uintptr_t kUnknownContext = 1;

// True for the first who asks. With more contexts than there is room for, the rest are not told.
bool is_first_report(CUcontext context, CUdevice device) {
  const uintptr_t key = context == nullptr ? kUnknownContext : reinterpret_cast<uintptr_t>(context);
  for (Poisoned& one : g_poisoned) {
    uintptr_t found = 0;
    if (one.context.compare_exchange_strong(found, key)) {
      one.device.store(device, std::memory_order_relaxed);
      return true;
    }
    if (found == key) return false;
  }
  return false;
}

// --- the report

// Text that is cut where it is full.
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

void add_series(Text* text, uint32_t series) {
  const char* pattern = nullptr;
  const char* definition = nullptr;
  names_of_series(series, &pattern, &definition);
  text->add("%s%s (solution %s of %s)", text->used == 0 ? "" : ", ", definition,
            solution_of_series(series), folder_of_series(series));
}

constexpr uint32_t kMostNamed = 6;

// False, after saying so: no replacement has ever run.
bool has_redirected() {
  for (uint32_t series = 1; series < series_count(); ++series) {
    if (hits_of(series) != 0) return true;
  }
  log_message(LogLevel::error,
              "known: this process has redirected no launch, so no replacement is at fault");
  return false;
}

// True when the context is the one of g_clean, and was it all the while.
bool read_clean_counts(CUcontext context, uint64_t* out) {
  if (context == nullptr || g_clean_context.load(std::memory_order_acquire) != context) {
    return false;
  }
  for (uint32_t i = 0; i < kSeriesCapacity; ++i) {
    out[i] = __atomic_load_n(&g_clean[i], __ATOMIC_RELAXED);
  }
  std::atomic_thread_fence(std::memory_order_acquire);
  return g_clean_context.load(std::memory_order_relaxed) == context;
}

// What was redirected since the context was clean, by the counters alone.
void report_counts(CUcontext context) {
  // Too large for a stack. Who finds it in use goes without: a lock could be held by a parent's thread.
  static uint64_t clean_counts[kSeriesCapacity];
  static std::atomic<bool> is_in_use{false};
  const bool is_ours = !is_in_use.exchange(true, std::memory_order_acquire);
  const bool was_clean = is_ours && read_clean_counts(context, clean_counts);
  Text since = {};
  Text graphs = {};
  uint32_t more = 0;
  uint32_t named = 0;
  uint64_t total = 0;
  uint64_t new_hits = 0;
  for (uint32_t series = 1; series < series_count(); ++series) {
    const uint64_t hits = hits_of(series);
    const uint64_t clean = was_clean ? clean_counts[series] : 0;
    total += hits;
    if (is_in_graph(series) && graphs.used < sizeof graphs.bytes / 2) add_series(&graphs, series);
    if (hits <= clean) continue;
    new_hits += hits - clean;
    if (++named > kMostNamed) {
      ++more;
      continue;
    }
    add_series(&since, series);
    since.add(" x%llu", static_cast<unsigned long long>(hits - clean));
  }
  if (is_ours) is_in_use.store(false, std::memory_order_release);
  if (more != 0) since.add(" and %u definitions more", more);
  const char* const when = was_clean ? "since the last clean cuCtxSynchronize" : "since the start";
  if (new_hits == 0 && graphs.used == 0) {
    log_message(
        LogLevel::error,
        "known: no launch was redirected %s (%llu before), so no replacement ran into this but one "
        "that was being launched just then; wrong data of an earlier one could have led to it",
        when, static_cast<unsigned long long>(total));
    return;
  }
  if (new_hits != 0) log_message(LogLevel::error, "known: redirected %s: %s", when, since.bytes);
  if (graphs.used != 0) {
    log_message(LogLevel::error, "known: in graphs, whose replays are not counted: %s",
                graphs.bytes);
  }
  log_message(
      LogLevel::error,
      "not known: whether one of these is at fault, or a kernel of the program's own. "
      "FIBSHIM_TRACE_LAST=on tells the last launches of each stream; FIBSHIM_MODE=observe runs "
      "the program without any replacement");
}

// What was redirected and has not been found clean, exactly.
void report_traced(CUcontext context, const StreamId* stream) {
  Text here = {};
  Text elsewhere = {};
  Text graphs = {};
  TracedStream traced;
  for (uint32_t at = 0; next_traced(context, &at, &traced);) {
    const bool is_here = stream != nullptr && traced.id == *stream;
    for (uint32_t i = 0; i < traced.count; ++i) {
      if (!is_here && i == 2) break;
      add_series(is_here ? &here : &elsewhere, traced.launches[i].series);
    }
  }
  for (uint32_t series = 1; series < series_count(); ++series) {
    if (is_in_graph(series)) add_series(&graphs, series);
  }
  if (here.used != 0) {
    log_message(LogLevel::error, "known: redirected last on this stream, the newest first: %s",
                here.bytes);
  }
  if (elsewhere.used != 0) {
    log_message(LogLevel::error,
                "known: redirected last on %s of the context, the newest first: %s",
                here.used != 0 ? "other streams" : "the streams", elsewhere.bytes);
  }
  if (graphs.used != 0) {
    log_message(LogLevel::error, "known: in graphs, whose replays are not traced: %s",
                graphs.bytes);
  }
  if (here.used == 0 && elsewhere.used == 0 && graphs.used == 0) {
    log_message(LogLevel::error,
                "known: no redirected launch was under way in the context, so no replacement ran "
                "into this; wrong data of an earlier one is all that could have led to it");
    return;
  }
  log_message(LogLevel::error,
              "not known: whether one of these is at fault, or a kernel of the program's own. "
              "FIBSHIM_MODE=observe runs the program without any replacement");
}

void report(const StickyError& error, const char* call, const StreamId* stream) {
  const auto get_current = FIBSHIM_REAL(cuCtxGetCurrent);
  const auto get_device = FIBSHIM_REAL(cuCtxGetDevice);
  CUcontext context = nullptr;
  CUdevice device = -1;
  if (get_current != nullptr) (void)get_current(&context);
  // A poisoned context may refuse to tell.
  if (get_device == nullptr || get_device(&device) != CUDA_SUCCESS) device = -1;
  if (stream != nullptr && stream->context != 0) {
    if (stream->context != reinterpret_cast<uintptr_t>(context)) device = -1;
    context = reinterpret_cast<CUcontext>(stream->context);
  }
  if (!is_first_report(context, device)) return;
  char where[32] = "";
  if (device >= 0) snprintf(where, sizeof where, " on device %d", device);
  log_message(
      LogLevel::error,
      "%s returns %d (%s): the CUDA context %p%s is lost, every later call in it returns the "
      "same; %s",
      call, static_cast<int>(error.code), error.name, static_cast<void*>(context), where,
      error.cause);
  if (error.cause == kHardwareFault || !has_redirected()) return;
  if (traces_last()) {
    report_traced(context, stream);
  } else {
    report_counts(context);
  }
}

template <class Is>
void forget(Is is) {
  for (Poisoned& one : g_poisoned) {
    const uintptr_t context = one.context.load(std::memory_order_relaxed);
    if (context != 0 && is(one, context)) one.context.store(0, std::memory_order_relaxed);
  }
}

}  // namespace

void note_error(const char* call, CUresult result, const StreamId* stream) {
  const StickyError* const error = find_sticky_error(result);
  if (error == nullptr || !has_started()) return;
  report(*error, call, stream);
}

void note_graph_node(uint32_t series) {
  g_in_graph[series / 64].fetch_or(uint64_t{1} << series % 64, std::memory_order_relaxed);
}

ContextWait::ContextWait(CUcontext context) : context_(context), traced_(0), has_counts_(false) {
  if (!has_started()) return;
  const auto get_current = FIBSHIM_REAL(cuCtxGetCurrent);
  if (context_ == nullptr && get_current != nullptr) (void)get_current(&context_);
  if (traces_last()) {
    traced_ = trace_position();
  } else {
    has_counts_ = begin_counting();
  }
}

CUresult ContextWait::end(const char* call, CUresult result) {
  if (result != CUDA_SUCCESS) {
    const StreamId none = {0, reinterpret_cast<uintptr_t>(context_), 0, true};
    note_error(call, result, &none);
    return result;
  }
  if (context_ == nullptr) return result;
  if (has_counts_) keep_counts(context_);
  if (traced_ != 0) trace_clean_context(context_, traced_);
  return result;
}

ContextWait::~ContextWait() {
  if (has_counts_) g_is_waiting.store(false, std::memory_order_release);
}

void forget_errors_of_context(CUcontext context) {
  const auto key = reinterpret_cast<uintptr_t>(context);
  forget([&](const Poisoned&, uintptr_t at) { return at == key || at == kUnknownContext; });
  CUcontext clean = context;
  (void)g_clean_context.compare_exchange_strong(clean, nullptr);
  if (traces_last()) trace_forget_context(context);
}

void forget_errors_of_primary_context(CUdevice device) {
  forget([&](const Poisoned& one, uintptr_t) {
    const CUdevice of = one.device.load(std::memory_order_relaxed);
    return of == device || of == -1;
  });
}

}  // namespace fibshim
