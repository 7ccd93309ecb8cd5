// Options that `verify` and `bench` share.
#ifndef FIBSHIM_TOOLS_COMMANDS_JUDGE_OPTIONS_H_
#define FIBSHIM_TOOLS_COMMANDS_JUDGE_OPTIONS_H_

#include "tools/base/command_line.h"
#include "tools/judge/judge.h"

namespace fibshim::tools {

void add_judge_options(CommandLine* line, judge::JudgeOptions* options);

}  // namespace fibshim::tools

#endif  // FIBSHIM_TOOLS_COMMANDS_JUDGE_OPTIONS_H_
