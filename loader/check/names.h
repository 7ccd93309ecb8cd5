// What can be said of a solution's names and expressions before any pattern is looked at.
#pragma once

#include <functional>

#include "loader/compile/pattern.h"
#include "loader/compile/solution.h"

namespace fibshim {

// What patterns supply beyond the definitions' own axes and arguments; of each name the first pattern's.
using SuppliedNames = std::map<std::string, const PatternValue*, std::less<>>;

// Reports what holds for all patterns. `has_faulty_patterns`: a pattern that could not be read may supply
// what is missing.
void check_names(const SolutionSpec& solution, const Definition& definition,
                 const SuppliedNames& supplied, bool has_faulty_patterns, Diagnostics* diagnostics);

}  // namespace fibshim
