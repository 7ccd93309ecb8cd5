// Compares the native references with the definitions' own, on generated inputs. Needs no GPU.
#pragma once

#include "tools/judge/cases.h"

namespace fibshim::judge {

// Returns the exit code.
int check_references(const Folder& folder, const JudgeOptions& options, const char* command);

}  // namespace fibshim::judge
