#include "tools/commands/judge_options.h"

#include <charconv>
#include <string_view>

#include <fmt/format.h>

namespace fibshim::tools {

JudgeCommandLine::JudgeCommandLine(CLI::App* app, judge::JudgeOptions* options)
    : options_(options) {
  app->add_option("DIR", options->folder, "config folder")->type_name("")->required();
  app->add_option("DEFINITION", options->definitions, "only these definitions")->type_name("");
  app->add_option("--axis", axes_, "values of a variable axis: batch_size=1,7,64")
      ->type_name("NAME=N,N...")
      ->allow_extra_args(false);
  app->add_option("--workloads", options->workloads,
                  "the dataset whose workloads/ are recorded cases (default: DIR)")
      ->type_name("DIR");
  app->add_option("--atol", options->trial.atol, "absolute tolerance")
      ->type_name("X")
      ->check(CLI::NonNegativeNumber);
  app->add_option("--rtol", options->trial.rtol, "relative tolerance")
      ->type_name("X")
      ->check(CLI::NonNegativeNumber);
  app->add_option("--required-matched-ratio", options->trial.required_matched_ratio,
                  "the share of elements that must be within either")
      ->type_name("X")
      ->check(CLI::Range(0.0, 1.0));
  app->add_option("--python", options->trial.python,
                  "a Python with torch: judge by the definitions' own references")
      ->type_name("PROGRAM");
  app->add_option("--device", options->trial.device, "the GPU's number")
      ->type_name("N")
      ->check(CLI::NonNegativeNumber);
  app->add_option("--timeout", options->timeout_s, "seconds that one case may take")
      ->type_name("S")
      ->check(CLI::PositiveNumber);
  app->add_option("-o,--output", options->output,
                  "add records to this .jsonl file, or below this folder's traces/; cases that it "
                  "has are not run again")
      ->type_name("PATH");
  app->add_flag("--json", options->wants_json, "print JSON");
  app->add_flag("-q,--quiet", options->is_quiet, "no progress and no notes on stderr");
}

std::string JudgeCommandLine::finish() {
  for (const std::string& text : axes_) {
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
    if (values.empty() || equals == 0) {
      return fmt::format("--axis takes NAME=N,N..., not '{}'", text);
    }
    options_->axes[text.substr(0, equals)] = std::move(values);
  }
  return "";
}

}  // namespace fibshim::tools
