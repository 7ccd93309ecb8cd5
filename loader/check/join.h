// Joins the patterns of a model with the solutions that they can lead to.
#pragma once

#include <set>

#include "loader/compile/model.h"

namespace fibshim {

// What earlier folders take from later ones, by the later folder and a definition's name.
struct Shadows {
  using Key = std::pair<uint16_t, std::string>;
  std::map<Key, Mark> definitions;  // of the same name, which say something else
  std::set<Key> solutions;
};

// Fills in the bindings: of each pattern by definition, and then in the order of trial. Returns which solutions some
// pattern leads to.
std::vector<bool> join_all(FolderModel* model, const Shadows& shadows, Diagnostics* diagnostics);

}  // namespace fibshim
