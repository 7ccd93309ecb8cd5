// The native references against the definitions' own, on made inputs; no GPU needed.
#pragma once

#include "tools/judge/cases.h"

namespace fibshim::judge {

// The exit code.
int check_references(const Folder& folder, const JudgeOptions& options, const char* command);

}  // namespace fibshim::judge
