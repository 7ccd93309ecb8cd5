#include "shim/counters/read_section.h"

#include <atomic>
#include <linux/membarrier.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

namespace fibshim {
namespace {

// For kernels without membarrier.
constexpr uint64_t kRestMs = 10'000;

// Threads within a section that have no counters of their own.
std::atomic<uint64_t> g_shared_readers{0};
std::atomic<uint32_t> g_forks{0};

// This thread's share of them. A thread that is cancelled in a driver call runs no destructor of ours, but
// those of its thread-specific data.
__thread uint32_t t_shared_sections __attribute__((tls_model("initial-exec")));
constexpr uint64_t kNoKey = UINT64_MAX;
std::atomic<uint64_t> g_exit_key{kNoKey};

void leave_shared_sections(void*) {
  g_shared_readers.fetch_sub(t_shared_sections, std::memory_order_release);
  t_shared_sections = 0;
}

// Without a key, when the program has taken all, such a thread keeps the grace period open.
void note_exit() {
  uint64_t key = g_exit_key.load(std::memory_order_acquire);
  if (key == kNoKey) {
    pthread_key_t made;
    if (pthread_key_create(&made, leave_shared_sections) != 0) return;
    if (g_exit_key.compare_exchange_strong(key, made, std::memory_order_acq_rel)) {
      key = made;
    } else {
      pthread_key_delete(made);
    }
  }
  (void)pthread_setspecific(static_cast<pthread_key_t>(key), &g_exit_key);
}

// Sequences that were odd when the grace period began, and what they were. Guarded by the one
// GracePeriod's owner.
struct WaitedFor {
  const uint64_t* sequence;
  uint64_t value;
};
constexpr CounterIndex kSections[] = {kFastSection, kSlowSection};
WaitedFor g_waited_for[2 * kMaxShards];

uint64_t now_ms() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1000 + static_cast<uint64_t>(now.tv_nsec) / 1000000;
}

// A full fence on every CPU that runs a thread of this process. False: there is none.
bool fence_all_threads() {
  if (syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0) == 0) return true;
  // Once per process, at the first need.
  return syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0) == 0 &&
         syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0) == 0;
}

}  // namespace

ReadSection::ReadSection()
    : sequence_(nullptr), forks_(g_forks.load(std::memory_order_relaxed)), is_nested_(false) {
  uint64_t* const counters = t_counters;
  if (counters == nullptr) {
    if (t_shared_sections == 0) note_exit();
    ++t_shared_sections;
    g_shared_readers.fetch_add(1, std::memory_order_seq_cst);
    return;
  }
  sequence_ = counters + kSlowSection;
  is_nested_ = (__atomic_load_n(sequence_, __ATOMIC_RELAXED) & 1) != 0;
  if (is_nested_) return;
  add_in_order(sequence_, 1);
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
}

ReadSection::~ReadSection() {
  // A child that was forked within it, in a callback of the driver's, has nothing to leave: what it
  // inherited is its parent's.
  if (forks_ != g_forks.load(std::memory_order_relaxed)) return;
  if (sequence_ == nullptr) {
    --t_shared_sections;
    g_shared_readers.fetch_sub(1, std::memory_order_release);
  } else if (!is_nested_) {
    add_in_order(sequence_, 1);
  }
}

void GracePeriod::begin() {
  has_fence_ = fence_all_threads();
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
  begun_ms_ = has_fence_ ? 0 : now_ms();
  waits_for_shared_ = true;
  left_ = 0;
  for (uint32_t i = 1; const uint64_t* shard = shard_at(i); ++i) {
    for (const CounterIndex section : kSections) {
      const uint64_t value = __atomic_load_n(shard + section, __ATOMIC_ACQUIRE);
      if ((value & 1) != 0) g_waited_for[left_++] = {shard + section, value};
    }
  }
}

bool GracePeriod::has_ended() {
  uint32_t kept = 0;
  for (uint32_t i = 0; i < left_; ++i) {
    const WaitedFor& one = g_waited_for[i];
    if (__atomic_load_n(one.sequence, __ATOMIC_ACQUIRE) == one.value) g_waited_for[kept++] = one;
  }
  left_ = kept;
  if (waits_for_shared_ && g_shared_readers.load(std::memory_order_acquire) == 0) {
    waits_for_shared_ = false;
  }
  return left_ == 0 && !waits_for_shared_ && (has_fence_ || now_ms() - begun_ms_ >= kRestMs);
}

void GracePeriod::end_in_child() {
  left_ = 0;
  waits_for_shared_ = false;
  has_fence_ = true;
  g_shared_readers.store(0, std::memory_order_relaxed);
  t_shared_sections = 0;
  g_forks.fetch_add(1, std::memory_order_relaxed);
}

void leave_sections(uint64_t* counters) {
  for (const CounterIndex section : kSections) {
    if ((__atomic_load_n(counters + section, __ATOMIC_RELAXED) & 1) != 0) {
      add_in_order(counters + section, 1);
    }
  }
}

}  // namespace fibshim
