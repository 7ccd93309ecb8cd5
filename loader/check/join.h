// Binds each pattern of a model to the solutions that it can lead to.
#pragma once

#include <set>

#include "loader/compile/model.h"

namespace fibshim {

// The definitions and solutions of later folders that are not used because an earlier folder has
// them. The key is the later folder's index and the definition's name.
struct Shadows {
  using Key = std::pair<uint16_t, std::string>;
  std::map<Key, Mark> definitions;  // those that differ from the earlier one
  std::set<Key> solutions;
};

// Fills in the bindings, sorted by pattern, then by definition name, then in the order of trial, and
// calls `bound` now and then with how many are there. Returns for each solution whether some pattern
// leads to it.
std::vector<bool> join_all(FolderModel* model, const Shadows& shadows, Diagnostics* diagnostics,
                           const std::function<void(size_t count)>& bound);

}  // namespace fibshim
