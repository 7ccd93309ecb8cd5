// Read sections and grace periods: how memory that launches read is released.
//
// A launch reads tables, entries and decisions without a lock, between entering and leaving a
// section. A writer that unlinks such an object reuses its memory only after a grace period, when
// every section that was open at that time has been left. It never blocks; it asks again.
//
//   reader                                  writer
//   enter: sequence += 1 (odd)              unlink
//          compiler barrier                 membarrier: every running thread executes a full fence
//          read                             note the threads whose sequence is odd
//   leave: sequence += 1 (release)          ended when each of those has another sequence (acquire)
//
// A reader pays two additions to its own memory and no fence. Either the fence that membarrier
// executes on its CPU comes before its entry is visible; then its reads come after the unlinking,
// and it cannot find the object. Or the writer sees the odd sequence and waits. If the kernel has
// no membarrier the writer also waits ten seconds. tests/model has a model of this that is checked
// exhaustively.
//
// The sequences are in private memory of this process, so no other process can open or close a
// section. A thread has two. One is for launches on the fast side, which call nothing within their
// section. The other is for the slow side, whose sections contain driver calls, in which a tool's
// callback may launch something itself.
#pragma once

#include <atomic>
#include <stdint.h>

#include "shim/base/own_word.h"

namespace fibshim {

struct LaunchMemory;

// The state of one reading thread, on its own cache line. Reused after the thread has ended.
struct alignas(64) ReaderState {
  uint64_t fast;  // sequences: odd within a section
  uint64_t slow;
  uint64_t* counters;    // the thread's own (counters/counters.h); null: none
  LaunchMemory* memory;  // the thread's own (plan/remembered.h); null: none yet
  ReaderState* next;     // in the list of all states; written before this one is published
  std::atomic<bool> is_owned;
  // For the grace period: the odd sequence whose change it awaits, or 0.
  uint64_t awaited_fast;
  uint64_t awaited_slow;
};

// The calling thread's state; null: none yet, or no memory.
// __thread, not thread_local: C++ would check for a constructor at every use.
extern __thread ReaderState* t_reader
    __attribute__((tls_model("initial-exec"), visibility("hidden")));

// The same for the fast side: null while the thread has no counters of its own.
extern __thread ReaderState* t_fast_reader
    __attribute__((tls_model("initial-exec"), visibility("hidden")));

// The fast side's section. Nothing within may enter it again.
inline void enter_fast_section(ReaderState* reader) {
  add_in_order(&reader->fast, 1);
#ifdef __SANITIZE_THREAD__
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
#endif
}
inline void leave_fast_section(ReaderState* reader) { add_in_order(&reader->fast, 1); }

// The slow side's section, for the life of a scope. May be nested. Gives the thread its state.
// Threads that can get none share one count.
class ReadSection {
 public:
  ReadSection();
  ~ReadSection();
  ReadSection(const ReadSection&) = delete;
  ReadSection& operator=(const ReadSection&) = delete;

 private:
  ReaderState* reader_;  // null: the shared count
  uint32_t forks_;       // number of forks up to this process, when the section began
  bool is_nested_;
};

// The process's grace period: one at a time, under its owner's lock.
class GracePeriod {
 public:
  // Begins to wait for the readers of everything that was unlinked before.
  void begin();
  bool has_ended();
  // Call in a forked child, which has no other thread to wait for.
  void end_in_child();

 private:
  bool has_fence_ = false;
  bool waits_for_shared_ = false;
  bool waits_for_readers_ = false;
  uint64_t begun_ms_ = 0;
};

// Sets the counters of the calling thread's reader; null: none. A thread without a reader of its
// own stays on the slow side.
void set_reader_counters(uint64_t* counters);

// For the atfork handlers.
void lock_readers_for_fork();
void unlock_readers_after_fork(bool is_child);

}  // namespace fibshim
