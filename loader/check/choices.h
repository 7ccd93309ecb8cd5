// Several solutions for one definition: which of them is for which launch, by the values of the definition's axes.
//
// A `when` may be any expression of the axes, so it is tried: at 1, at the largest axis, and around each integer
// that it names. With one axis the places between are searched until no change is left out that a comparison can
// make; with more, some may be missed. What is reported was seen.
#pragma once

#include "loader/compile/definition.h"
#include "loader/compile/solution.h"

namespace fibshim {

// The order in which solutions of one definition are tried.
bool is_tried_before(const SolutionSpec& a, const SolutionSpec& b);

struct ChoiceSample {
  std::vector<int64_t> values;  // of ChoiceMap::axes
  uint32_t holding;             // bit i: the `when` of solution i holds
};
struct ChoiceMap {
  std::vector<std::string> axes;  // those that a `when` uses
  std::vector<ChoiceSample>
      samples;  // by value; of one axis, what lies between two alike is like them
};
// At most kMaxChoices solutions, of that definition. A `when` that cannot be compiled never holds.
ChoiceMap map_choices(const Definition& definition,
                      const std::vector<const SolutionSpec*>& solutions);

// The values of a sample, such as "rows is 300".
std::string values_text(const ChoiceMap& map, const ChoiceSample& sample);

// Reports what in its `when` is no expression of the definition's axes.
void check_when(const SolutionSpec& solution, const Definition& definition,
                Diagnostics* diagnostics);

// Reports solutions of one definition of which no order says which is meant, and too many of them. `definition`:
// null when there is none.
void check_choices(const Definition* definition, const std::vector<const SolutionSpec*>& solutions,
                   Diagnostics* diagnostics);

}  // namespace fibshim
