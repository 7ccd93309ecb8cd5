// Shadow checks in executable graphs (FIBSHIM_SHADOW). If a host's exec has replaced nodes, one of
// N launches runs the originals instead: a sample. A sample is an exec of another copy of the
// host's graph. Beside a few of its nodes that are otherwise replaced, the solution runs on copies
// of what the node writes, and a kernel compares both. If there is no sample, the host's own exec
// runs and the launch is counted as not checked.
//
// A sample is made in the background shortly before its launch, with checks of other nodes each
// time. It is launched once, and then ended. If the host changes the exec, its sample is ended. The
// thread that launches a sample owns it.
//
// An exec that holds replacements itself gets an exec of the originals (Exec::unreplaced) before
// its first launch that is to be checked. It is ended at the first launch after sampling was
// switched off.
#pragma once

#include "shim/graphs/exec_table.h"

namespace fibshim {

// Counts a launch towards the next check. False: this launch is to be checked, or has other work to
// do first.
inline bool skip_sample(Exec* exec, uint32_t asks) {
  uint32_t left = exec->sample_in.load(std::memory_order_relaxed);
  return asks == kIsSampled && left > 1 &&
         exec->sample_in.compare_exchange_strong(left, left - 1, std::memory_order_relaxed);
}

// Returns what this launch of a sampled exec runs. Called by the launching thread.
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

// Applies the rules in force to an exec: how often its launches are checked, and Exec::unreplaced,
// which such launches may need. Requires the exec's lock and a read section. False: no launch is
// checked.
bool follow_shadow_rules(Exec* exec);

// True if a variant that was launched may be launched again.
inline bool is_kept(const Exec& exec, const Variant* variant) {
  return variant == &exec.plain || variant == exec.idle ||
         variant == exec.running.load(std::memory_order_relaxed) ||
         variant == exec.unreplaced.load(std::memory_order_relaxed);
}

// Both are called by the watcher. Applies the rules of `fibshim shadow` to all execs.
void follow_shadow_rules();
// Makes samples for execs that are being launched. Returns true if there may be more to do soon.
bool prepare_shadows();

}  // namespace fibshim
