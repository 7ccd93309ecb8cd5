#include "shim/record/launch_timer.h"

#include <atomic>
#include <time.h>

#include "shim/graphs/captures.h"
#include "shim/registry/decisions.h"
#include "shim/driver/driver.h"
#include "shim/graphs/graphs.h"

namespace fibshim {

// Who has brought the state away from `idle` or `pending` owns the rest.
struct EventPair {
  enum State : uint32_t { idle, pending, taken };
  std::atomic<uint32_t> state{idle};
  std::atomic<CUcontext> context{nullptr};  // of the events; null: there are none
  uint32_t generation = 0;                  // of the contexts, when the events were made
  CUevent first = nullptr;
  CUevent second = nullptr;
  RecordedTimes* times = nullptr;
  uint64_t begun_ns = 0;   // when the first event was in the stream
  uint64_t waited_ns = 0;  // what the GPU waited for the host after that
};

namespace {

constexpr uint32_t kPairCount = 128;
constexpr uint32_t kLaunchesBetweenLooks = 16;
constexpr uint32_t kPairsPerLook = 8;

constinit EventPair g_pairs[kPairCount];
std::atomic<uint32_t> g_pending_count;
std::atomic<uint32_t> g_launches;
std::atomic<uint32_t> g_next_look;  // index of the pair to look at next
// Rises when a context may end: events made before, of launches that were under way, are not touched
// again. A new context may have the old one's value.
std::atomic<uint32_t> g_generation;

bool take(EventPair& pair, uint32_t from) {
  return pair.state.load(std::memory_order_relaxed) == from &&
         pair.state.compare_exchange_strong(from, EventPair::taken, std::memory_order_acquire);
}

void give_back(EventPair& pair, uint32_t to) { pair.state.store(to, std::memory_order_release); }

void forget_events(EventPair& pair) {
  pair.first = nullptr;
  pair.second = nullptr;
  pair.context.store(nullptr, std::memory_order_relaxed);
}

bool has_living_events(const EventPair& pair) {
  return pair.generation == g_generation.load(std::memory_order_acquire);
}

void destroy_events(EventPair& pair) {
  const auto destroy = FIBSHIM_REAL(cuEventDestroy_v2);
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
  const auto create = FIBSHIM_REAL(cuEventCreate);
  if (create(&pair.first, CU_EVENT_DEFAULT) != CUDA_SUCCESS) pair.first = nullptr;
  if (create(&pair.second, CU_EVENT_DEFAULT) != CUDA_SUCCESS) pair.second = nullptr;
  if (pair.first != nullptr && pair.second != nullptr) {
    pair.context.store(context, std::memory_order_relaxed);
    return true;
  }
  destroy_events(pair);
  return false;
}

// An idle pair with events of this context, if possible one that has them already. Null: none.
EventPair* take_pair(CUcontext context) {
  for (const bool must_fit : {true, false}) {
    for (EventPair& pair : g_pairs) {
      if (must_fit && pair.context.load(std::memory_order_relaxed) != context) continue;
      if (!take(pair, EventPair::idle)) continue;
      if (make_events(pair, context)) return &pair;
      give_back(pair, EventPair::idle);
      return nullptr;
    }
  }
  return nullptr;
}

bool has_event_functions() {
  return FIBSHIM_REAL(cuEventCreate) != nullptr && FIBSHIM_REAL(cuEventRecord) != nullptr &&
         FIBSHIM_REAL(cuEventQuery) != nullptr && FIBSHIM_REAL(cuEventElapsedTime) != nullptr &&
         FIBSHIM_REAL(cuEventDestroy_v2) != nullptr && FIBSHIM_REAL(cuCtxGetCurrent) != nullptr;
}

// The context that events for this stream belong to: the current one, which must be the stream's own.
CUcontext context_for(CUstream stream) {
  CUcontext current = nullptr;
  if (FIBSHIM_REAL(cuCtxGetCurrent)(&current) != CUDA_SUCCESS) return nullptr;
  const bool is_default =
      stream == nullptr || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD;
  const auto context_of = FIBSHIM_REAL(cuStreamGetCtx);
  CUcontext own = nullptr;
  if (is_default || context_of == nullptr) return current;
  return context_of(stream, &own) == CUDA_SUCCESS && own == current ? current : nullptr;
}

uint64_t now_ns() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1000000000 + static_cast<uint64_t>(now.tv_nsec);
}

void add_time(RecordedTimes* times, float milliseconds, uint64_t waited_ns) {
  if (!(milliseconds >= 0)) return;
  const auto measured_ns = static_cast<uint64_t>(static_cast<double>(milliseconds) * 1e6);
  const uint64_t ns = measured_ns > waited_ns ? measured_ns - waited_ns : 1;
  __atomic_fetch_add(&times->sum_ns, ns, __ATOMIC_RELAXED);
  uint64_t seen = __atomic_load_n(&times->shortest_ns, __ATOMIC_RELAXED);
  while ((seen == 0 || ns < seen) &&
         !__atomic_compare_exchange_n(&times->shortest_ns, &seen, ns, true, __ATOMIC_RELAXED,
                                      __ATOMIC_RELAXED)) {
  }
  seen = __atomic_load_n(&times->longest_ns, __ATOMIC_RELAXED);
  while (ns > seen && !__atomic_compare_exchange_n(&times->longest_ns, &seen, ns, true,
                                                   __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
  __atomic_fetch_add(&times->count, 1, __ATOMIC_RELEASE);
}

// A pair whose second event the GPU may have reached.
void look_at(EventPair& pair) {
  if (!take(pair, EventPair::pending)) return;
  if (!has_living_events(pair)) {
    forget_events(pair);
    g_pending_count.fetch_sub(1, std::memory_order_relaxed);
    return give_back(pair, EventPair::idle);
  }
  const CUresult answer = FIBSHIM_REAL(cuEventQuery)(pair.second);
  if (answer == CUDA_ERROR_NOT_READY) return give_back(pair, EventPair::pending);
  float milliseconds = 0;
  if (answer == CUDA_SUCCESS &&
      FIBSHIM_REAL(cuEventElapsedTime)(&milliseconds, pair.first, pair.second) == CUDA_SUCCESS) {
    add_time(pair.times, milliseconds, pair.waited_ns);
  } else {
    destroy_events(pair);
  }
  g_pending_count.fetch_sub(1, std::memory_order_relaxed);
  give_back(pair, EventPair::idle);
}

}  // namespace

void LaunchTimer::begin(CUstream stream, bool is_per_thread_stream) {
  if (g_active_captures.load(std::memory_order_relaxed) != 0 || !has_event_functions()) return;
  if (is_per_thread_stream && stream == nullptr) stream = CU_STREAM_PER_THREAD;
  if (is_capturing(stream, false)) return;
  const RelaxedCapture relaxed;
  const CUcontext context = context_for(stream);
  if (context == nullptr) return;
  EventPair* const pair = take_pair(context);
  if (pair == nullptr) return;
  if (FIBSHIM_REAL(cuEventRecord)(pair->first, stream) != CUDA_SUCCESS) {
    return give_back(*pair, EventPair::idle);
  }
  pair->begun_ns = now_ns();
  pair_ = pair;
  stream_ = stream;
}

void LaunchTimer::end(RecordedTimes* times) {
  if (pair_ == nullptr) return;
  EventPair& pair = *pair_;
  pair_ = nullptr;
  const RelaxedCapture relaxed;
  pair.times = times;
  const uint64_t launched_ns = now_ns();
  if (has_living_events(pair)) {
    const bool was_idle = FIBSHIM_REAL(cuEventQuery)(pair.first) == CUDA_SUCCESS;
    pair.waited_ns = was_idle ? launched_ns - pair.begun_ns : 0;
  }
  if (!has_living_events(pair) ||
      FIBSHIM_REAL(cuEventRecord)(pair.second, stream_) != CUDA_SUCCESS) {
    return give_back(pair, EventPair::idle);
  }
  g_pending_count.fetch_add(1, std::memory_order_relaxed);
  give_back(pair, EventPair::pending);
}

void LaunchTimer::cancel() {
  if (pair_ != nullptr) give_back(*pair_, EventPair::idle);
  pair_ = nullptr;
}

void collect_times() {
  if (g_pending_count.load(std::memory_order_relaxed) == 0 ||
      g_launches.fetch_add(1, std::memory_order_relaxed) % kLaunchesBetweenLooks != 0 ||
      g_active_captures.load(std::memory_order_relaxed) != 0) {
    return;
  }
  const RelaxedCapture relaxed;
  uint32_t looked = 0;
  for (uint32_t i = 0; i < kPairCount && looked < kPairsPerLook; ++i) {
    EventPair& pair = g_pairs[g_next_look.fetch_add(1, std::memory_order_relaxed) % kPairCount];
    if (pair.state.load(std::memory_order_relaxed) != EventPair::pending) continue;
    ++looked;
    look_at(pair);
  }
}

void drop_events() {
  for (EventPair& pair : g_pairs) {
    look_at(pair);
    if (take(pair, EventPair::pending)) {
      g_pending_count.fetch_sub(1, std::memory_order_relaxed);
    } else if (!take(pair, EventPair::idle)) {
      continue;
    }
    if (has_living_events(pair)) destroy_events(pair);
    forget_events(pair);
    give_back(pair, EventPair::idle);
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
