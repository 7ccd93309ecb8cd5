// fibshim suggest: begins a config folder for a recorded kernel: a pattern that recognises
// its launches, a definition of what they compute, and all that a solution needs except the kernel.
//
// What a recording cannot tell is chosen so that the pattern does not match too much: a value that
// never changed is required, and every buffer that may be written counts as written.

#include <filesystem>
#include <fstream>

#include <nlohmann/json.hpp>

#include "tools/commands/commands.h"
#include "tools/base/diagnostics_output.h"
#include "tools/base/json_input.h"
#include "tools/record/explanation.h"
#include "tools/record/recording_json.h"
#include "tools/record/suggestion.h"

namespace fibshim::tools {
namespace {

namespace fs = std::filesystem;

struct SuggestOptions {
  std::string recording;
  std::string kernel;
  std::string folder;
  std::string name;
  bool is_forced = false;
  bool wants_json = false;
};

// ---- writing

nlohmann::json match_of(const std::string& pattern) {
  const nlohmann::json value = parse_json(pattern);
  return value.is_object() && value.contains("match") ? value["match"] : nlohmann::json();
}

// Suggests names with a number if the folder uses the plain one for another kernel, that is, if its
// pattern there has another "match".
Suggestion suggest_free_name(const Recording& recording, const KernelRecord& kernel,
                             const SuggestOptions& options) {
  constexpr unsigned kMostOfOneName = 1000;
  for (unsigned number = 1;; ++number) {
    Suggestion suggestion = suggest(recording, kernel, options.name, number);
    const SuggestedFile& pattern = suggestion.files.front();
    const auto there = read_file(fs::path(options.folder) / pattern.path, kMaxJsonBytes);
    if (!there || match_of(*there) == match_of(pattern.text) || number == kMostOfOneName) {
      return suggestion;
    }
  }
}

// True if somebody has written the kernel there: it is never overwritten then.
bool is_written_kernel(const fs::path& path) {
  if (path.filename() != "kernel.cu" || !fs::exists(path)) return false;
  const auto text = read_file(path, kMaxJsonBytes);
  return !text || text->find(kUnwrittenKernel) == std::string::npos;
}

// Returns true if all files were written, except for a kernel that somebody has written. If a file
// exists already, writes none, unless --force is given.
bool write_files(const std::vector<SuggestedFile>& files, const SuggestOptions& options) {
  (void)umask(umask(0) | 022);  // files that others can write are not trusted
  for (const SuggestedFile& file : files) {
    const fs::path path = fs::path(options.folder) / file.path;
    if (options.is_forced || !fs::exists(path)) continue;
    print_message("suggest", "{} is there already; --force replaces it", printable(path.string()));
    return false;
  }
  for (const SuggestedFile& file : files) {
    const fs::path path = fs::path(options.folder) / file.path;
    if (is_written_kernel(path)) {
      print_message("suggest", "{} is kept: compare its parameters with solution.json.in",
                    printable(path.string()));
      continue;
    }
    std::error_code error;
    fs::create_directories(path.parent_path(), error);
    std::ofstream out(path, std::ios::binary | std::ios::trunc);
    out << file.text;
    out.close();
    if (!out) {
      print_message("suggest", "{}: cannot write it: {}", printable(path.string()),
                    strerror(errno));
      return false;
    }
    if (file.is_executable) {
      fs::permissions(path, fs::perms::owner_exec | fs::perms::group_exec | fs::perms::others_exec,
                      fs::perm_options::add, error);
    }
  }
  return true;
}

std::string words_of(const FittingLaunches& count) {
  return count.fitting == count.launches
             ? fmt::format("the pattern fits all of the {} recorded launches", count.launches)
             : fmt::format("the pattern fits {} of the {} recorded launches: see 'fibshim explain'",
                           count.fitting, count.launches);
}

bool print_result(const Suggestion& suggestion, const std::optional<FittingLaunches>& fitting,
                  const SuggestOptions& options) {
  const std::string build =
      fmt::format("{}/solutions/{}/build.sh", options.folder, suggestion.definition_name);
  if (options.wants_json) {
    nlohmann::ordered_json out;
    out["version"] = 1;
    out["folder"] = options.folder;
    out["label"] = suggestion.label;
    out["definition"] = suggestion.definition_name;
    out["files"] = nlohmann::ordered_json::array();
    for (const SuggestedFile& file : suggestion.files) out["files"].push_back(file.path);
    out["notes"] = suggestion.notes;
    if (fitting) {
      out["recorded_launches"] = fitting->launches;
      out["fitting_launches"] = fitting->fitting;
    }
    return print_json(out);
  }
  std::string out =
      fmt::format("pattern {}, definition {}\n", suggestion.label, suggestion.definition_name);
  for (const SuggestedFile& file : suggestion.files) {
    out += fmt::format("  {}/{}\n", printable(options.folder), file.path);
  }
  if (fitting) out += words_of(*fitting) + "\n";
  if (!suggestion.notes.empty()) out += "to look at:\n";
  for (const std::string& text : suggestion.notes) out += fmt::format("  {}\n", printable(text));
  out += fmt::format(
      "Write kernel.cu, run {0} with the GPU's architecture (sm_90), then\n"
      "  fibshim check {1}\n"
      "  fibshim run -c {1} -- PROGRAM\n",
      shell_quoted(build), shell_quoted(options.folder));
  return print_data(out);
}

}  // namespace

int suggest_command(int argc, const char* const* argv) {
  SuggestOptions options;
  CommandLine line("suggest", "Begins a config folder for a kernel that was recorded",
                   "[OPTIONS] -o DIR FILE KERNEL",
                   "0 fine; 1 the recording cannot be read, has no such kernel, or a file is there "
                   "already; 2 wrong usage.");
  line.positional("FILE", &options.recording, "what 'fibshim record' wrote").required();
  line.positional(
          "KERNEL", &options.kernel,
          "its number in 'fibshim record --summary FILE', its symbol, or a part of its name")
      .required();
  line.option("-o,--output", &options.folder, "DIR",
              "write into this folder; other files in it stay")
      .required();
  line.option("--name", &options.name, "NAME",
              "what the definition's name begins with (default: the kernel's)");
  line.flag("--force", &options.is_forced,
            "replace files that are there, but for a kernel.cu that is written");
  line.json(&options.wants_json);
  if (!line.parse(argc, argv)) return line.exit_code();

  const auto recording = read_recording(options.recording);
  if (!recording) {
    print_message("suggest", "{}: {}", printable(options.recording), printable(recording.error()));
    return kExitWrong;
  }
  std::string problem;
  const KernelRecord* const kernel = find_kernel(*recording, options.kernel, &problem);
  if (kernel == nullptr) {
    print_message("suggest", problem);
    return kExitWrong;
  }
  if (kernel->params.size() > kMaxParams) {
    print_message("suggest", "the kernel has {} parameters; a pattern takes {}",
                  kernel->params.size(), kMaxParams);
    return kExitWrong;
  }
  if (!kernel->has_params) {
    print_message("suggest",
                  "the driver did not tell the kernel's parameters (drivers from CUDA 12.4 on do)");
    return kExitWrong;
  }
  const Suggestion suggestion = suggest_free_name(*recording, *kernel, options);
  if (!write_files(suggestion.files, options)) return kExitWrong;
  FolderModel model;
  CheckOptions check;
  check.model = &model;
  const CheckReport report = check_folder(options.folder, check);
  std::optional<FittingLaunches> fitting;
  if (report.snapshot != nullptr) {
    fitting = count_fitting_launches(*report.snapshot, model, *kernel, suggestion.label);
  }
  if (report.error_count != 0) {
    print_message("suggest", "the folder has mistakes:\n{}", format_findings(report));
  }
  return print_result(suggestion, fitting, options) && report.error_count == 0 ? kExitFine
                                                                               : kExitWrong;
}

}  // namespace fibshim::tools
