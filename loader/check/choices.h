// Finds out which of several solutions for one definition serves which values of the definition's
// axes.
//
// A `when` may be any expression of the axes, so this module evaluates it at samples: at 1, at the
// largest axis, and around each integer in a `when`. With one axis it also bisects between samples
// that differ, so it finds every change that a comparison makes between them. With more axes it may
// miss some. Whatever it reports holds at a sample.
#pragma once

#include "loader/compile/definition.h"
#include "loader/compile/solution.h"

namespace fibshim {

// True if `a` is tried before `b`, both being solutions of one definition.
bool is_tried_before(const SolutionSpec& a, const SolutionSpec& b);

struct ChoiceSample {
  std::vector<int64_t> values;  // of ChoiceMap::axes
  uint32_t holding;             // bit i: the `when` of solution i holds
};
struct ChoiceMap {
  std::vector<std::string> axes;  // those that a `when` uses
  // Sorted by value. With one axis, values between two samples with equal `holding` count as equal.
  std::vector<ChoiceSample> samples;
};
// Requires at most kMaxChoices solutions, all of that definition. A `when` that cannot be compiled
// never holds.
ChoiceMap map_choices(const Definition& definition,
                      const std::vector<const SolutionSpec*>& solutions);

// Returns the values of a sample as text, such as "rows is 300".
std::string values_text(const ChoiceMap& map, const ChoiceSample& sample);

// Reports clauses of the solution's `when` that are not expressions of the definition's axes.
void check_when(const SolutionSpec& solution, const Definition& definition,
                Diagnostics* diagnostics);

// Reports solutions of one definition with equal benefit whose `when` holds for the same launch,
// and too many solutions. `definition`: null if it is missing.
void check_choices(const Definition* definition, const std::vector<const SolutionSpec*>& solutions,
                   Diagnostics* diagnostics);

}  // namespace fibshim
