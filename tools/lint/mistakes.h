// Mistakes in a folder that loads: what it says is sound, and cannot be what its writer meant. `fibshim
// check` names them as errors; an engine, which loads the folder, does not look for them.
#pragma once

#include "loader/check/check.h"

namespace fibshim {

// `model` has been bound and has no error that keeps it from loading.
void find_mistakes(const FolderModel& model, Diagnostics* diagnostics);

// The folder as the shim reads it, with these mistakes: what a command that starts or moves programs looks at.
CheckReport check_with_mistakes(const std::string& folder);

// The errors that keep something from being served are `errors`; what is left of a report's are mistakes.
struct FoundMistakes {
  uint32_t errors = 0, mistakes = 0;
  // "has 2 mistakes, such as FILE:LINE:COLUMN: error: ...; 'fibshim check DIR' shows them"
  std::string words;
};
FoundMistakes count_mistakes(const std::string& folder, const CheckReport& report);

}  // namespace fibshim
