#include "tools/commands/judge_options.h"

#include <float.h>
#include <limits.h>

#include <charconv>

#include <fmt/format.h>

namespace fibshim::tools {

namespace {

// "NAME=N,N...". Returns what is wrong, or "".
std::string read_axis(const std::string& text, judge::JudgeOptions* options) {
  const size_t equals = text.find('=');
  std::vector<int64_t> values;
  for (size_t begin = equals + 1; equals != std::string::npos && begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    int64_t value = -1;
    const auto [at, error] = std::from_chars(text.data() + begin, text.data() + end, value);
    if (error != std::errc() || at != text.data() + end || value < 0) {
      values.clear();
      break;
    }
    values.push_back(value);
    begin = end + 1;
  }
  if (values.empty() || equals == 0) return fmt::format("--axis takes NAME=N,N..., not '{}'", text);
  options->axes[text.substr(0, equals)] = std::move(values);
  return "";
}

}  // namespace

void add_judge_options(CommandLine* line, judge::JudgeOptions* options) {
  judge::TrialOptions* const trial = &options->trial;
  line->positional("DIR", &options->folder, "config folder").required();
  line->positional("DEFINITION", &options->definitions, "only these definitions (names or globs)");
  const auto axes = std::make_shared<std::vector<std::string>>();
  line->option("--axis", axes.get(), "NAME=N,N...",
               "values of a variable axis: batch_size=1,7,64 (may be repeated)");
  line->option(
      "--workloads", &options->workloads, "FILE|DIR",
      "the dataset whose workloads/ are recorded cases, such as `fibshim record --tensors` "
      "makes, or one .jsonl file of them (default: the config folder)");
  line->option(
      "--recording", &options->recording, "FILE",
      "what `fibshim record` wrote of a program: values of a launch that nothing else states "
      "are taken from it, and the case's log names them");
  line->number("--atol", &trial->atol, 0.0, DBL_MAX, "X", "absolute tolerance, for all outputs");
  line->number("--rtol", &trial->rtol, 0.0, DBL_MAX, "X", "relative tolerance, for all outputs");
  line->number("--required-matched-ratio", &trial->required_matched_ratio, 0.0, 1.0, "X",
               "the share of elements that must be within --atol or --rtol");
  line->option("--python", &trial->python, "PROGRAM",
               "a Python with torch: judge by the definitions' own references, with their eps");
  line->number("--device", &trial->device, 0, INT_MAX, "N", "the GPU's number");
  line->number("--timeout", &options->timeout_s, 0.001, DBL_MAX, "S",
               "seconds that one case may take (300)");
  line->option("-o,--output", &options->output, "PATH",
               "add FlashInfer Trace records to this .jsonl file, or below this folder's traces/; "
               "cases that it has for the same images, GPU and command are not run again");
  line->json(&options->wants_json,
             "print JSON: {\"version\": 1, \"mode\", \"device\", \"skipped\", \"not_judged\", "
             "\"records\"}");
  line->flag("-q,--quiet", &options->is_quiet, "no progress and no notes on stderr");
  line->check([axes, options] {
    std::string fault;
    for (const std::string& text : *axes) {
      if (fault.empty()) fault = read_axis(text, options);
    }
    return fault;
  });
}

}  // namespace fibshim::tools
