// fibshim bench: how fast are the folder's solutions, alone and beside what they replace?
#include <string>

#include "tools/base/commands.h"
#include "tools/judge/judge.h"
#include "tools/commands/judge_options.h"
#include "tools/base/options.h"
#include "tools/base/terminal.h"

namespace fibshim::tools {

int bench_command(int argc, const char* const* argv) {
  CLI::App app("Times solutions on the GPU, after a check of what they compute", "fibshim bench");
  judge::JudgeOptions options;
  options.trial.is_bench = true;
  JudgeCommandLine command_line(&app, &options);
  bool is_warm = false;
  app.add_option("--baseline", options.baseline,
                 "a config folder whose solutions for the same definitions are timed, too")
      ->type_name("DIR");
  app.add_option("--warmups", options.trial.warmups, "launches before each trial")
      ->type_name("N")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--iterations", options.trial.iterations, "timed launches of each trial")
      ->type_name("N")
      ->check(CLI::PositiveNumber);
  app.add_option("--trials", options.trial.trials, "trials")
      ->type_name("N")
      ->check(CLI::PositiveNumber);
  app.add_flag("--warm", is_warm, "do not flush the L2 cache between launches");
  app.add_flag("--graph", options.trial.uses_graph,
               "time launches inside a replayed graph, as engines run them; implies --warm");
  app.footer(
      "Exit codes: 0 fine; 1 a solution is wrong, or nothing could be timed; 2 wrong usage.");
  if (int exit_code = 0;
      !parse_options(&app, "[OPTIONS] DIR [DEFINITION...]", argc, argv, &exit_code))
    return exit_code;
  if (const std::string fault = command_line.finish(); !fault.empty()) {
    return usage_error("bench", printable(fault));
  }
  options.trial.flushes_l2 = !is_warm && !options.trial.uses_graph;
  return judge::run_judge(options);
}

}  // namespace fibshim::tools
