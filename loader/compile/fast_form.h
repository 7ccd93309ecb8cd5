// Makes the fast form (shim/abi/snapshot.h) of patterns and bindings, which the shim executes
// without running programs. It is made from the compiler's description of each expression, never
// from steps. Wherever it cannot express exactly what the programs compute, it is marked
// `computed`, `slow` or not whole.
#pragma once

#include "loader/compile/model.h"

namespace fibshim {

FastKey make_fast_key(const PatternSpec& pattern);

// Adds those clauses that FastChecks can express and has room for; each is an independent
// condition. Returns true if these are all. The entries of `aligned` are kept in full pairs.
bool add_fast_checks(const std::vector<Clause>& clauses, FastChecks* checks);

// Makes the range check for a binding's `when`.
FastRange make_fast_range(const BindingSpec& binding);

FastForm make_fast_form(const BindingSpec& binding, const PatternSpec& pattern,
                        const SolutionSpec& solution);

}  // namespace fibshim
