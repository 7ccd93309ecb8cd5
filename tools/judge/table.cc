// Records as people read them: see judge.h.
#include <math.h>

#include <algorithm>

#include "tools/judge/judge.h"
#include "tools/base/terminal.h"

namespace fibshim::judge {
namespace {

using Json = nlohmann::ordered_json;

double number_at(const Json& object, const char* key) {
  if (!object.is_object()) return 0;
  const auto at = object.find(key);
  if (at == object.end()) return 0;
  if (at->is_string()) return at->get<std::string>() == "NaN" ? NAN : INFINITY;
  return at->is_number() ? at->get<double>() : 0;
}

Json child(const Json& object, const char* key) {
  const auto at = object.find(key);
  return at == object.end() ? Json() : *at;
}

std::string microseconds(double milliseconds) {
  const double value = milliseconds * 1e3;
  if (!(value > 0)) return "-";
  return value < 100 ? fmt::format("{:.2f}", value) : fmt::format("{:.1f}", value);
}

std::string error_words(const Json& correctness, const char* key) {
  return correctness.is_object() ? fmt::format("{:.1e}", number_at(correctness, key)) : "-";
}

std::string axes_words(const Json& record) {
  std::string words;
  for (const auto& [name, value] : record["workload"]["axes"].items()) {
    words += fmt::format("{}{}={}", words.empty() ? "" : " ", name, value.dump());
  }
  return words;
}

}  // namespace

std::string format_records(const std::vector<Json>& records, bool is_bench) {
  if (records.empty()) return "";
  std::vector<std::vector<std::string>> rows;
  if (is_bench) {
    rows.push_back({"DEFINITION", "AXES", "STATUS", ">US", ">P10", ">P90", ">BASELINE", ">SPEED-UP",
                    ">GB/S", ">OF COPY"});
  } else {
    rows.push_back({"DEFINITION", "AXES", "STATUS", ">MAX ABS", ">MAX REL", ">MATCHED", ">US"});
  }
  std::string faults;
  for (const Json& record : records) {
    const Json evaluation = record["evaluation"];
    const std::string status = evaluation["status"].get<std::string>();
    const Json correctness = child(evaluation, "correctness");
    const Json performance = child(evaluation, "performance");
    const Json ours = child(evaluation, "fibshim");
    const double latency = number_at(performance, "latency_ms");
    std::vector<std::string> row = {tools::printable(record["definition"].get<std::string>()),
                                    tools::printable(axes_words(record)), status};
    if (is_bench) {
      const double speedup = number_at(performance, "speedup_factor");
      const double rate = number_at(ours, "gigabytes_per_second");
      const double copy = number_at(ours, "copy_gigabytes_per_second");
      row.push_back(microseconds(latency));
      row.push_back(microseconds(number_at(ours, "p10_ms")));
      row.push_back(microseconds(number_at(ours, "p90_ms")));
      row.push_back(microseconds(number_at(performance, "reference_latency_ms")));
      row.push_back(speedup > 0 ? fmt::format("{:.2f}", speedup) : "-");
      row.push_back(rate > 0 ? fmt::format("{:.0f}", rate) : "-");
      row.push_back(rate > 0 && copy > 0 ? fmt::format("{:.0f} %", 100 * rate / copy) : "-");
    } else {
      const Json extra = correctness.is_object() ? child(correctness, "extra") : Json();
      row.push_back(error_words(correctness, "max_absolute_error"));
      row.push_back(error_words(correctness, "max_relative_error"));
      row.push_back(extra.is_object() ? fmt::format("{:.6g}", number_at(extra, "matched_ratio"))
                                      : "-");
      row.push_back(microseconds(latency));
    }
    rows.push_back(std::move(row));
    if (status == kPassed) continue;
    faults += fmt::format("{} ({}): {}\n", tools::printable(record["solution"].get<std::string>()),
                          tools::printable(axes_words(record)),
                          tools::printable(evaluation["log"].get<std::string>()));
  }
  return tools::format_table(rows) + (faults.empty() ? "" : "\n" + faults);
}

std::string format_verdict(const std::vector<Json>& records, size_t skipped, bool is_bench) {
  size_t passed = 0, compared = 0;
  double logarithms = 0, worst = INFINITY;
  for (const Json& record : records) {
    const Json evaluation = record["evaluation"];
    if (evaluation["status"] != kPassed) continue;
    ++passed;
    const double speedup = number_at(child(evaluation, "performance"), "speedup_factor");
    if (speedup <= 0) continue;
    ++compared;
    logarithms += log(speedup);
    worst = std::min(worst, speedup);
  }
  std::string words = fmt::format("{} cases: {} passed, {} failed", records.size(), passed,
                                  records.size() - passed);
  if (skipped > 0) words += fmt::format(", {} outside what the solution takes", skipped);
  if (is_bench && compared > 0) {
    words += fmt::format("; speed-up over the baseline: geometric mean {:.2f}, least {:.2f}",
                         exp(logarithms / static_cast<double>(compared)), worst);
  }
  return words + "\n";
}

}  // namespace fibshim::judge
