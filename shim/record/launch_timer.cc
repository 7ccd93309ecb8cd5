#include "shim/record/launch_timer.h"

#include <atomic>
#include <time.h>

namespace fibshim {

// Only the thread that has changed the state to `claimed` reads and writes the other members.
struct EventPair {
  enum State : uint32_t { idle, pending, claimed };
  std::atomic<uint32_t> state{idle};
  std::atomic<CUcontext> context{nullptr};  // of the events; null: no events
  uint32_t generation = 0;                  // value of g_generation when the events were made
  CUevent first = nullptr;
  CUevent second = nullptr;
  CUstream stream = nullptr;
  RecordedTimes* times = nullptr;
  uint64_t begun_ns = 0;   // when the first event was recorded
  uint64_t waited_ns = 0;  // how long the GPU then waited for the launch
};

namespace {

constexpr uint32_t kPairCount = 128;
constexpr uint32_t kLaunchesPerCollection = 16;
constexpr uint32_t kPairsPerCollection = 8;

constinit EventPair g_pairs[kPairCount];
std::atomic<uint32_t> g_pending_count;
std::atomic<uint32_t> g_launches;
std::atomic<uint32_t> g_next_pair;  // where the next collection begins
// Incremented when a context may end. Events of an earlier generation are not used again: their
// context may be gone, and a new context may have the same address.
std::atomic<uint32_t> g_generation;

// The driver's functions. A driver that lacks one is too old to report kernel parameters.
#define FIBSHIM_TIMER_FUNCTIONS(CALL)                    \
  CALL(cuEventCreate, PFN_cuEventCreate_v2000)           \
  CALL(cuEventRecord, PFN_cuEventRecord_v2000)           \
  CALL(cuEventQuery, PFN_cuEventQuery_v2000)             \
  CALL(cuEventElapsedTime, PFN_cuEventElapsedTime_v2000) \
  CALL(cuEventDestroy_v2, PFN_cuEventDestroy_v4000)      \
  CALL(cuCtxGetCurrent, PFN_cuCtxGetCurrent_v4000)       \
  CALL(cuThreadExchangeStreamCaptureMode, PFN_cuThreadExchangeStreamCaptureMode_v10010)

#define CALL(name, type) std::atomic<type> g_##name;
FIBSHIM_TIMER_FUNCTIONS(CALL)
#undef CALL
const RecorderHost* g_host;
std::atomic<bool> g_has_functions;

#define DRIVER(name) (g_##name.load(std::memory_order_relaxed))

// Several threads may run this at once; all of them store the same values.
bool find_functions() {
  if (g_has_functions.load(std::memory_order_acquire)) return true;
  bool has_all = true;
#define CALL(name, type)                                                      \
  g_##name.store(reinterpret_cast<type>(g_host->find_driver_function(#name)), \
                 std::memory_order_relaxed);                                  \
  has_all = has_all && DRIVER(name) != nullptr;
  FIBSHIM_TIMER_FUNCTIONS(CALL)
#undef CALL
  g_has_functions.store(has_all, std::memory_order_release);
  return has_all;
}

// During its life this thread may make and query events even while a stream captures.
class RelaxedCapture {
 public:
  RelaxedCapture()
      : is_changed_(DRIVER(cuThreadExchangeStreamCaptureMode)(&mode_) == CUDA_SUCCESS) {}
  ~RelaxedCapture() {
    if (is_changed_) (void)DRIVER(cuThreadExchangeStreamCaptureMode)(&mode_);
  }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;
  bool is_changed_;
};

bool claim(EventPair& pair, uint32_t from) {
  return pair.state.load(std::memory_order_relaxed) == from &&
         pair.state.compare_exchange_strong(from, EventPair::claimed, std::memory_order_acquire);
}

void release(EventPair& pair, uint32_t to) { pair.state.store(to, std::memory_order_release); }

void forget_events(EventPair& pair) {
  pair.first = nullptr;
  pair.second = nullptr;
  pair.context.store(nullptr, std::memory_order_relaxed);
}

bool has_living_events(const EventPair& pair) {
  return pair.generation == g_generation.load(std::memory_order_acquire);
}

void destroy_events(EventPair& pair) {
  const auto destroy = DRIVER(cuEventDestroy_v2);
  if (pair.first != nullptr) (void)destroy(pair.first);
  if (pair.second != nullptr) (void)destroy(pair.second);
  forget_events(pair);
}

bool make_events(EventPair& pair, CUcontext context) {
  if (has_living_events(pair)) {
    if (pair.context.load(std::memory_order_relaxed) == context) return true;
    destroy_events(pair);
  }
  forget_events(pair);
  pair.generation = g_generation.load(std::memory_order_acquire);
  const auto create = DRIVER(cuEventCreate);
  if (create(&pair.first, CU_EVENT_DEFAULT) != CUDA_SUCCESS) pair.first = nullptr;
  if (create(&pair.second, CU_EVENT_DEFAULT) != CUDA_SUCCESS) pair.second = nullptr;
  if (pair.first != nullptr && pair.second != nullptr) {
    pair.context.store(context, std::memory_order_relaxed);
    return true;
  }
  destroy_events(pair);
  return false;
}

// Claims an idle pair with events of this context, if possible one that has them. Null: none.
EventPair* claim_pair(CUcontext context) {
  for (const bool must_fit : {true, false}) {
    for (EventPair& pair : g_pairs) {
      if (must_fit && pair.context.load(std::memory_order_relaxed) != context) continue;
      if (!claim(pair, EventPair::idle)) continue;
      if (make_events(pair, context)) return &pair;
      release(pair, EventPair::idle);
      return nullptr;
    }
  }
  return nullptr;
}

// Returns the current context if the stream belongs to it, else null. Events are made in the
// current context.
CUcontext context_for(CUstream stream) {
  CUcontext current = nullptr;
  if (DRIVER(cuCtxGetCurrent)(&current) != CUDA_SUCCESS) return nullptr;
  return g_host->context_of_stream(stream) == current ? current : nullptr;
}

uint64_t now_ns() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1000000000 + static_cast<uint64_t>(now.tv_nsec);
}

// Stores `ns` if it beats the stored value.
template <class Beats>
void keep_best(uint64_t* best, uint64_t ns, const Beats& beats) {
  uint64_t seen = __atomic_load_n(best, __ATOMIC_RELAXED);
  while (beats(seen) &&
         !__atomic_compare_exchange_n(best, &seen, ns, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
}

void add_time(RecordedTimes* times, float milliseconds, uint64_t waited_ns) {
  if (!(milliseconds >= 0)) return;
  const auto measured_ns = static_cast<uint64_t>(static_cast<double>(milliseconds) * 1e6);
  const uint64_t ns = measured_ns > waited_ns ? measured_ns - waited_ns : 1;
  __atomic_fetch_add(&times->sum_ns, ns, __ATOMIC_RELAXED);
  keep_best(&times->shortest_ns, ns, [ns](uint64_t seen) { return seen == 0 || ns < seen; });
  keep_best(&times->longest_ns, ns, [ns](uint64_t seen) { return ns > seen; });
  __atomic_fetch_add(&times->count, 1, __ATOMIC_RELEASE);
}

void collect_time(EventPair& pair) {
  if (!claim(pair, EventPair::pending)) return;
  if (!has_living_events(pair)) {
    forget_events(pair);
  } else {
    const CUresult answer = DRIVER(cuEventQuery)(pair.second);
    if (answer == CUDA_ERROR_NOT_READY) return release(pair, EventPair::pending);
    float milliseconds = 0;
    if (answer == CUDA_SUCCESS &&
        DRIVER(cuEventElapsedTime)(&milliseconds, pair.first, pair.second) == CUDA_SUCCESS) {
      add_time(pair.times, milliseconds, pair.waited_ns);
    } else {
      destroy_events(pair);
    }
  }
  g_pending_count.fetch_sub(1, std::memory_order_relaxed);
  release(pair, EventPair::idle);
}

}  // namespace

void start_timer(const RecorderHost& host) { g_host = &host; }

EventPair* begin_timing(CUstream stream) {
  if (!find_functions()) return nullptr;
  const RelaxedCapture relaxed;
  const CUcontext context = context_for(stream);
  EventPair* const pair = context == nullptr ? nullptr : claim_pair(context);
  if (pair == nullptr) return nullptr;
  if (DRIVER(cuEventRecord)(pair->first, stream) != CUDA_SUCCESS) {
    release(*pair, EventPair::idle);
    return nullptr;
  }
  pair->begun_ns = now_ns();
  pair->stream = stream;
  return pair;
}

void end_timing(EventPair* pair, RecordedTimes* times) {
  if (pair == nullptr) return;
  const uint64_t launched_ns = now_ns();
  const RelaxedCapture relaxed;
  if (!has_living_events(*pair)) return release(*pair, EventPair::idle);
  pair->times = times;
  // An idle GPU passes the first event at once and waits for the launch, which is not part of the
  // kernel's time.
  const bool was_idle = DRIVER(cuEventQuery)(pair->first) == CUDA_SUCCESS;
  pair->waited_ns = was_idle ? launched_ns - pair->begun_ns : 0;
  if (!has_living_events(*pair) ||
      DRIVER(cuEventRecord)(pair->second, pair->stream) != CUDA_SUCCESS) {
    return release(*pair, EventPair::idle);
  }
  g_pending_count.fetch_add(1, std::memory_order_relaxed);
  release(*pair, EventPair::pending);
}

void cancel_timing(EventPair* pair) {
  if (pair != nullptr) release(*pair, EventPair::idle);
}

void collect_times() {
  if (g_pending_count.load(std::memory_order_relaxed) == 0 ||
      g_launches.fetch_add(1, std::memory_order_relaxed) % kLaunchesPerCollection != 0) {
    return;
  }
  const RelaxedCapture relaxed;
  uint32_t asked = 0;
  for (uint32_t i = 0; i < kPairCount && asked < kPairsPerCollection; ++i) {
    EventPair& pair = g_pairs[g_next_pair.fetch_add(1, std::memory_order_relaxed) % kPairCount];
    if (pair.state.load(std::memory_order_relaxed) != EventPair::pending) continue;
    ++asked;
    collect_time(pair);
  }
}

void drop_events() {
  for (EventPair& pair : g_pairs) {
    collect_time(pair);
    if (claim(pair, EventPair::pending)) {
      g_pending_count.fetch_sub(1, std::memory_order_relaxed);
    } else if (!claim(pair, EventPair::idle)) {
      continue;
    }
    if (has_living_events(pair)) destroy_events(pair);
    forget_events(pair);
    release(pair, EventPair::idle);
  }
  g_generation.fetch_add(1, std::memory_order_acq_rel);
}

void forget_events_in_child() {
  for (EventPair& pair : g_pairs) {
    forget_events(pair);
    pair.state.store(EventPair::idle, std::memory_order_relaxed);
  }
  g_pending_count.store(0, std::memory_order_relaxed);
}

}  // namespace fibshim
