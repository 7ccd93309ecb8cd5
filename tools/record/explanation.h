// What a config folder would do with the launches of a kernel that was recorded, and which clause is in the way.
// The shim's own plan decides.
#pragma once

#include "loader/compile/model.h"
#include "tools/record/recording.h"

namespace fibshim::tools {

struct ExplainedLaunch {
  std::string launch;  // its grid and block, and what of its parameters is not as most often
  std::string pattern;
  std::string outcome;  // of kOutcomes
  std::string why;      // the solution of a hit, the clause that does not hold, ...
};

// Of every recorded geometry, and of every recorded value of each parameter. A recording keeps the values of
// each parameter, not which came together: what varies is tried one at a time, the rest as most often.
// `model` and `snapshot` are one folder's.
std::vector<ExplainedLaunch> explain_launches(const Snapshot& snapshot, const FolderModel& model,
                                              const KernelRecord& kernel);

}  // namespace fibshim::tools
