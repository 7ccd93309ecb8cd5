// fibshim verify: do the folder's solutions compute what their definitions say?

#include <limits.h>

#include "tools/commands/commands.h"
#include "tools/commands/judge_options.h"

namespace fibshim::tools {

int verify_command(int argc, const char* const* argv) {
  CommandLine line(
      "verify",
      "Runs solutions on the GPU and compares what they compute with what their definitions say",
      "[OPTIONS] DIR [DEFINITION...]",
      "0 all that was judged is right; 1 one is wrong or could not be run, or nothing was judged; "
      "2 "
      "wrong usage.");
  judge::JudgeOptions options;
  add_judge_options(&line, &options);
  line.number("--runs", &options.trial.runs, 1, INT_MAX, "N",
              "runs of each case, each with other inputs (3; 1 if its tensors take more than 32 "
              "MiB: then each case has those of another run)");
  line.option("--against-original", &options.originals, "FILE",
              "hold solutions to the kernels that they replace, launched as this recording of "
              "`fibshim record "
              "--keep-images` has them, not to references");
  line.choice(
      "--tolerances", &options.tolerances, {"show", "write"},
      "from outputs that `fibshim record --tensors` has kept of the original: how far they are off "
      "from the reference, and the atol and rtol that follow for verify and shadow checks; write: "
      "into "
      "the solutions' files");
  line.flag("--batch-invariant", &options.checks_batch_invariance,
            "find out instead whether a row gets the same bits in batches of 1 to 256 and at every "
            "place there, also where several solutions share the batches");
  line.flag("--check-references", &options.checks_references,
            "no GPU: compare the built-in references with the definitions' own (needs --python)");
  line.check([&options] {
    if (!options.originals.empty() &&
        (!options.trial.python.empty() || !options.recording.empty() || !options.axes.empty() ||
         options.checks_references)) {
      return std::string(
          "--against-original takes its cases from the recording: without --python, --recording, "
          "--axis and --check-references");
    }
    if (!options.tolerances.empty() &&
        (!options.originals.empty() || options.checks_batch_invariance || !options.output.empty() ||
         options.checks_references)) {
      return std::string(
          "--tolerances runs all recorded workloads: without --against-original, "
          "--batch-invariant, --output and --check-references");
    }
    const judge::TrialOptions& trial = options.trial;
    if (options.checks_batch_invariance &&
        (!options.originals.empty() || !trial.python.empty() || !options.workloads.empty() ||
         !options.output.empty() || options.checks_references)) {
      return std::string(
          "--batch-invariant compares a solution with itself: without --against-original, "
          "--python, --workloads, --output and --check-references");
    }
    const bool lacks_python = options.checks_references && options.trial.python.empty();
    return std::string(lacks_python ? "--check-references needs --python" : "");
  });
  return line.parse(argc, argv) ? judge::run_judge(options) : line.exit_code();
}

}  // namespace fibshim::tools
