// Joins one pattern with one solution: how a launch that the pattern fits is turned into a launch
// of the solution's kernel, or why it must not be.
#pragma once

#include "loader/compile/model.h"

namespace fibshim {

// What a solution's names mean for one pattern: the definition's constant axes first, then the
// pattern's own values.
class BindingScope : public Scope {
 public:
  BindingScope(const PatternSpec& pattern, const Definition& definition)
      : pattern_(pattern), definition_(definition) {}

  std::optional<Meaning> find(std::string_view name) const override;
  std::vector<std::string_view> names() const override { return {}; }  // refusals suggest nothing

 private:
  const PatternSpec& pattern_;
  const Definition& definition_;
};

// Whether a constant can stand for that dimension; otherwise *why says so.
bool is_geometry_in_range(uint32_t index, int64_t value, std::string* why);

// Whether clusters of that size make up the grid, in one dimension of it; otherwise *why says so.
bool is_whole_clusters(uint32_t grid_index, int64_t grid, int64_t cluster, std::string* why);

// Whether `size` bytes hold the integer, signed or unsigned.
bool fits_in_bytes(int64_t value, uint32_t size);

// `pattern` can name `definition`, which `solution` solves. Refusals are reported as warnings, a
// kernel parameter that a pattern's value does not fit as an error.
BindingSpec bind(const PatternSpec& pattern, const SolutionSpec& solution,
                 const Definition& definition, Diagnostics* diagnostics);

}  // namespace fibshim
