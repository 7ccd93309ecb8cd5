// Compares the patterns of a config folder with a recorded kernel: which fit, which fit its
// name but not the rest, and why not.
#pragma once

#include "shim/abi/snapshot.h"
#include "tools/record/recording.h"

namespace fibshim::tools {

struct PatternFit {
  std::string label;
  bool fits;        // symbol, parameters and image; a launch's `where` may still not hold
  std::string why;  // why the pattern does not fit; if it fits, why launches kept the original
  SymbolMatch match;
};

// Of the texts that recordings and lists of kernels have: "xxh128:" or "code:" and 32 digits, or nothing.
ImageHashes hashes_of(const std::string& image, const std::string& code);

// All patterns whose symbol fits, in the order in which the shim tries them.
std::vector<PatternFit> fit_patterns(const Snapshot& snapshot, const KernelRecord& kernel);

}  // namespace fibshim::tools
