// Which launches are checked (FIBSHIM_SHADOW): one of how many, by definition. What `fibshim shadow` has said of a
// definition holds, the last first; else the settings.
//
// Slow side; any thread.
#pragma once

#include "shim/registry/record.h"

namespace fibshim {

// From now on one of `interval` launches of the definitions that the glob fits is checked; 0: none.
// "*" replaces all earlier rules. False: there are too many globs, or this one is too long.
bool add_shadow_rule(const char* glob, uint32_t interval);

// Starts sampling a decision if the rules say so. The decision redirects, and is not published yet.
void begin_sampling(const Snapshot& snapshot, const Solution& solution, Decision* decision);

// After a decision was published, or the settings have changed: all decisions follow the rules in force. The number
// of the rules tells whether those have changed since.
void apply_shadow_rules();
uint32_t shadow_rules_number();

// Returns N if one of N launches of a solution's definition is to be checked; 0: none.
uint32_t shadow_interval(const Snapshot& snapshot, const Solution& solution);

// Counts a launch of a decision that redirects. True: this one is to be checked.
bool is_sampled(const Decision& decision);

// Whether the launches of some definition are, or were, to be checked.
bool wants_shadow();

// For the atfork handlers.
void lock_shadow_rules_for_fork();
void unlock_shadow_rules_after_fork(bool is_child);

}  // namespace fibshim
