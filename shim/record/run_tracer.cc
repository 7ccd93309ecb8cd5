#include "shim/record/run_tracer.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "shim/driver/cuda_names.h"
#include "shim/record/cupti_library.h"
#include "shim/record/recording_file.h"
#include "shim/record/run_records.h"

namespace fibshim {
namespace {

constexpr size_t kBufferBytes = 1024 * 1024;
constexpr size_t kMostBuffers = 64;
constexpr uint32_t kKernelsAtOnce = 1024;
constexpr int kTicksUntilTakenOver = 3;  // seconds without a record of launches that were made

enum class State : uint32_t {
  untried,
  tracing,
  taken_over,  // another client's callbacks have replaced ours
  off,
  forked,  // as `off`, but the child's file does not say why yet
};

struct Buffer {
  uint8_t* memory;
  bool is_at_cupti;
};

// CUPTI may call from several threads. No lock is held while CUPTI is called: it has locks of its own.
struct Tracer {
  const RecorderHost* host;
  CuptiFunctions cupti;
  std::atomic<State> state;
  std::atomic<uint64_t> launches;   // recorded ones
  std::atomic<uint64_t> completed;  // buffers that came back
  Mutex start_lock;
  std::atomic<pthread_t> starter;  // who holds start_lock
  const char* off_reason;          // of `forked`, for the child's file
  Mutex lock;                      // of the buffers
  Buffer buffers[kMostBuffers];
};
Tracer g_tracer;

// ---- buffers

// From malloc: a client that takes CUPTI over may be handed one of them, and free it.
void request_buffer(uint8_t** buffer, size_t* bytes, size_t* record_limit) {
  *buffer = nullptr;
  *bytes = 0;
  *record_limit = 0;
  MutexGuard guard(g_tracer.lock);
  for (Buffer& one : g_tracer.buffers) {
    if (one.is_at_cupti) continue;
    if (one.memory == nullptr) one.memory = static_cast<uint8_t*>(malloc(kBufferBytes));
    if (one.memory == nullptr) return;
    one.is_at_cupti = true;
    *buffer = one.memory;
    *bytes = kBufferBytes;
    return;
  }
}

int by_start(const void* a, const void* b) {
  const uint64_t start_a = (*static_cast<const CuptiKernel* const*>(a))->start;
  const uint64_t start_b = (*static_cast<const CuptiKernel* const*>(b))->start;
  return start_a < start_b ? -1 : start_a > start_b;
}

void add_kernels(const CuptiKernel** kernels, uint32_t count) {
  uint32_t sorted = 1;  // those of one stream come so
  while (sorted < count && kernels[sorted - 1]->start <= kernels[sorted]->start) ++sorted;
  if (sorted < count) qsort(kernels, count, sizeof(void*), by_start);
  add_runs(kernels, count);
}

void read_buffer(const uint8_t* buffer, size_t valid_bytes) {
  const CuptiKernel* kernels[kKernelsAtOnce];
  const CuptiActivity* activity = nullptr;
  uint32_t count = 0;
  while (g_tracer.cupti.cuptiActivityGetNextRecord(buffer, valid_bytes, &activity) ==
         kCuptiSuccess) {
    if (activity->kind != kCuptiConcurrentKernel) continue;
    const auto* const kernel = reinterpret_cast<const CuptiKernel*>(activity);
    // A forced flush brings kernels that have not ended, too.
    if (kernel->start == 0 || kernel->end < kernel->start || kernel->name == nullptr) continue;
    kernels[count++] = kernel;
    if (count < kKernelsAtOnce) continue;
    add_kernels(kernels, count);
    count = 0;
  }
  add_kernels(kernels, count);
}

// Returns our buffer at `memory`. Null: it belongs to a client whose callbacks ours have replaced.
Buffer* find_buffer(const uint8_t* memory) {
  MutexGuard guard(g_tracer.lock);
  for (Buffer& one : g_tracer.buffers) {
    if (one.memory == memory && one.is_at_cupti) return &one;
  }
  return nullptr;
}

void complete_buffer(void*, uint32_t, uint8_t* memory, size_t, size_t valid_bytes) {
  Buffer* const buffer = find_buffer(memory);
  if (buffer == nullptr) return;
  read_buffer(memory, valid_bytes);
  size_t dropped = 0;
  if (g_tracer.cupti.cuptiActivityGetNumDroppedRecords(nullptr, 0, &dropped) == kCuptiSuccess) {
    add_dropped_runs(dropped);
  }
  {
    MutexGuard guard(g_tracer.lock);
    buffer->is_at_cupti = false;
  }
  g_tracer.completed.fetch_add(1, std::memory_order_release);
}

// ---- once a second, and at the end

void write_timing(RecordedTiming timing, const char* reason) {
  RecordingHeader* const head = header();
  if (head == nullptr) return;
  if (*reason != 0) snprintf(head->timing_reason, sizeof head->timing_reason, "%s", reason);
  __atomic_store(&head->timing, &timing, __ATOMIC_RELEASE);
}

void set_state(State state, RecordedTiming timing, const char* reason) {
  write_timing(timing, reason);
  g_tracer.state.store(state, std::memory_order_release);
}

// CUPTI does not say whose callbacks it has: what shows is that ours are no longer called. Buffers that come again
// show that it was a kernel that ran for seconds.
void* watch(void*) {
  uint64_t launches_before = 0;
  uint64_t completed_before = 0;
  int quiet_ticks = 0;
  while (true) {
    const timespec second = {1, 0};
    nanosleep(&second, nullptr);
    (void)g_tracer.cupti.cuptiActivityFlushAll(0);
    const uint64_t completed = g_tracer.completed.load(std::memory_order_acquire);
    // After the flush: a launch is counted before it can have a record.
    const uint64_t launches = g_tracer.launches.load(std::memory_order_acquire);
    if (completed != completed_before) {
      completed_before = completed;
      launches_before = launches;
      quiet_ticks = 0;
      if (!is_tracing()) set_state(State::tracing, RecordedTiming::cupti, "");
    } else if (is_tracing() && launches != launches_before &&
               ++quiet_ticks >= kTicksUntilTakenOver) {
      set_state(State::taken_over, RecordedTiming::taken_over,
                "the program, or a tool, used CUPTI itself");
    }
  }
}

void flush_at_exit() {
  if (is_tracing()) (void)g_tracer.cupti.cuptiActivityFlushAll(kCuptiFlushForced);
}

bool start_watch() {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  pthread_t thread;
  const bool has_started = pthread_create(&thread, &attributes, watch, nullptr) == 0;
  pthread_attr_destroy(&attributes);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return has_started && atexit(flush_at_exit) == 0;
}

// ---- the beginning

// True if CUPTI has no subscriber. A profiler subscribes before it begins.
bool is_cupti_free(const CuptiFunctions& cupti) {
  void* subscriber = nullptr;
  const auto ignore = [](void*, int, uint32_t, const void*) {};
  const CuptiResult result = cupti.cuptiSubscribe(&subscriber, ignore, nullptr);
  if (result == kCuptiSuccess) (void)cupti.cuptiUnsubscribe(subscriber);
  return result != kCuptiMultipleSubscribers;
}

int driver_version() {
  const auto ask = reinterpret_cast<PFN_cuDriverGetVersion_v2020>(
      g_tracer.host->find_driver_function("cuDriverGetVersion"));
  int version = 0;
  return ask != nullptr && ask(&version) == CUDA_SUCCESS ? version : 0;
}

// Why CUPTI is not used; null: it is.
const char* start_cupti(uint32_t* version) {
  static char reason[96];
  CuptiFunctions& cupti = g_tracer.cupti;
  if (!open_cupti(*g_tracer.host, driver_version(), &cupti))
    return "no libcupti of CUDA 12 or 13 was found";
  if (cupti.cuptiGetVersion(version) != kCuptiSuccess || !is_known_cupti(*version)) {
    snprintf(reason, sizeof reason, "CUPTI's version %u is not known", *version);
    return reason;
  }
  if (!is_cupti_free(cupti)) return "the program, or a tool, uses CUPTI itself";
  CuptiResult result = cupti.cuptiActivityRegisterCallbacks(request_buffer, complete_buffer);
  if (result == kCuptiSuccess) result = cupti.cuptiActivityEnable(kCuptiConcurrentKernel);
  if (result != kCuptiSuccess) {
    snprintf(reason, sizeof reason, "CUPTI refuses, with error %d", result);
    return reason;
  }
  return start_watch() ? nullptr : "no thread could be started";
}

void start() {
  static RecordingSettings settings;  // too large for some threads' stacks
  g_tracer.host->read_settings(&settings);
  if (settings.times == RecordTimes::events) {
    g_tracer.off_reason = "";
    return set_state(State::off, RecordedTiming::events, "");
  }
  uint32_t version = 0;
  const char* const reason = start_cupti(&version);
  if (reason == nullptr) {
    header()->cupti_version = version;
    return set_state(State::tracing, RecordedTiming::cupti, "");
  }
  g_tracer.host->log(settings.times == RecordTimes::cupti ? LogLevel::warn : LogLevel::info,
                     "FIBSHIM_RECORD_TIMES: kernels are timed with events, not CUPTI: %s", reason);
  g_tracer.off_reason = reason;
  set_state(State::off, RecordedTiming::events, reason);
}

// CUPTI itself launches kernels while it starts, which call this again.
__attribute__((noinline)) void start_once() {
  if (g_tracer.starter.load(std::memory_order_relaxed) == pthread_self()) return;
  MutexGuard guard(g_tracer.start_lock);
  if (g_tracer.state.load(std::memory_order_acquire) != State::untried) return;
  g_tracer.starter.store(pthread_self(), std::memory_order_relaxed);
  start();
  g_tracer.starter.store(0, std::memory_order_relaxed);
}

}  // namespace

void start_tracer(const RecorderHost& host) { g_tracer.host = &host; }

void trace_launch(bool is_node) {
  switch (g_tracer.state.load(std::memory_order_acquire)) {
    case State::untried: start_once(); break;
    case State::tracing:
    case State::taken_over: break;
    case State::forked: return set_state(State::off, RecordedTiming::events, g_tracer.off_reason);
    case State::off: return;
  }
  if (!is_node) g_tracer.launches.fetch_add(1, std::memory_order_release);
}

void uncount_traced_launch() { g_tracer.launches.fetch_sub(1, std::memory_order_release); }

bool is_tracing() { return g_tracer.state.load(std::memory_order_acquire) == State::tracing; }

void stop_tracing_in_child() {
  const State state = g_tracer.state.load(std::memory_order_relaxed);
  if (state == State::untried) return;
  if (state == State::tracing || state == State::taken_over) {
    g_tracer.off_reason = "it was forked from a process that CUPTI traced";
  }
  g_tracer.state.store(State::forked, std::memory_order_relaxed);
}

}  // namespace fibshim
