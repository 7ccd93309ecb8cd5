// In which ways the patterns of a folder call a solution.
#pragma once

#include <set>

#include "tools/lint/verify_block.h"

namespace fibshim::judge {

struct Variant {
  std::string name;  // the pattern's label
  const PatternSpec* pattern;
  uint32_t binding;                            // index into the snapshot's
  std::map<std::string, std::string> aliases;  // pointer -> the earlier one whose buffer it shares
  std::vector<Variant> twins;                  // of other patterns that call the solution alike
  bool ignores_when = false;  // as if the solution were the only one, and for all sizes
};

// Of the patterns that lead to the solution: one for each way of calling it. Rewrites have none: what ties their kernels
// is a graph's.
std::vector<Variant> find_variants(const FolderModel& model, uint32_t solution,
                                   bool ignores_when = false);

// The names that a solution's launch block uses.
std::vector<std::string> names_of_launch(const SolutionSpec& solution);

// These names, and those that they are expressions of. `pattern`: null for the expressions of `verify`.
std::set<std::string> names_behind(std::vector<std::string> names, const PatternSpec* pattern,
                                   const VerifyBlock& verify);

}  // namespace fibshim::judge
