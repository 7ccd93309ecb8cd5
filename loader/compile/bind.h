// Joins one pattern with one solution: how a launch that the pattern fits is turned into a launch
// of the solution's kernel, or why it must not be.
#pragma once

#include "loader/compile/definition.h"
#include "loader/read/diagnostics.h"
#include "loader/compile/model.h"
#include "loader/compile/pattern.h"
#include "loader/compile/solution.h"

namespace fibshim {

// Whether a constant can stand for that dimension; otherwise *why says so.
bool is_geometry_in_range(uint32_t index, int64_t value, std::string* why);

// Whether `size` bytes hold the integer, signed or unsigned.
bool fits_in_bytes(int64_t value, uint32_t size);

// `pattern` can name `definition`, which `solution` solves. Refusals are reported as warnings, a
// kernel parameter that a pattern's value does not fit as an error.
BindingSpec bind(const PatternSpec& pattern, const SolutionSpec& solution,
                 const Definition& definition, Diagnostics* diagnostics);

}  // namespace fibshim
