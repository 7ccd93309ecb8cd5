// How the patterns of a config folder stand to a kernel that was recorded: which fit, which fit its
// name but not the rest, and why not.
#pragma once

#include "shim/abi/snapshot.h"
#include "tools/record/recording.h"

namespace fibshim::tools {

struct PatternFit {
  std::string label;
  bool fits;        // symbol, parameters and image; a launch's `where` may still not hold
  std::string why;  // it does not fit, or what became of launches that it fits
  SymbolMatch match;
};

// In the order of trial.
std::vector<PatternFit> fit_patterns(const Snapshot& snapshot, const KernelRecord& kernel);

}  // namespace fibshim::tools
