// Writes the first files of a config folder that would replace a recorded kernel, with all that the
// record tells. The record may come from anybody; whatever it says, the files pass `fibshim check`.
#pragma once

#include "tools/record/recording.h"

namespace fibshim::tools {

// The content of a kernel.cu until somebody has written the kernel.
inline constexpr char kUnwrittenKernel[] = "#error \"write the kernel here\"";

struct SuggestedFile {
  std::string path;  // relative to the folder
  std::string text;
  bool is_executable;
};

struct Suggestion {
  std::string label;  // of the pattern
  std::string definition_name;
  std::vector<SuggestedFile> files;  // the pattern comes first
  std::vector<std::string> notes;    // what the user has to check
};

// The parameters of `kernel`, one of the recording, must be known. `name`: the begin of the
// definition's name; empty: the kernel's own name. `number`: appended if it is 2 or more, for
// kernels with the same name.
Suggestion suggest(const Recording& recording, const KernelRecord& kernel, const std::string& name,
                   unsigned number);

}  // namespace fibshim::tools
