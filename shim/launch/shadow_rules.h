// Which launches are checked (FIBSHIM_SHADOW): one of N, by definition. The last rule that `fibshim
// shadow` has added for a definition applies; without one the settings do.
//
// Slow side; any thread.
#pragma once

#include "shim/registry/record.h"

namespace fibshim {

// Checks one of `interval` launches of definitions that match the glob from now on; 0: none. "*"
// replaces all earlier rules. False: there are too many globs, or this one is too long.
bool add_shadow_rule(const char* glob, uint32_t interval);

// Checks at least one of `interval` launches of all definitions, in addition to the rules (`fibshim rollout
// --check`), until it is called with kShadowUnset or a rule for "*" is added.
void check_at_least(uint32_t interval);

// Starts sampling a decision if the rules ask for it. Requires a redirecting, unpublished decision.
void begin_sampling(const Snapshot& snapshot, const Solution& solution, Decision* decision);

// Applies the rules in force to all decisions. Call after the settings have changed, or a decision
// was published while the rules changed. The rules' number changes with them.
void apply_shadow_rules();
uint32_t shadow_rules_number();

// Returns N if one of N launches of a solution's definition is to be checked; 0: none.
uint32_t shadow_interval(const Snapshot& snapshot, const Solution& solution);

// Counts a redirected launch towards the next check. True: this launch is to be checked.
bool is_sampled(const Decision& decision);

// True if launches of some definition are, or were, to be checked.
bool wants_shadow();

// For the atfork handlers.
void lock_shadow_rules_for_fork();
void unlock_shadow_rules_after_fork(bool is_child);

}  // namespace fibshim
