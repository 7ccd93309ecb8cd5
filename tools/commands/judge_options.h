// Options that `verify` and `bench` share.
#pragma once

#include "tools/base/command_line.h"
#include "tools/judge/judge.h"

namespace fibshim::tools {

void add_judge_options(CommandLine* line, judge::JudgeOptions* options);

}  // namespace fibshim::tools
