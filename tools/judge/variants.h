// Finds the different ways in which the patterns of a folder call a solution.
#pragma once

#include <set>

#include "tools/lint/verify_block.h"

namespace fibshim::judge {

struct Variant {
  // The pattern, and how many twins it has.
  std::string words() const;

  std::string name;  // the pattern's label; of twins the one most like the definition's name
  const PatternSpec* pattern;
  uint32_t binding;                            // index into the snapshot's
  std::map<std::string, std::string> aliases;  // pointer -> the earlier one whose buffer it shares
  std::vector<Variant> twins;  // other patterns that call the solution in the same way
  bool ignores_when = false;   // judge as if the solution were the only one, for all sizes
};

// One variant for each way in which patterns call the solution. Rewrite patterns have none: their
// kernels belong together only in a graph.
std::vector<Variant> find_variants(const FolderModel& model, uint32_t solution,
                                   bool ignores_when = false);

// The number that every launch of a pattern has for one of its values; nothing if the launch states it, or an address.
std::optional<double> stated_number(const PatternValue& value);

// The first of these recorded numbers of which every launch of the pattern has another, in words; "" if there is none.
std::string find_contradiction(const PatternSpec& pattern,
                               const std::map<std::string, double>& recorded);

// The names that a solution's launch block uses.
std::vector<std::string> names_of_launch(const SolutionSpec& solution);

// These names, and those in the expressions that define them. `pattern`: its expressions; if null,
// those of `verify`.
std::set<std::string> names_behind(std::vector<std::string> names, const PatternSpec* pattern,
                                   const VerifyBlock& verify);

}  // namespace fibshim::judge
