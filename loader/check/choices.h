// Finds out which of several solutions for one definition serves which values of the definition's
// axes.
//
// Clauses that compare one axis, or its remainder, with a constant are solved exactly. Others are
// evaluated at samples: around the integers in a `when`, their products and quotients. Of a single
// axis these are also all integers up to 65536, where a change might be missed otherwise, and
// those between samples that differ. With more axes this may miss some. Whatever is reported holds
// at a sample.
#pragma once

#include <deque>

#include "loader/compile/model.h"

namespace fibshim {

// True if `a` is tried before `b`, both being solutions of one definition.
bool is_tried_before(const SolutionSpec& a, const SolutionSpec& b);

// How many more times a `when` is evaluated to try all small integers of an axis. It bounds the time
// that a folder takes to load.
struct ChoiceEffort {
  int64_t evaluations = 1 << 22;
};

struct ChoiceSample {
  std::vector<int64_t> values;  // of ChoiceMap::axes
  uint32_t holding;             // bit i: the `when` of solution i holds
};
struct ChoiceMap {
  std::vector<std::string> axes;      // those that a `when` uses
  std::vector<ChoiceSample> samples;  // with one axis sorted by value
  // There is one axis, and values between two samples with equal `holding` count as equal.
  bool is_whole = false;
};
// Requires at most kMaxChoices solutions, all of that definition. A `when` that cannot be compiled
// never holds.
ChoiceMap map_choices(const Definition& definition,
                      const std::vector<const SolutionSpec*>& solutions, ChoiceEffort* effort);

// Returns values of axes as text, such as "rows is 300".
std::string values_text(const std::vector<std::string>& axes, const std::vector<int64_t>& values);

// Reports clauses of the solution's `when` that are not expressions of the definition's axes.
void check_when(const SolutionSpec& solution, const Definition& definition,
                Diagnostics* diagnostics);

// Reports solutions of one definition with equal benefit whose `when` holds for the same launch,
// and too many solutions. `unused_solutions`: those of later folders in whose place an earlier
// folder's are used. A folder is rejected for them as well.
void check_all_choices(const FolderModel& model, const std::deque<SolutionSpec>& unused_solutions,
                       Diagnostics* diagnostics);

}  // namespace fibshim
