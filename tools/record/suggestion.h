// What a recorded kernel says about the config folder that would replace it: the files to begin with.
// The record may be anybody's; whatever it says, the files pass `fibshim check`.
#pragma once

#include "tools/record/recording.h"

namespace fibshim::tools {

struct SuggestedFile {
  std::string path;  // below the folder
  std::string text;
  bool is_executable;
};

struct Suggestion {
  std::string label;  // of the pattern
  std::string definition_name;
  std::vector<SuggestedFile> files;
  std::vector<std::string> notes;  // what a person has to look at
};

// Of a kernel whose parameters are known. `name`: what the definition's name begins with; empty: the
// kernel's own.
Suggestion suggest(const KernelRecord& kernel, const std::string& name);

}  // namespace fibshim::tools
