// Binds one pattern to one solution: how a launch that the pattern matches becomes a launch of the
// solution's kernel, or why it must not.
#pragma once

#include "loader/compile/binding_scope.h"
#include "loader/compile/model.h"

namespace fibshim {

// True if CUDA accepts the constant for dimension `index`; otherwise sets *why.
bool is_geometry_in_range(uint32_t index, int64_t value, std::string* why);

// True if clusters of that size divide the grid in one dimension; otherwise sets *why.
bool is_whole_clusters(uint32_t grid_index, int64_t grid, int64_t cluster, std::string* why);

// True if `size` bytes can hold the integer, signed or unsigned.
bool fits_in_bytes(int64_t value, uint32_t size);

// A ready binding of the same pattern to another solution of the same definition, of which nothing
// was said. What the two have in common is copied from it.
struct Sibling {
  const BindingSpec* binding = nullptr;  // null: there is none
  const SolutionSpec* solution = nullptr;
};

// Requires that `pattern` can name `definition`, which `solution` solves. Refusals are reported as
// warnings; a kernel parameter that the pattern's value does not fit is an error. `known`: of the
// pattern. Runs on any thread.
BindingSpec bind(const PatternSpec& pattern, const SolutionSpec& solution,
                 const Definition& definition, const Sibling& sibling, KnownClauses* known,
                 Diagnostics* diagnostics);

}  // namespace fibshim
