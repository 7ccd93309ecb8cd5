#include "shim/base/read_section.h"

#include <linux/membarrier.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "shim/base/pool.h"

namespace fibshim {

__thread ReaderState* t_reader __attribute__((tls_model("initial-exec")));
__thread ReaderState* t_fast_reader __attribute__((tls_model("initial-exec")));

namespace {

// Length of a grace period on kernels without membarrier.
constexpr uint64_t kRestMs = 10'000;

// Holds only states, so that each has its own cache line.
Pool g_pool;
std::atomic<ReaderState*> g_readers;  // all states; never shrinks

// Number of sections of threads that have no state of their own.
std::atomic<uint64_t> g_shared_readers{0};
std::atomic<uint32_t> g_forks{0};
__thread uint32_t t_shared_sections __attribute__((tls_model("initial-exec")));

// A thread that ends, perhaps cancelled in a driver call, runs no destructor of the shim except
// that of its thread-specific data.
constexpr uint64_t kNoKey = UINT64_MAX;
std::atomic<uint64_t> g_exit_key{kNoKey};

void leave(uint64_t* sequence) {
  if ((__atomic_load_n(sequence, __ATOMIC_RELAXED) & 1) != 0) add_in_order(sequence, 1);
}

void end_thread(void*) {
  g_shared_readers.fetch_sub(t_shared_sections, std::memory_order_release);
  t_shared_sections = 0;
  ReaderState* const reader = t_reader;
  if (reader == nullptr) return;
  t_reader = nullptr;
  t_fast_reader = nullptr;
  reader->counters = nullptr;
  leave(&reader->fast);
  leave(&reader->slow);
  reader->is_owned.store(false, std::memory_order_release);
}

// Has end_thread() called when the thread ends. False: the program uses all keys. Such a thread, if
// it is cancelled within a section, keeps the grace period open.
bool call_at_exit() {
  uint64_t key = g_exit_key.load(std::memory_order_acquire);
  if (key == kNoKey) {
    pthread_key_t made;
    if (pthread_key_create(&made, end_thread) != 0) return false;
    if (g_exit_key.compare_exchange_strong(key, made, std::memory_order_acq_rel)) {
      key = made;
    } else {
      pthread_key_delete(made);
    }
  }
  return pthread_setspecific(static_cast<pthread_key_t>(key), &g_exit_key) == 0;
}

// Claims a state that no living thread owns. Null: no memory.
ReaderState* claim_reader() {
  for (ReaderState* at = g_readers.load(std::memory_order_acquire); at != nullptr; at = at->next) {
    bool free = false;
    if (at->is_owned.compare_exchange_strong(free, true, std::memory_order_acq_rel)) return at;
  }
  auto* const made = static_cast<ReaderState*>(g_pool.allocate(sizeof(ReaderState)));
  if (made == nullptr) return nullptr;
  made->is_owned.store(true, std::memory_order_relaxed);
  made->next = g_readers.load(std::memory_order_relaxed);
  while (!g_readers.compare_exchange_weak(made->next, made, std::memory_order_seq_cst)) {
  }
  return made;
}

ReaderState* ensure_reader() {
  if (t_reader == nullptr && t_shared_sections == 0 && call_at_exit()) t_reader = claim_reader();
  return t_reader;
}

uint64_t now_ms() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1000 + static_cast<uint64_t>(now.tv_nsec) / 1000000;
}

// Executes a full fence on every CPU that runs a thread of this process. False: no membarrier.
bool fence_all_threads() {
  if (syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0) == 0) return true;
  // Registered once per process, when it is first needed.
  return syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0) == 0 &&
         syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0) == 0;
}

// Returns the sequence if it is odd, else 0.
uint64_t open_sequence(const uint64_t& sequence) {
  const uint64_t value = __atomic_load_n(&sequence, __ATOMIC_ACQUIRE);
  return (value & 1) != 0 ? value : 0;
}

// True if the awaited section is still open. Clears `*awaited` if not.
bool is_still_open(const uint64_t& sequence, uint64_t* awaited) {
  if (*awaited != 0 && __atomic_load_n(&sequence, __ATOMIC_ACQUIRE) != *awaited) *awaited = 0;
  return *awaited != 0;
}

}  // namespace

ReadSection::ReadSection()
    : reader_(ensure_reader()), forks_(g_forks.load(std::memory_order_relaxed)), is_nested_(false) {
  if (reader_ == nullptr) {
    ++t_shared_sections;
    g_shared_readers.fetch_add(1, std::memory_order_seq_cst);
    return;
  }
  is_nested_ = (__atomic_load_n(&reader_->slow, __ATOMIC_RELAXED) & 1) != 0;
  if (is_nested_) return;
  add_in_order(&reader_->slow, 1);
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
}

ReadSection::~ReadSection() {
  // A child that was forked within the section, in a driver's callback, has no section to leave.
  if (forks_ != g_forks.load(std::memory_order_relaxed)) return;
  if (reader_ == nullptr) {
    --t_shared_sections;
    g_shared_readers.fetch_sub(1, std::memory_order_release);
  } else if (!is_nested_) {
    add_in_order(&reader_->slow, 1);
  }
}

void GracePeriod::begin() {
  has_fence_ = fence_all_threads();
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
  begun_ms_ = has_fence_ ? 0 : now_ms();
  waits_for_shared_ = true;
  waits_for_readers_ = true;
  for (ReaderState* at = g_readers.load(std::memory_order_seq_cst); at != nullptr; at = at->next) {
    at->awaited_fast = open_sequence(at->fast);
    at->awaited_slow = open_sequence(at->slow);
  }
}

bool GracePeriod::has_ended() {
  bool is_open = false;
  ReaderState* const first =
      waits_for_readers_ ? g_readers.load(std::memory_order_acquire) : nullptr;
  for (ReaderState* at = first; at != nullptr; at = at->next) {
    is_open |= is_still_open(at->fast, &at->awaited_fast);
    is_open |= is_still_open(at->slow, &at->awaited_slow);
  }
  waits_for_readers_ = is_open;
  if (waits_for_shared_ && g_shared_readers.load(std::memory_order_acquire) == 0) {
    waits_for_shared_ = false;
  }
  return !waits_for_readers_ && !waits_for_shared_ &&
         (has_fence_ || now_ms() - begun_ms_ >= kRestMs);
}

void GracePeriod::end_in_child() {
  waits_for_shared_ = false;
  waits_for_readers_ = false;
  has_fence_ = true;
}

void set_reader_counters(uint64_t* counters) {
  ReaderState* const reader = t_reader;
  if (reader != nullptr) reader->counters = counters;
  t_fast_reader = reader != nullptr && counters != nullptr ? reader : nullptr;
}

void lock_readers_for_fork() { g_pool.lock_for_fork(); }

void unlock_readers_after_fork(bool is_child) {
  if (is_child) {
    // Only this thread exists in the child, and the section that it was in belongs to the parent.
    for (ReaderState* at = g_readers.load(std::memory_order_relaxed); at != nullptr;
         at = at->next) {
      at->fast = at->slow = 0;
      at->is_owned.store(at == t_reader, std::memory_order_relaxed);
    }
    g_shared_readers.store(0, std::memory_order_relaxed);
    t_shared_sections = 0;
    g_forks.fetch_add(1, std::memory_order_relaxed);
  }
  g_pool.unlock_after_fork(is_child);
}

}  // namespace fibshim
