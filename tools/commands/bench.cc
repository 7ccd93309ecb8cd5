// fibshim bench: how fast are solutions, alone and beside the kernels that they replace?

#include <limits.h>

#include "tools/commands/commands.h"
#include "tools/commands/judge_options.h"

namespace fibshim::tools {

int bench_command(int argc, const char* const* argv) {
  CommandLine line("bench", "Times solutions on the GPU, after a check of what they compute",
                   "[OPTIONS] DIR [DEFINITION...]",
                   "0 fine; 1 a solution is wrong or could not be timed, or nothing was judged; 2 "
                   "wrong usage.");
  judge::JudgeOptions options;
  options.trial.is_bench = true;
  line.option("--baseline", &options.baseline, "DIR",
              "a config folder whose solutions for the same definitions are timed, too");
  line.option("--against-original", &options.originals, "FILE",
              "time the kernels that the solutions replace, too, launched as this recording of "
              "`fibshim record "
              "--keep-images` has them; its launches are the cases");
  add_judge_options(&line, &options);
  bool is_warm = false;
  line.number("--warmups", &options.trial.warmups, 0, INT_MAX, "N",
              "launches before each trial (10)");
  line.number("--iterations", &options.trial.iterations, 1, INT_MAX, "N",
              "timed launches of each trial (50)");
  line.number("--trials", &options.trial.trials, 1, INT_MAX, "N", "trials (3)");
  line.flag("--all-sizes", &options.trial.ignores_when,
            "solutions are timed at sizes that their \"when\" leaves to others, too");
  line.flag(
      "--keep", &options.keeps,
      "keep the times in DIR/measurements.json, from which `fibshim check` says what was never "
      "measured, and which sizes a solution is too slow for");
  line.option("--keep-from", &options.kept_from, "FILE",
              "time nothing: keep the times of FILE, of the form of measurements.json, as times of "
              "the folder's solutions as they are now");
  line.flag("--warm", &is_warm, "do not flush the L2 cache between launches");
  line.flag("--graph", &options.trial.uses_graph,
            "time launches inside a replayed graph, as engines run them; implies --warm");
  line.check([&options]() -> std::string {
    if (options.originals.empty() || (options.baseline.empty() && options.trial.python.empty() &&
                                      options.recording.empty() && options.axes.empty())) {
      return "";
    }
    return "--against-original takes its cases from the recording: without --baseline, --python, "
           "--recording and --axis";
  });
  if (!line.parse(argc, argv)) return line.exit_code();
  options.trial.flushes_l2 = !is_warm && !options.trial.uses_graph;
  return judge::run_judge(options);
}

}  // namespace fibshim::tools
