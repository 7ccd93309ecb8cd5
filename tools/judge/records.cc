#include "tools/judge/records.h"

#include <filesystem>

#include <nlohmann/json.hpp>

#include "tools/base/terminal.h"
#include "tools/base/json_input.h"

namespace fibshim::judge {
namespace {

using Json = nlohmann::ordered_json;
using tools::text_at;

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

// A name from a record, made usable as one part of a path.
std::string path_part(std::string text) {
  for (char& c : text) {
    if (c == '/' || static_cast<unsigned char>(c) < 0x21) c = '_';
  }
  return text.empty() || text[0] == '.' ? "_" + text : text;
}

ReadRecord add_evaluations_to(std::vector<Json>* records) {
  return [records](Json record) {
    const Json* const evaluation = tools::find_at(record, "/evaluation");
    if (evaluation != nullptr && evaluation->is_object()) records->push_back(std::move(record));
    return "";
  };
}

}  // namespace

std::string cuda_version(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

Json device_to_json(const DeviceInfo& device, int number) {
  return {{"name", device.name},
          {"number", number},
          {"uuid", device.uuid},
          {"sm", device.sm},
          {"driver", cuda_version(device.driver_version)}};
}

Json make_record(const Judged& judged, const RecordContext& context) {
  const CaseOutcome& outcome = judged.outcome;
  if (outcome.status == kSkipped) return nullptr;
  Json evaluation;
  evaluation["status"] = outcome.status;
  evaluation["environment"] = {{"hardware", context.device.name},
                               {"libs",
                                {{"fibshim", tools::kVersion},
                                 {"cuda", cuda_version(context.device.driver_version)},
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
  if (has_passed || (outcome.status == kNotJudged && outcome.latency_ms > 0)) {
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
            {"inputs", *judged.workload.inputs},
            {"uuid", judged.workload.uuid}}},
          {"solution", judged.solution},
          {"evaluation", evaluation}};
}

std::string record_key(const Json& record) {
  return key_of(text_at(record, "/definition"), text_at(record, "/solution"),
                text_at(record, "/workload/uuid"),
                text_at(record, "/evaluation/environment/hardware"),
                text_at(record, "/evaluation/environment/libs/fibshim_mode"),
                text_at(record, "/evaluation/environment/libs/fibshim_image"),
                text_at(record, "/evaluation/fibshim/baseline"));
}

std::string record_key(const Judged& judged, const RecordContext& context) {
  return key_of(judged.definition, judged.solution, judged.workload.uuid, context.device.name,
                context.mode, judged.image, judged.baseline.solution);
}

bool is_complete(const Json& record) {
  const auto has_text = [&](const char* path) {
    const Json* const text = tools::find_at(record, path);
    return text != nullptr && text->is_string();
  };
  const Json* const axes = tools::find_at(record, "/workload/axes");
  return axes != nullptr && axes->is_object() && has_text("/definition") && has_text("/solution") &&
         has_text("/evaluation/status") && has_text("/evaluation/log");
}

std::vector<Json> read_records(const std::string& path, std::vector<std::string>* faults) {
  std::vector<Json> records;
  read_jsonl(path, add_evaluations_to(&records), faults);
  return records;
}

void parse_records(const std::string& file, std::string_view text, std::vector<Json>* records,
                   std::vector<std::string>* faults) {
  parse_jsonl(file, text, add_evaluations_to(records), faults);
}

std::string record_file(const std::string& output, const Judged& judged) {
  if (output.size() > 6 && output.ends_with(".jsonl")) return output;
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
    // An incomplete record would make the file unreadable for others. A complete one lacks its end.
    const std::string text = FIBSHIM_TRY(read_file(file, kMaxImageBytes));
    const size_t begin = text.rfind('\n') + 1;
    if (!tools::parse_json(std::string_view(text).substr(begin)).is_discarded()) {
      line += '\n';
    } else if (ftruncate(fd.get(), static_cast<off_t>(begin)) != 0) {
      return failed(strerror(errno));
    }
  }
  line += tools::json_line(record) + "\n";
  if (write(fd.get(), line.data(), line.size()) != static_cast<ssize_t>(line.size())) {
    return failed(strerror(errno));
  }
  return {};
}

}  // namespace fibshim::judge
