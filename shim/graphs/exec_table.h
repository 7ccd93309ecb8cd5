// The host's executable graphs, by their handles.
//
// A launch looks up its exec without a lock. A slot belongs to a handle value for good, whichever
// exec has that value later (the driver reuses values at once), so there are as many slots as
// values, not as execs. The host may not launch, set or destroy one exec concurrently, so an Exec
// that was found lives as long as the call. The watcher thread, which the host does not know of,
// pins the execs that it works on.
//
// A slot is written once its Exec is complete. Writers hold one mutex, never in a driver call.
#pragma once

#include <atomic>

#include "shim/base/mutex.h"
#include "shim/counters/step_times.h"
#include "shim/graphs/taken_over.h"
#include "shim/graphs/variant.h"

namespace fibshim {

// The last launch of an exec. Only the thread that launches the exec reads and writes this.
struct LastLaunch {
  Variant* variant;  // null: not launched yet; may be a sample
  CUstream stream;
  CUcontext context;       // of a default stream
  uint64_t thread;         // of a per-thread stream
  uint64_t ended_streams;  // ended_stream_count() at the launch
};

// A child graph that the host has set.
struct ChildCopy {
  CUgraphNode host;  // in the graph that the exec was made from
  CUgraphNode kept;  // in the originals
};

// Bits of Exec::asks: what a launch must do first.
inline constexpr uint32_t kHasReady = 1;   // run Exec::ready
inline constexpr uint32_t kIsSampled = 2;  // some launches are to be checked (shadow_exec.h)
inline constexpr uint32_t kIsNoMore = 4;   // no launch is checked any more: end Exec::unreplaced

inline constexpr uintptr_t kUnknownContext = 1;

struct Exec {
  CUgraphExec host;
  CUcontext context;  // current when it was made
  Instantiation instantiation;

  // Guards the members below between the host's calls, which come one at a time, and the watcher.
  // Held across driver calls; nothing that these wait for takes it.
  Mutex lock;
  Block<KernelNode> nodes;
  Block<HostNode> host_nodes;  // the same, sorted by the host's node
  Block<CUgraphNode> disabled_others;
  Block<ChildCopy> children;
  // Modules, libraries and contexts that its kernels die with; 0: a module or library is unknown,
  // kUnknownContext: a context.
  Block<uintptr_t> owners;
  CUgraph originals;     // a copy of the host's graph; null: none is kept
  TakenOver taken_over;  // updates since the copy, which current_originals() applies
  bool is_in_place;      // the host's own exec holds replacements, or may
  bool is_updated;       // it has taken over another graph, whose nodes the driver does not use
  // The originals list their nodes as the graph that it was made from does, so the host's tell which is which.
  bool has_known_nodes;
  // Some nodes other than kernels may be disabled in the host's exec, but it is unknown which.
  bool has_switched_others;
  bool
      has_set_nodes;  // the host has set nodes since the instantiation: no rewrites, no early nodes
  bool is_frozen;  // its kernels may have died: no variant is made unless the host updates the exec
  uint32_t ending;  // calls under way that may end its context: the watcher makes no variant
  uint64_t tried;   // number of the generation for which a variant was made, or failed
  uint32_t tried_quarantines;  // quarantine_count() at that time

  // State of checks (shadow_exec.h). Only the watcher uses it.
  uint32_t seen_sample;   // sample_in at the watcher's last visit
  uint32_t idle_visits;   // visits since the last launch
  uint32_t next_checked;  // the node that is checked next

  std::atomic<Variant*> running;  // what a launch runs; written only by the host's calls
  std::atomic<Variant*> ready;    // what the next launch is to run; null: `running`
  Variant* idle;  // the host's exec, if it holds replacements but does not run; else null
  std::atomic<uint32_t> asks;  // set after what it announces is stored
  std::atomic<Variant*>
      shadow;  // the sample for the next launch that is checked; null: unchecked_variant()
  // Replaces the host's exec, if that holds replacements, for launches that are to be checked but
  // have no sample.
  std::atomic<Variant*> unreplaced;
  std::atomic<uint32_t> sample_in;  // launches until the next one that is checked: 1 is the next
  std::atomic<bool> lacks_shadow;   // a launch was to be checked since the last sample was made
  std::atomic<bool> lacks_room;     // for the exec of a check (reserve_sample_room())
  Variant plain;                    // the host's exec, for launches that are to run the originals
  LastLaunch last;
  StepClock step_clock;  // used only by the launching thread, like `last`

  // For the table.
  Exec* newer;
  Exec* older;
  uint32_t pins;
  bool is_ended;
};

// Returns null if the handle is unknown. Takes no lock.
Exec* find_exec(CUgraphExec handle);

// Makes a record that holds only the handle. Null: no memory.
Exec* make_exec_record(CUgraphExec handle);

// Adds the exec to the table. An earlier exec with this handle has ended unnoticed, and is removed.
void add_exec(Exec* exec);

// Removes the exec from the table and returns it, or null if unknown.
Exec* remove_exec(CUgraphExec handle);

// Frees a removed exec and its variants, once no pin is left; `has_driver`: driver objects, too.
void end_exec(Exec* exec, bool has_driver);

// All execs at this moment, pinned, the oldest first. The caller locks each one.
class PinnedExecs {
 public:
  PinnedExecs();
  ~PinnedExecs();
  PinnedExecs(const PinnedExecs&) = delete;
  PinnedExecs& operator=(const PinnedExecs&) = delete;

  size_t count() const { return execs_.count(); }
  Exec* operator[](size_t index) const { return execs_[index]; }

 private:
  Block<Exec*> execs_;
};

// Leaves a variant that will not be launched again to the watcher, which ends it.
void bury_variant(Variant* variant);
// Called by the watcher.
void end_buried_variants();

// Call before something ends that kernels belong to: a module, a library, or a context, null: any.
void freeze_execs_of_owner(uintptr_t owner);
void freeze_execs_of_context(CUcontext context);
// Call before and after what may end a context: the watcher leaves its execs alone meanwhile.
void hold_execs_of_context(CUcontext context);
void let_go_execs_of_context(CUcontext context);

// Count streams that have ended, since another stream may reuse the handle.
void count_ended_stream();
uint64_t ended_stream_count();

// For the atfork handlers. A child has no execs, as the driver does not work there.
void lock_graphs_for_fork();
void unlock_graphs_after_fork(bool is_child);

}  // namespace fibshim
