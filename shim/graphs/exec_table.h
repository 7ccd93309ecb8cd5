// The host's executable graphs, by their handles.
//
// A launch looks its exec up without a lock. A slot stays for its handle value, whoever has that later (the driver
// gives values out again at once), so the slots' number is that of values, not of execs. The host may not launch, set
// or end one exec at the same time, so an Exec that was found lives as long as the call; the watcher's thread, which
// the host does not know of, pins those that it works on.
//
// A slot is written once its Exec is whole. Writers hold one mutex, and call no driver meanwhile.
#pragma once

#include <atomic>

#include "shim/base/mutex.h"
#include "shim/counters/step_times.h"
#include "shim/graphs/taken_over.h"
#include "shim/graphs/variant.h"

namespace fibshim {

// The last launch of an exec. Only the thread that launches the exec reads and writes this.
struct LastLaunch {
  Variant* variant;  // null: it was not launched; may be a sample
  CUstream stream;
  CUcontext context;       // of a default stream
  uint64_t thread;         // of a per-thread stream
  uint64_t ended_streams;  // how many streams had ended by then
};

// Bits of Exec::asks: what a launch has to do first.
inline constexpr uint32_t kHasReady = 1;
inline constexpr uint32_t kIsSampled = 2;  // some launches are to be checked (shadow_exec.h)
inline constexpr uint32_t kIsNoMore = 4;   // none is any more: Exec::unreplaced is to go

struct Exec {
  CUgraphExec host;
  CUcontext context;  // current when it was made
  Instantiation instantiation;

  // Guards what follows, between the host's calls, which come one at a time, and the watcher. Held across driver calls:
  // nothing that they wait for takes it.
  Mutex lock;
  Block<KernelNode> nodes;
  Block<HostNode> host_nodes;  // the same, sorted by the host's node
  Block<CUgraphNode> disabled_others;
  Block<uintptr_t> owners;  // modules and libraries that its kernels die with; 0: one is not known
  CUgraph originals;        // a copy of the host's graph; null: none is kept
  TakenOver taken_over;     // since it was made; current_originals() gives it that
  bool is_in_place;         // the host's own exec holds replacements, or may
  bool is_updated;          // it has taken over a graph whose nodes are not those that it goes by
  // Nodes that are no kernels may be disabled in the host's, and which is not known.
  bool has_switched_others;
  bool
      has_set_nodes;  // by the host, after it was instantiated: what was known of them may not hold
  bool
      is_fixed;  // its kernels may have died: nothing is made of it, unless the host itself changes it
  uint64_t tried;              // generation for which a variant was made, or failed to be
  uint32_t tried_quarantines;  // how many there were by then

  // State of checks (shadow_exec.h). The watcher alone uses it.
  uint32_t seen_sample;   // sample_in at the last look
  uint32_t idle_looks;    // since it was launched last
  uint32_t next_checked;  // the node that is checked next

  std::atomic<Variant*> running;  // what a launch runs; the host's calls alone write it
  std::atomic<Variant*> ready;    // what the next launch is to run; null: that
  Variant* idle;  // the host's exec, which holds replacements and does not run; else null
  std::atomic<uint32_t> asks;  // set behind what it says is there
  std::atomic<Variant*>
      shadow;  // what the next launch that is checked is to run; null: the host's exec
  // In place of the host's exec, which holds replacements: launches that are to be checked and have none run this.
  std::atomic<Variant*> unreplaced;
  std::atomic<uint32_t> sample_in;  // the launch that is checked next: 1 for the next one
  std::atomic<bool> lacks_shadow;   // a launch had none
  Variant plain;                    // the host's exec, launched in place of what runs
  LastLaunch last;
  StepClock step_clock;  // the launching thread's, too

  // The table's.
  Exec* newer;
  Exec* older;
  uint32_t pins;
  bool is_ended;
};

// Null: not known. Takes no lock.
Exec* find_exec(CUgraphExec handle);

// Makes a record with nothing in it but the handle. Null: no memory.
Exec* make_exec_record(CUgraphExec handle);

// Puts it in the table. What had its handle before has ended unseen: it is forgotten.
void add_exec(Exec* exec);

// Removes the exec from the table and returns it. Null: not known.
Exec* remove_exec(CUgraphExec handle);

// Ends an exec that was taken out, once no pin is left, and what it holds. `has_driver`: its driver objects too.
void end_exec(Exec* exec, bool has_driver);

// Calls `use(exec)` for each, pinned and locked, the oldest first; those that come meanwhile may be missed.
class PinnedExecs {
 public:
  PinnedExecs();
  ~PinnedExecs();
  PinnedExecs(const PinnedExecs&) = delete;
  PinnedExecs& operator=(const PinnedExecs&) = delete;

  size_t count() const { return execs_.count(); }
  Exec* operator[](size_t index) const { return execs_[index]; }
  // Whether its end has begun: nothing is made of it any more. Holding its lock.
  static bool has_ended(const Exec& exec);

 private:
  Block<Exec*> execs_;
};

// Ends a variant that no launch begins any more, off the calling thread: the watcher does it.
void bury_variant(Variant* variant);
// For the watcher.
void end_buried_variants();

// Before something ends that kernels live in: a module, a library, or a context and all that is in it.
void fix_execs_of_owner(uintptr_t owner);
void fix_execs_of_context(CUcontext context);
void fix_all_execs();

// Streams that have ended: another may have the value of one.
void count_ended_stream();
uint64_t ended_stream_count();

// For the atfork handlers. A child has no execs: the driver does not work there.
void lock_graphs_for_fork();
void unlock_graphs_after_fork(bool is_child);

}  // namespace fibshim
