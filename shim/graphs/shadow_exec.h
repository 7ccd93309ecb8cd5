// Shadow checks in executable graphs (FIBSHIM_SHADOW). Of a host's exec with replaced nodes one of so many launches runs
// the originals: a sample, an exec of another copy of the host's graph in which, beside a few of the nodes that are
// replaced otherwise, the solution runs on copies of what the node writes and a kernel compares both. Where none is
// there the host's own exec runs, and the launch is counted as not checked.
//
// A sample is made in the background shortly before its launch, beside other nodes each time, launched once, and ended.
// A change of the exec by the host ends its sample. The thread that launches a sample owns it.
//
// An exec that holds replacements itself gets one of the originals before its first launch that is to be checked
// (Exec::unreplaced), and releases it at the first launch after sampling is switched off.
#pragma once

#include "shim/graphs/exec_table.h"

namespace fibshim {

// Counts a launch towards the next that is checked. False: there is more to see to.
inline bool skip_sample(Exec* exec, uint32_t asks) {
  uint32_t left = exec->sample_in.load(std::memory_order_relaxed);
  return asks == kIsSampled && left > 1 &&
         exec->sample_in.compare_exchange_strong(left, left - 1, std::memory_order_relaxed);
}

// Returns what this launch of a sampled exec runs. The launching thread calls it.
Variant* choose_variant(Exec* exec);

// Returns the variant for a launch that was chosen for a check and cannot be checked: the
// originals, or the running variant if there is no exec of them.
Variant* unchecked_variant(Exec* exec);
// Returns the running variant, and counts the launch as not checked.
Variant* unchecked_running(Exec* exec);

// Counts a sample that was launched.
void count_sample(Exec* exec, Variant* sample);

// Makes Exec::unreplaced if checks of `variant`, which runs or is about to, need it and it is
// missing. The caller holds the exec's lock. False: nothing was made.
bool keep_unreplaced(Exec* exec, const Variant& variant);

// Applies the rules in force to an exec: how often its launches are checked, and the exec that such
// launches need. The caller holds the exec's lock, within a read section. False: no launch is
// checked.
bool follow_shadow_rules(Exec* exec);

// Whether an exec that was launched may be launched again.
inline bool is_kept(const Exec& exec, const Variant* variant) {
  return variant == &exec.plain || variant == exec.idle ||
         variant == exec.running.load(std::memory_order_relaxed) ||
         variant == exec.unreplaced.load(std::memory_order_relaxed);
}

// The watcher calls both. Applies the rules of `fibshim shadow` to all execs.
void follow_shadow_rules();
// Makes samples for execs that are being launched. True: there may be more to do soon.
bool prepare_shadows();

}  // namespace fibshim
