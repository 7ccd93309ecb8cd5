// Explains what a config folder would do with the launches of a recorded kernel, and which clause
// prevents a replacement. The shim's own plan decides.
#pragma once

#include "loader/compile/model.h"
#include "tools/record/recording.h"

namespace fibshim::tools {

struct ExplainedLaunch {
  std::string launch;  // its grid and block, and the parameters with uncommon values
  std::string pattern;
  std::string outcome;  // of kOutcomes
  std::string why;      // a hit's solution, the clause that does not hold, ...
};

// Explains a launch for every recorded geometry, and for every recorded value of each parameter or word of a struct. A
// recording keeps the values of each, but not which of them came together: so one at a time is varied, or those whose
// values, by size, came equally often, and the others have their commonest value. `model` and `snapshot` are of the same
// folder.
std::vector<ExplainedLaunch> explain_launches(const Snapshot& snapshot, const FolderModel& model,
                                              const KernelRecord& kernel);

struct FittingLaunches {
  uint64_t launches = 0;  // that were recorded with their geometry, nodes of graphs among them
  uint64_t fitting = 0;   // of these at least
};

// How many of the recorded launches the pattern of this label is for, whether or not a solution serves them. What varies
// is tried one at a time, as above: a launch may have several values that do not fit, so more may fit than are said to.
FittingLaunches count_fitting_launches(const Snapshot& snapshot, const FolderModel& model,
                                       const KernelRecord& kernel, std::string_view label);

}  // namespace fibshim::tools
