// Options that `verify` and `bench` share.
#ifndef FIBSHIM_TOOLS_COMMANDS_JUDGE_OPTIONS_H_
#define FIBSHIM_TOOLS_COMMANDS_JUDGE_OPTIONS_H_

#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "tools/judge/judge.h"

namespace fibshim::tools {

class JudgeCommandLine {
 public:
  // Binds the shared options to `app`.
  JudgeCommandLine(CLI::App* app, judge::JudgeOptions* options);

  // Reads what needs more than CLI11: --axis. "" or what is wrong.
  std::string finish();

 private:
  judge::JudgeOptions* options_;
  std::vector<std::string> axes_;
};

}  // namespace fibshim::tools

#endif  // FIBSHIM_TOOLS_COMMANDS_JUDGE_OPTIONS_H_
