// Makes the fast form (shim/abi/snapshot.h) of patterns and bindings: what the shim carries out without
// running programs. It is made from what the compiler knows of each expression, never from steps, and says
// `computed`, `slow` or "not whole" wherever it cannot say exactly what the programs say.
#pragma once

#include "loader/compile/model.h"

namespace fibshim {

FastKey make_fast_key(const PatternSpec& pattern);

// Adds the clauses that the checks have room for: each is a condition of its own. True when these are all.
// `aligned` stays filled up in pairs.
bool add_fast_checks(const std::vector<Clause>& clauses, FastChecks* checks);

// The `when` of a binding.
FastRange make_fast_range(const BindingSpec& binding);

FastForm make_fast_form(const BindingSpec& binding, const PatternSpec& pattern,
                        const SolutionSpec& solution);

}  // namespace fibshim
