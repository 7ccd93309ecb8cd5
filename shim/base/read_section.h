// Read sections and grace periods: how what launches read is taken away under them.
//
// A launch reads tables, records and decisions without a lock, between entering and leaving a
// section. Who unlinks such a thing waits, before its memory is used again, until every section that
// was open at the time has been left: a grace period. It never blocks for that; it asks again later.
//
//   reader                                  writer
//   enter: sequence += 1 (odd)              unlink
//          compiler barrier                 membarrier: every running thread executes a full fence
//          read                             record the sequences that are odd
//   leave: sequence += 1 (release)          ended when each of those has changed (acquire)
//
// A reader pays two additions to its own memory and no fence. Either the fence that membarrier makes
// its CPU execute comes before its entry is visible: then its reads come after the unlinking, and it
// cannot find the thing; or the writer sees the odd sequence and waits. Where the kernel has no
// membarrier the writer waits ten seconds as well. tests/model has a model of this that is checked
// exhaustively.
//
// The sequences lie in private memory: no other process can reach them. A thread claims its own at its first
// slow section and gives them back when it ends. One without takes part in a count for all.
#ifndef FIBSHIM_SHIM_BASE_READ_SECTION_H_
#define FIBSHIM_SHIM_BASE_READ_SECTION_H_

#include <stdint.h>

namespace fibshim {

// A thread's sequences: one for launches that end on the fast side, which call nothing within their
// section, and one for the slow side, whose sections hold driver calls, in which a tool's callback may
// launch something of its own. launch_entry.cc has the place of `fast` in its assembly.
struct alignas(64) ReaderState {
  uint64_t fast;
  uint64_t slow;
  ReaderState* next;  // never changed once it is in the list
  uint32_t is_claimed;
  uint64_t awaited[2];  // the grace period's: what the sequences were when it began, if odd
};

// The calling thread's own, or null: none yet, or there is no memory.
// __thread, not thread_local: C++ would check for a constructor at every use.
extern __thread ReaderState* t_reader __asm__("fibshim_reader")
    __attribute__((tls_model("initial-exec")));

// Adds to a word that only this thread writes: a plain add, but as one store that a reader sees
// whole, after everything that this thread has read or written before; the compiler moves nothing over it.
inline void add_in_order(uint64_t* word, int64_t by) {
#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__)
  // Compilers make three instructions of the other form.
  __asm__ volatile("addq %1, %0" : "+m"(*word) : "er"(by) : "cc", "memory");
#else
  __atomic_store_n(word, __atomic_load_n(word, __ATOMIC_RELAXED) + static_cast<uint64_t>(by),
                   __ATOMIC_RELEASE);
  __atomic_signal_fence(__ATOMIC_SEQ_CST);
#endif
}

// The fast side's section. Nothing within may enter it again.
inline void enter_fast_section(ReaderState* reader) {
  add_in_order(&reader->fast, 1);
#ifdef __SANITIZE_THREAD__
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
#endif
}
inline void leave_fast_section(ReaderState* reader) { add_in_order(&reader->fast, 1); }

// The slow side's section, for the life of a scope; may be nested.
class ReadSection {
 public:
  ReadSection();
  ~ReadSection();
  ReadSection(const ReadSection&) = delete;
  ReadSection& operator=(const ReadSection&) = delete;

 private:
  uint64_t* sequence_;  // null: the shared count
  uint32_t forks_;      // how many there were before this one's process
  bool is_nested_;
};

// One grace period at a time, under its owner's lock.
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
  uint64_t begun_ms_ = 0;
};

}  // namespace fibshim

#endif  // FIBSHIM_SHIM_BASE_READ_SECTION_H_
