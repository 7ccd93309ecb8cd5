// Read sections and grace periods: how memory that launches read is released.
//
// A launch reads tables, entries and decisions without a lock, between entering and leaving a
// section. Whoever unlinks such an object reuses its memory only when every section that was open
// at that time has been left: after a grace period. It never blocks for that; it asks again later.
//
//   reader                                  writer
//   enter: sequence += 1 (odd)              unlink
//          compiler barrier                 membarrier: every running thread executes a full fence
//          read                             note the threads whose sequence is odd
//   leave: sequence += 1 (release)          ended when each of those has another sequence (acquire)
//
// A reader pays two additions to its own memory and no fence. Either the fence that membarrier makes
// its CPU execute comes before its entry is visible: then its reads come after the unlinking, and it
// cannot find the thing; or the writer sees the odd sequence and waits. Where the kernel has no
// membarrier the writer waits ten seconds as well. tests/model has a model of this that is checked
// exhaustively.
//
// The sequences lie in private memory of this process: nobody else can open or close a section. A thread has
// two: one for launches that end on the fast side, which call nothing within their section, and one for
// the slow side, whose sections hold driver calls, in which a tool's callback may launch something
// of its own.
#pragma once

#include <atomic>
#include <stdint.h>

#include "shim/base/own_word.h"

namespace fibshim {

// The state of one reading thread, on a cache line of its own. After the thread has ended another
// one uses it.
struct alignas(64) ReaderState {
  uint64_t fast;  // sequences: odd within a section
  uint64_t slow;
  uint64_t* counters;  // the thread's own (counters/counters.h); null: none
  ReaderState* next;   // of all; written before it is published
  std::atomic<bool> is_owned;
  // The grace period's: the odd value that it waits to see changed, or 0.
  uint64_t awaited_fast;
  uint64_t awaited_slow;
};

// The calling thread's, or null: none yet, or there was no memory for one.
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

// The slow side's section, for the life of a scope; may be nested. Gives the thread its state; one that can get
// none takes part in one count for all.
class ReadSection {
 public:
  ReadSection();
  ~ReadSection();
  ReadSection(const ReadSection&) = delete;
  ReadSection& operator=(const ReadSection&) = delete;

 private:
  ReaderState* reader_;  // null: the shared count
  uint32_t forks_;       // how many there were before this one's process
  bool is_nested_;
};

// The process's grace period: one at a time, under its owner's lock.
class GracePeriod {
 public:
  // From here on everything that was unlinked before is waited for.
  void begin();
  bool has_ended();
  // In a forked child no other thread is left to wait for.
  void end_in_child();

 private:
  bool has_fence_ = false;
  bool waits_for_shared_ = false;
  bool waits_for_readers_ = false;
  uint64_t begun_ms_ = 0;
};

// Gives the calling thread's reader its counters, or takes them away: null. A thread without a reader of its own
// keeps to the slow side.
void set_reader_counters(uint64_t* counters);

// For the atfork handlers.
void lock_readers_for_fork();
void unlock_readers_after_fork(bool is_child);

}  // namespace fibshim
