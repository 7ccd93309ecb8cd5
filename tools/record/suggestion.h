// What a recorded kernel says about the config folder that would replace it: the files to begin with.
// The record may be anybody's; whatever it says, the files pass `fibshim check`.
#pragma once

#include "tools/record/recording.h"

namespace fibshim::tools {

// Stands in a kernel.cu until somebody has written the kernel.
inline constexpr char kUnwrittenKernel[] = "#error \"write the kernel here\"";

struct SuggestedFile {
  std::string path;  // below the folder
  std::string text;
  bool is_executable;
};

struct Suggestion {
  std::string label;  // of the pattern
  std::string definition_name;
  std::vector<SuggestedFile> files;  // the pattern comes first
  std::vector<std::string> notes;    // what a person has to look at
};

// Of a kernel of the recording whose parameters are known. `name`: what the definition's name begins with; empty:
// the kernel's own. `number`: from 2 on it is appended, for a kernel whose name another one has.
Suggestion suggest(const Recording& recording, const KernelRecord& kernel, const std::string& name,
                   unsigned number);

}  // namespace fibshim::tools
