// fibshim verify: is what the folder's solutions compute what their definitions say?
#include <string>

#include "tools/base/commands.h"
#include "tools/judge/judge.h"
#include "tools/commands/judge_options.h"
#include "tools/base/options.h"
#include "tools/base/terminal.h"

namespace fibshim::tools {

int verify_command(int argc, const char* const* argv) {
  CLI::App app(
      "Runs solutions on the GPU and compares what they compute with what their definitions say",
      "fibshim verify");
  judge::JudgeOptions options;
  JudgeCommandLine command_line(&app, &options);
  app.add_option("--runs", options.trial.runs, "runs of each case, each with other inputs")
      ->type_name("N")
      ->check(CLI::PositiveNumber);
  app.add_flag(
      "--check-references", options.checks_references,
      "no GPU: compare the built-in references with the definitions' own (needs --python)");
  app.footer(
      "Exit codes: 0 all are right; 1 one is wrong, or nothing could be judged; 2 wrong usage.");
  if (int exit_code = 0;
      !parse_options(&app, "[OPTIONS] DIR [DEFINITION...]", argc, argv, &exit_code))
    return exit_code;
  if (const std::string fault = command_line.finish(); !fault.empty()) {
    return usage_error("verify", printable(fault));
  }
  if (options.checks_references && options.trial.python.empty()) {
    return usage_error("verify", "--check-references needs --python");
  }
  return judge::run_judge(options);
}

}  // namespace fibshim::tools
