// Checks a solution's names and expressions without regard to a particular pattern.
#pragma once

#include <functional>

#include "loader/compile/pattern.h"
#include "loader/compile/solution.h"

namespace fibshim {

// The values that patterns supply, by name. If several patterns supply a name, the first one
// counts.
using SuppliedNames = std::map<std::string, const PatternValue*, std::less<>>;

// Reports faults that exist with every pattern. `has_faulty_patterns`: a pattern could not be read,
// so unknown names are not reported: it may supply them.
void check_names(const SolutionSpec& solution, const Definition& definition,
                 const SuppliedNames& supplied, bool has_faulty_patterns, Diagnostics* diagnostics);

}  // namespace fibshim
