// fibshim explain: what a config folder would do with the launches of a recorded kernel, and which clause
// prevents a replacement. Runs nothing on a GPU.
#include <nlohmann/json.hpp>

#include "tools/base/diagnostics_output.h"
#include "tools/commands/commands.h"
#include "tools/record/explanation.h"
#include "tools/record/recording_json.h"

namespace fibshim::tools {

int explain_command(int argc, const char* const* argv) {
  CommandLine line("explain",
                   "Says what a config folder would do with a recorded kernel's launches",
                   "[OPTIONS] -c DIR FILE KERNEL",
                   "0 every launch would be redirected; 1 one would not, or a file cannot be read; "
                   "2 wrong usage.");
  std::vector<std::string> words;
  std::string config;
  bool wants_json = false;
  line.positional(
      "FILE", &words,
      "a recording, and a kernel in it: its number in the summary, its symbol or a part "
      "of its name");
  line.option("-c,--config", &config, "DIR", "config folder");
  line.json(&wants_json);
  line.check([&]() -> std::string {
    if (config.empty()) return "-c: name a config folder";
    return words.size() == 2 ? "" : "name a recording and a kernel";
  });
  if (!line.parse(argc, argv)) return line.exit_code();

  const auto recording = read_recording(words[0]);
  if (!recording) {
    print_message("explain", "{}: {}", printable(words[0]), printable(recording.error()));
    return kExitWrong;
  }
  std::string problem;
  const KernelRecord* const kernel = find_kernel(*recording, words[1], &problem);
  if (kernel == nullptr) {
    print_message("explain", problem);
    return kExitWrong;
  }
  FolderModel model;
  CheckOptions options;
  options.model = &model;
  const CheckReport report = check_folder(config, options);
  if (report.snapshot == nullptr) {
    print_message("explain", "the config folder has mistakes:\n{}", format_findings(report));
    return kExitWrong;
  }
  const auto launches = explain_launches(*report.snapshot, model, *kernel);
  std::string text = printable(function_name(kernel->symbol)) + "\n";
  nlohmann::ordered_json document = {
      {"version", 1}, {"symbol", kernel->symbol}, {"launches", nlohmann::ordered_json::array()}};
  bool are_hits = true;
  for (const ExplainedLaunch& one : launches) {
    are_hits = are_hits && one.outcome == "hit";
    text += fmt::format("  {}: {}{}{}\n    {}\n", one.launch, one.outcome,
                        one.pattern.empty() ? "" : ", pattern ", printable(one.pattern),
                        printable(one.why));
    document["launches"].push_back({{"launch", one.launch},
                                    {"pattern", or_null(one.pattern)},
                                    {"outcome", one.outcome},
                                    {"why", one.why}});
  }
  const bool is_written = wants_json ? print_json(document) : print_data(text);
  return is_written && are_hits ? kExitFine : kExitWrong;
}

}  // namespace fibshim::tools
