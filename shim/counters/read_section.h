// Read sections and grace periods: how what launches read is taken away under them.
//
// A launch reads tables, records and decisions without a lock, between entering and leaving a
// section. Who unlinks such a thing waits, before its memory is used again, until every section that
// was open at the time has been left: a grace period. It never blocks for that; it asks again later.
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
// The sequences are two counters of the thread's own shard (counters.h) that stand for no outcome:
// one for launches that end on the fast side, which call nothing within their section, and one for
// the slow side, whose sections hold driver calls, in which a tool's callback may launch something
// of its own.
#ifndef FIBSHIM_SHIM_COUNTERS_READ_SECTION_H_
#define FIBSHIM_SHIM_COUNTERS_READ_SECTION_H_

#include <stdint.h>

#include "shim/counters/counters.h"

namespace fibshim {

// Counters of series 0. launch_entry.cc has the first one's place in its assembly.
inline constexpr CounterIndex kFastSection = kFirstOwnSlot;
inline constexpr CounterIndex kSlowSection = kFirstOwnSlot + 1;
static_assert(kFirstOwnSlot >= kOutcomeCount && kSlowSection < kOutcomeSlots);

// The fast side's section. Nothing within may enter it again.
inline void enter_fast_section(uint64_t* counters) {
  add_in_order(counters + kFastSection, 1);
#ifdef __SANITIZE_THREAD__
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
#endif
}
inline void leave_fast_section(uint64_t* counters) { add_in_order(counters + kFastSection, 1); }

// The slow side's section, for the life of a scope; may be nested. A thread without counters of its
// own takes part in one count for all.
class ReadSection {
 public:
  ReadSection();
  ~ReadSection();
  ReadSection(const ReadSection&) = delete;
  ReadSection& operator=(const ReadSection&) = delete;

 private:
  uint64_t* sequence_;  // null: the shared count
  uint32_t forks_;      // how many there were before this one's process, for the shared count
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
  uint32_t left_ = 0;  // of g_waited_for, which are not known to have left
};

// A thread that ends within a section, cancelled in a driver call, has left it.
void leave_sections(uint64_t* counters);

}  // namespace fibshim

#endif  // FIBSHIM_SHIM_COUNTERS_READ_SECTION_H_
