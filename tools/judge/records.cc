#include "tools/judge/records.h"

#include <math.h>

#include <algorithm>
#include <filesystem>

#include "tools/base/terminal.h"
#include "tools/base/json_input.h"

namespace fibshim::judge {
namespace {

using Json = nlohmann::ordered_json;

Json number(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
  return value;
}

double gigabytes_per_second(int64_t bytes, double milliseconds) {
  return milliseconds > 0 ? static_cast<double>(bytes) / milliseconds / 1e6 : 0;
}

std::string key_of(const std::string& definition, const std::string& solution,
                   const std::string& uuid, const std::string& hardware, const std::string& mode,
                   const std::string& image, const std::string& baseline) {
  return fmt::format("{}\n{}\n{}\n{}\n{}\n{}\n{}", definition, solution, uuid, hardware, mode,
                     image, baseline);
}

// A folder's or author's name as one part of a path.
std::string path_part(std::string text) {
  for (char& c : text) {
    if (c == '/' || static_cast<unsigned char>(c) < 0x21) c = '_';
  }
  return text.empty() || text[0] == '.' ? "_" + text : text;
}

std::string text_at(const Json& object, const char* key) {
  const auto at = object.find(key);
  return at != object.end() && at->is_string() ? at->get<std::string>() : "";
}

}  // namespace

Json make_record(const Judged& judged, const RecordContext& context) {
  const CaseOutcome& outcome = judged.outcome;
  if (outcome.status == kSkipped) return nullptr;
  Json evaluation;
  evaluation["status"] = outcome.status;
  evaluation["environment"] = {{"hardware", context.device.name},
                               {"libs",
                                {{"fibshim", tools::kVersion},
                                 {"cuda", fmt::format("{}.{}", context.device.driver_version / 1000,
                                                      context.device.driver_version % 1000 / 10)},
                                 {"fibshim_mode", context.mode},
                                 {"fibshim_image", judged.image}}}};
  evaluation["timestamp"] = context.timestamp;
  evaluation["log"] = outcome.log;
  const bool has_passed = outcome.status == kPassed;
  evaluation["correctness"] = nullptr;
  if (has_passed || outcome.status == kIncorrect) {
    evaluation["correctness"] = {{"max_relative_error", number(outcome.max_relative_error)},
                                 {"max_absolute_error", number(outcome.max_absolute_error)},
                                 {"extra", {{"matched_ratio", outcome.matched_ratio}}}};
  }
  evaluation["performance"] = nullptr;
  if (has_passed) {
    const double reference = judged.baseline.latency_ms;
    const bool is_known = reference > 0 && outcome.latency_ms > 0;
    evaluation["performance"] = {
        {"latency_ms", outcome.latency_ms},
        {"reference_latency_ms", reference},
        {"speedup_factor", is_known ? reference / outcome.latency_ms : 0.0}};
    evaluation["fibshim"] = {
        {"baseline", judged.baseline.solution},
        {"bytes", outcome.bytes},
        {"gigabytes_per_second", gigabytes_per_second(outcome.bytes, outcome.latency_ms)},
        {"copy_gigabytes_per_second", context.copy_bytes_per_second / 1e9},
        {"trial_ms", outcome.trial_ms},
        {"p10_ms", outcome.lowest_ms},
        {"p90_ms", outcome.highest_ms}};
  } else if (!judged.baseline.solution.empty()) {
    evaluation["fibshim"] = {{"baseline", judged.baseline.solution}};
  }
  return {{"definition", judged.definition},
          {"workload",
           {{"axes", judged.workload.axes},
            {"inputs", judged.workload.inputs},
            {"uuid", judged.workload.uuid}}},
          {"solution", judged.solution},
          {"evaluation", evaluation}};
}

std::string record_key(const Json& record) {
  const auto child = [](const Json& object, const char* key) {
    const auto at = object.find(key);
    return at != object.end() && at->is_object() ? *at : Json::object();
  };
  const Json evaluation = child(record, "evaluation");
  const Json environment = child(evaluation, "environment");
  const Json libs = child(environment, "libs");
  return key_of(text_at(record, "definition"), text_at(record, "solution"),
                text_at(child(record, "workload"), "uuid"), text_at(environment, "hardware"),
                text_at(libs, "fibshim_mode"), text_at(libs, "fibshim_image"),
                text_at(child(evaluation, "fibshim"), "baseline"));
}

std::string record_key(const Judged& judged, const RecordContext& context) {
  return key_of(judged.definition, judged.solution, judged.workload.uuid, context.device.name,
                context.mode, judged.image, judged.baseline.solution);
}

void parse_records(const std::string& file, std::string_view text, std::vector<Json>* records,
                   std::vector<std::string>* faults) {
  size_t line_number = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line = text.substr(begin, end - begin);
    begin = end + 1;
    ++line_number;
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    Json record = tools::parse_json<Json>(line);
    if (record.is_discarded() || !record.is_object()) {
      faults->push_back(fmt::format("{}:{}: not a JSON object", file, line_number));
      continue;
    }
    const auto evaluation = record.find("evaluation");
    if (evaluation != record.end() && evaluation->is_object()) {
      records->push_back(std::move(record));
    }
  }
}

bool is_complete(const Json& record) {
  const auto has_text = [](const Json& object, const char* key) {
    const auto at = object.find(key);
    return at != object.end() && at->is_string();
  };
  const auto evaluation = record.find("evaluation");
  const auto workload = record.find("workload");
  if (evaluation == record.end() || workload == record.end() || !workload->is_object()) {
    return false;
  }
  const auto axes = workload->find("axes");
  return has_text(record, "definition") && has_text(record, "solution") &&
         has_text(*evaluation, "status") && has_text(*evaluation, "log") &&
         axes != workload->end() && axes->is_object();
}

std::vector<Json> read_records(const std::string& path, std::vector<std::string>* faults) {
  namespace fs = std::filesystem;
  std::vector<Json> records;
  std::vector<std::string> files;
  std::error_code error;
  if (fs::is_directory(path, error)) {
    for (fs::recursive_directory_iterator at(path, error), end; !error && at != end;
         at.increment(error)) {
      if (at->path().extension() == ".jsonl") files.push_back(at->path().string());
    }
    std::sort(files.begin(), files.end());
  } else if (fs::exists(path, error)) {
    files.push_back(path);
  }
  for (const std::string& file : files) {
    const auto text = read_file(file, kMaxImageBytes);
    if (!text) {
      faults->push_back(text.error().message);
      continue;
    }
    parse_records(file, *text, &records, faults);
  }
  return records;
}

std::string record_file(const std::string& output, const Judged& judged) {
  constexpr std::string_view kExtension = ".jsonl";
  if (output.size() > kExtension.size() &&
      output.compare(output.size() - kExtension.size(), kExtension.size(), kExtension) == 0) {
    return output;
  }
  return fmt::format("{}/traces/{}/{}/{}.jsonl", output, path_part(judged.author),
                     path_part(judged.op_type), path_part(judged.definition));
}

Result<void> append_record(const std::string& file, const Json& record) {
  const auto failed = [&](const std::string& why) {
    return fail(ErrorCode::operating_system, file + ": " + why);
  };
  std::error_code error;
  const std::filesystem::path folder = std::filesystem::path(file).parent_path();
  if (!folder.empty()) std::filesystem::create_directories(folder, error);
  const tools::FileDescriptor fd(open(file.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  if (!fd) return failed(strerror(errno));
  std::string line;
  struct stat status {};
  char last = '\n';
  if (fstat(fd.get(), &status) == 0 && status.st_size > 0 &&
      pread(fd.get(), &last, 1, status.st_size - 1) != 1) {
    return failed(strerror(errno));
  }
  if (last != '\n') {
    // Half a record would make the whole file unreadable to others; a whole one lacks its end only.
    const auto text = read_file(file, kMaxImageBytes);
    if (!text) return tl::unexpected<Error>(text.error());
    const size_t begin = text->rfind('\n') + 1;
    if (!tools::parse_json(std::string_view(*text).substr(begin)).is_discarded()) {
      line += '\n';
    } else if (ftruncate(fd.get(), static_cast<off_t>(begin)) != 0) {
      return failed(strerror(errno));
    }
  }
  line += record.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
  if (write(fd.get(), line.data(), line.size()) != static_cast<ssize_t>(line.size())) {
    return failed(strerror(errno));
  }
  return {};
}

}  // namespace fibshim::judge
