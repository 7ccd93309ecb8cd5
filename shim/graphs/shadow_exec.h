// Shadow checks in executable graphs (FIBSHIM_SHADOW). Of a host's exec with replaced nodes one of so many launches runs
// the originals: a sample, an exec of another copy of the host's graph in which, beside a few of the nodes that are
// replaced otherwise, the solution runs on copies of what the node writes and a kernel compares both. Where none is
// there the host's own exec runs, and the launch is counted as not checked.
//
// A sample is made in the background shortly before its launch, beside other nodes each time, launched once, and ended.
// Whatever the host changes in its exec ends the one that is there. The launching thread owns the sample that it has taken.
//
// An exec that holds replacements itself gets one of the originals before its first launch that is to be checked
// (Exec::unreplaced), and loses it at a launch after none is to be checked any more.
#pragma once

#include "shim/graphs/exec_table.h"

namespace fibshim {

// Counts a launch towards the next that is checked. False: there is more to see to.
inline bool skip_sample(Exec* exec, uint32_t asks) {
  uint32_t left = exec->sample_in.load(std::memory_order_relaxed);
  return asks == kIsSampled && left > 1 &&
         exec->sample_in.compare_exchange_strong(left, left - 1, std::memory_order_relaxed);
}

// What this launch of an exec that is sampled runs. The launching thread.
Variant* take_sample(Exec* exec);

// What a launch runs that was to be checked and cannot be: the originals, or what runs anyway where these are not known.
Variant* unchecked_variant(Exec* exec);
// The latter. Counts the launch as one that is not checked.
Variant* unchecked_running(Exec* exec);

// It was launched.
void count_sample(Exec* exec, Variant* sample);

// Holding the lock of an exec that runs `variant`, or is about to: makes Exec::unreplaced where that is wanted and not there.
// False: nothing was made.
bool keep_unreplaced(Exec* exec, const Variant& variant);

// Its launches are checked as often as the rules say; what they need for that is made. Holding its lock, within a read section.
// False: none is to be checked, or none can be.
bool follow_shadow_rules(Exec* exec);

// Whether an exec that was launched may be launched again.
inline bool is_kept(const Exec& exec, const Variant* variant) {
  return variant == &exec.plain || variant == exec.idle ||
         variant == exec.running.load(std::memory_order_relaxed) ||
         variant == exec.unreplaced.load(std::memory_order_relaxed);
}

// For the watcher. After `fibshim shadow`: what is launched from now on is checked as often as it says.
void follow_shadow_rules();
// Makes samples for execs that are being launched. True: there may be more to do soon.
bool prepare_shadows();

}  // namespace fibshim
