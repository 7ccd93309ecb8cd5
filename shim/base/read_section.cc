#include "shim/base/read_section.h"

#include <atomic>
#include <linux/membarrier.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

namespace fibshim {

__thread ReaderState* t_reader __attribute__((tls_model("initial-exec")));

namespace {

// For kernels without membarrier.
constexpr uint64_t kRestMs = 10'000;

std::atomic<ReaderState*> g_readers{nullptr};  // all that there are; only ever prepended to

// Threads within a section that have no state of their own, and the calling thread's share of them.
std::atomic<uint64_t> g_shared_readers{0};
__thread uint32_t t_shared_sections __attribute__((tls_model("initial-exec")));

std::atomic<uint32_t> g_forks{0};

// A thread that is cancelled in a driver call runs no destructor of ours, but those of its
// thread-specific data.
constexpr uint64_t kNoKey = UINT64_MAX;
std::atomic<uint64_t> g_exit_key{kNoKey};

void close_section(uint64_t* sequence) {
  if ((__atomic_load_n(sequence, __ATOMIC_RELAXED) & 1) != 0) add_in_order(sequence, 1);
}

void release_reader(ReaderState* reader) {
  close_section(&reader->fast);
  close_section(&reader->slow);
  __atomic_store_n(&reader->is_claimed, 0, __ATOMIC_RELEASE);
}

void leave_at_exit(void*) {
  ReaderState* const reader = t_reader;
  t_reader = nullptr;
  if (reader != nullptr) release_reader(reader);
  g_shared_readers.fetch_sub(t_shared_sections, std::memory_order_release);
  t_shared_sections = 0;
}

// Makes leave_at_exit() run when the calling thread ends. False: the program has taken all keys.
bool watch_exit() {
  uint64_t key = g_exit_key.load(std::memory_order_acquire);
  if (key == kNoKey) {
    pthread_key_t made;
    if (pthread_key_create(&made, leave_at_exit) != 0) return false;
    if (g_exit_key.compare_exchange_strong(key, made, std::memory_order_acq_rel)) {
      key = made;
    } else {
      pthread_key_delete(made);
    }
  }
  return pthread_setspecific(static_cast<pthread_key_t>(key), &g_exit_key) == 0;
}

// A page of states, the first of them claimed. Null: no memory.
ReaderState* add_readers() {
  constexpr size_t kBytes = 4096;
  constexpr size_t kCount = kBytes / sizeof(ReaderState);
  void* const page =
      mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) return nullptr;
  auto* const readers = static_cast<ReaderState*>(page);
  readers[0].is_claimed = 1;
  for (size_t i = 0; i + 1 < kCount; ++i) readers[i].next = &readers[i + 1];
  ReaderState* head = g_readers.load(std::memory_order_relaxed);
  do {
    readers[kCount - 1].next = head;
  } while (!g_readers.compare_exchange_weak(head, readers, std::memory_order_release,
                                            std::memory_order_relaxed));
  return readers;
}

// A state for the calling thread. Null: it shares the count.
ReaderState* claim_reader() {
  if (!watch_exit()) return nullptr;
  for (ReaderState* reader = g_readers.load(std::memory_order_acquire); reader != nullptr;
       reader = reader->next) {
    uint32_t unclaimed = 0;
    if (__atomic_load_n(&reader->is_claimed, __ATOMIC_RELAXED) == 0 &&
        __atomic_compare_exchange_n(&reader->is_claimed, &unclaimed, 1, false, __ATOMIC_ACQUIRE,
                                    __ATOMIC_RELAXED)) {
      return reader;
    }
  }
  return add_readers();
}

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

// Calls `each` with each sequence and the place of its awaited value.
template <class Each>
void for_each_sequence(Each each) {
  for (ReaderState* reader = g_readers.load(std::memory_order_acquire); reader != nullptr;
       reader = reader->next) {
    each(&reader->fast, &reader->awaited[0]);
    each(&reader->slow, &reader->awaited[1]);
  }
}

}  // namespace

ReadSection::ReadSection()
    : sequence_(nullptr), forks_(g_forks.load(std::memory_order_relaxed)), is_nested_(false) {
  if (t_reader == nullptr) t_reader = claim_reader();
  if (t_reader == nullptr) {
    ++t_shared_sections;
    g_shared_readers.fetch_add(1, std::memory_order_seq_cst);
    return;
  }
  sequence_ = &t_reader->slow;
  is_nested_ = (__atomic_load_n(sequence_, __ATOMIC_RELAXED) & 1) != 0;
  if (is_nested_) return;
  add_in_order(sequence_, 1);
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
}

ReadSection::~ReadSection() {
  // A child that was forked within it, in a callback of the driver's, has nothing to leave.
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
  for_each_sequence([](const uint64_t* sequence, uint64_t* awaited) {
    *awaited = __atomic_load_n(sequence, __ATOMIC_ACQUIRE);
  });
}

bool GracePeriod::has_ended() {
  bool is_awaiting = false;
  for_each_sequence([&](const uint64_t* sequence, uint64_t* awaited) {
    if ((*awaited & 1) == 0) return;
    if (__atomic_load_n(sequence, __ATOMIC_ACQUIRE) == *awaited) {
      is_awaiting = true;
    } else {
      *awaited = 0;
    }
  });
  if (waits_for_shared_ && g_shared_readers.load(std::memory_order_acquire) == 0) {
    waits_for_shared_ = false;
  }
  return !is_awaiting && !waits_for_shared_ && (has_fence_ || now_ms() - begun_ms_ >= kRestMs);
}

void GracePeriod::end_in_child() {
  has_fence_ = true;
  waits_for_shared_ = false;
  for (ReaderState* reader = g_readers.load(std::memory_order_acquire); reader != nullptr;
       reader = reader->next) {
    reader->awaited[0] = 0;
    reader->awaited[1] = 0;
    if (reader != t_reader) {
      release_reader(reader);  // of a thread that is not here
    } else {
      // A fast section in which a signal's handler has forked is left when the handler returns.
      close_section(&reader->slow);
    }
  }
  g_shared_readers.store(0, std::memory_order_relaxed);
  t_shared_sections = 0;
  g_forks.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace fibshim
