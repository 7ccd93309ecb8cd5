#include "tools/commands/record_views.h"

#include <algorithm>
#include <filesystem>

#include <nlohmann/json.hpp>

#include "loader/check/check.h"
#include "tools/base/command_line.h"
#include "tools/base/diagnostics_output.h"
#include "tools/base/folder_list.h"
#include "tools/base/terminal.h"
#include "tools/record/comparison.h"
#include "tools/record/recording_json.h"
#include "tools/record/summary.h"

namespace fibshim::tools {
namespace {

namespace fs = std::filesystem;

// The folders whose patterns are compared: the named ones, else those that the program used.
std::string config_of(const std::string& named, const Recording& recording) {
  if (!named.empty()) return named;
  std::string missing;
  for (const RecordedProcess& process : recording.processes) {
    const std::vector<std::string> folders = split_folders(process.config);
    const auto is_missing = [](const std::string& folder) {
      return !fs::is_directory(path_of_folder(folder));
    };
    const auto first = std::ranges::find_if(folders, is_missing);
    if (first != folders.end()) {
      missing = path_of_folder(*first);
    } else if (!folders.empty()) {
      return process.config;
    }
  }
  if (!missing.empty()) {
    print_message("record", "the program's config folder {} is not here: -c DIR compares patterns",
                  printable(missing));
  }
  return "";
}

bool was_in_force(const std::string& config, const Recording& recording) {
  const std::vector<std::string> folders = split_folders(config);
  const auto is_same = [](const std::string& one, const std::string& other) {
    std::error_code error;
    return one == other || fs::equivalent(path_of_folder(one), path_of_folder(other), error);
  };
  return std::ranges::any_of(recording.processes, [&](const RecordedProcess& process) {
    return std::ranges::equal(split_folders(process.config), folders, is_same);
  });
}

std::map<std::string, std::string> replacements_of(const Snapshot& snapshot) {
  std::map<std::string, std::string> out;
  const Solution* const solutions = snapshot.begin(snapshot.solutions);
  for (uint32_t i = 0; i < snapshot.solutions.count; ++i) {
    std::string& definitions = out[snapshot.text(solutions[i].kernel)];
    const std::string definition = snapshot.text(solutions[i].definition);
    if (("," + definitions + ",").find("," + definition + ",") != std::string::npos) continue;
    definitions += (definitions.empty() ? "" : ",") + definition;
  }
  return out;
}

}  // namespace

void report_losses(const Recording& recording) {
  for (const RefusedFile& refused : recording.refused) {
    print_message("record", "{}: {}", printable(refused.file), printable(refused.reason));
  }
  uint64_t dropped = 0;
  uint64_t unknown = 0;
  for (const RecordedProcess& process : recording.processes) {
    dropped += process.dropped_launches;
    unknown += process.unknown_launches;
  }
  if (dropped != 0) {
    print_message("record", "{} launches are of kernels that found no room: --limit gives more",
                  dropped);
  }
  if (unknown != 0) {
    print_message("record", "{} launches are of kernels that the driver has no name for", unknown);
  }
  if (recording.kernels_left_out != 0) {
    print_message("record", "{} left out of the file: --limit gives more room",
                  counted(recording.kernels_left_out, "kernel"));
  }
}

int summarize_recording(const std::string& path, const std::string& config, uint32_t top,
                        bool wants_json) {
  auto recording = read_recording(path);
  if (!recording) {
    print_message("record", "{}: {}", printable(path), printable(recording.error()));
    return kExitWrong;
  }
  Summary summary{std::move(*recording), "", {}, {}};
  report_losses(summary.recording);
  summary.config = config_of(config, summary.recording);
  summary.fits.resize(summary.recording.kernels.size());
  if (!summary.config.empty()) {
    const CheckReport report = check_folder(summary.config);
    if (report.snapshot == nullptr) {
      print_message("record", "the config folder has mistakes:\n{}", format_findings(report));
      return kExitWrong;
    }
    summary.replacements = replacements_of(*report.snapshot);
    for (size_t i = 0; i < summary.fits.size(); ++i) {
      summary.fits[i] = fit_patterns(*report.snapshot, summary.recording.kernels[i]);
      // The recorded outcomes of the launches come from another folder.
      if (was_in_force(summary.config, summary.recording)) continue;
      for (PatternFit& fit : summary.fits[i]) {
        if (fit.fits) fit.why.clear();
      }
    }
  }
  const bool is_written =
      wants_json ? print_json(summary_json(summary, top)) : print_data(summary_text(summary, top));
  return is_written && summary.recording.refused.empty() ? kExitFine : kExitWrong;
}

int compare_two_recordings(const std::vector<std::string>& paths, double tolerance_percent,
                           bool wants_json) {
  std::vector<Recording> recordings;
  for (const std::string& path : paths) {
    auto recording = read_recording(path);
    if (!recording) {
      print_message("record", "{}: {}", printable(path), printable(recording.error()));
      return kExitWrong;
    }
    report_losses(*recording);
    if (!recording->refused.empty()) return kExitWrong;
    recordings.push_back(std::move(*recording));
  }
  const Comparison comparison = compare_recordings(recordings[0], recordings[1], tolerance_percent);
  const bool is_written = wants_json ? print_json(comparison_json(comparison))
                                     : print_data(comparison_text(comparison));
  return is_written && comparison.is_equal() ? kExitFine : kExitWrong;
}

}  // namespace fibshim::tools
