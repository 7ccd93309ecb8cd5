#include "tools/judge/kept_times.h"

#include <algorithm>

#include <nlohmann/json.hpp>

#include "tools/base/files.h"
#include "tools/base/json_input.h"
#include "tools/base/terminal.h"

namespace fibshim::judge {
namespace {

using Json = nlohmann::ordered_json;
using tools::number_at;
using tools::print_message;
using tools::printable;
using tools::text_at;

// Reads milliseconds, and rounds to a nanosecond.
double microseconds(const Json& record, const char* path) {
  return round(number_at(record, path) * 1e6) / 1e3;
}

}  // namespace

bool KeptTimes::read(const FolderModel& model, const char* command) {
  Diagnostics found;
  for (const FolderListing& folder : model.folders) {
    File& file = files_.emplace_back();
    file.path = folder.shown(kMeasurementsFile);
    if (access(file.path.c_str(), F_OK) != 0) continue;
    const auto text = read_file(file.path, kMaxJsonBytes);
    if (!text) {
      print_message(command, printable(text.error().message));
      return false;
    }
    file.kept = parse_measurements(*text, &file.path, &found);
  }
  for (const Diagnostic& one : found.all()) {
    print_message(command, printable(format_diagnostic(one)));
  }
  return found.error_count() == 0;
}

bool KeptTimes::add(const FolderModel& model, const SolutionSpec& solution,
                    const RecordContext& context, std::span<const Json> records,
                    const char* command) {
  std::map<std::string, Measurement> by_original;
  for (const Json& record : records) {
    const std::string status = text_at(record, "/evaluation/status");
    const double us = microseconds(record, "/evaluation/performance/latency_ms");
    if ((status != kPassed && status != kNotJudged) || !(us > 0)) continue;
    const double original_us = microseconds(record, "/evaluation/performance/reference_latency_ms");
    const std::string original =
        original_us > 0 ? text_at(record, "/evaluation/fibshim/baseline") : "";
    Measurement& measurement = by_original[original];
    const std::string date = text_at(record, "/evaluation/timestamp").substr(0, 10);
    measurement = {solution.definition.name,
                   solution.name.name,
                   images_digest(model, solution),
                   context.device.name,
                   context.device.sm,
                   cuda_version(context.device.driver_version),
                   std::max(measurement.date, date),
                   context.mode,
                   original,
                   std::move(measurement.times)};
    measurement.times.push_back({record["workload"]["axes"].get<AxisValues>(), us,
                                 microseconds(record, "/evaluation/fibshim/p10_ms"),
                                 microseconds(record, "/evaluation/fibshim/p90_ms"), original_us});
  }
  if (by_original.empty()) return true;
  File& file = files_[solution.folder];
  for (auto& [original, measurement] : by_original) {
    count_ += measurement.times.size();
    merge_measurement(std::move(measurement), &file.kept);
  }
  return write(file, command);
}

bool KeptTimes::add_from(const std::string& path, const FolderModel& model,
                         const std::vector<uint32_t>& chosen, const char* command) {
  const auto text = read_file(path, kMaxJsonBytes);
  if (!text) {
    print_message(command, printable(text.error().message));
    return false;
  }
  Diagnostics found;
  std::vector<Measurement> measurements = parse_measurements(*text, &path, &found);
  for (const Diagnostic& one : found.all()) {
    print_message(command, printable(format_diagnostic(one)));
  }
  if (found.error_count() > 0) return false;
  for (Measurement& one : measurements) {
    const auto solution = std::ranges::find_if(model.solutions, [&](const SolutionSpec& each) {
      return each.name.name == one.solution && each.definition.name == one.definition;
    });
    if (solution == model.solutions.end()) {
      print_message(command, printable(path + ": the folder has no solution \"" + one.solution +
                                       "\" of \"" + one.definition + "\""));
      return false;
    }
    const auto index = static_cast<uint32_t>(solution - model.solutions.begin());
    if (std::ranges::find(chosen, index) == chosen.end()) continue;
    one.images = images_digest(model, *solution);
    count_ += one.times.size();
    merge_measurement(std::move(one), &files_[solution->folder].kept);
  }
  return std::ranges::all_of(
      files_, [&](const File& file) { return file.kept.empty() || write(file, command); });
}

bool KeptTimes::write(const File& file, const char* command) const {
  const std::string why = tools::write_file(file.path, measurements_text(file.kept));
  if (!why.empty()) print_message(command, printable(file.path + ": " + why));
  return why.empty();
}

}  // namespace fibshim::judge
