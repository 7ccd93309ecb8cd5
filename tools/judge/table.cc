// Prints records for people: see judge.h.

#include <nlohmann/json.hpp>

#include "tools/base/json_input.h"
#include "tools/judge/judge.h"
#include "tools/base/terminal.h"

namespace fibshim::judge {
namespace {

using Json = nlohmann::ordered_json;
using tools::find_at;
using tools::number_at;
using tools::printable;
using tools::text_at;

std::string microseconds(double milliseconds) {
  const double value = milliseconds * 1e3;
  if (!(value > 0)) return "-";
  return value < 100 ? fmt::format("{:.2f}", value) : fmt::format("{:.1f}", value);
}

}  // namespace

std::string axes_words(const Json& record) {
  std::string words;
  const Json* const axes = find_at(record, "/workload/axes");
  if (axes == nullptr || !axes->is_object()) return words;
  for (const auto& [name, value] : axes->items()) {
    words += fmt::format("{}{}={}", words.empty() ? "" : " ", name, tools::json_line(value));
  }
  return words;
}

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
  std::map<std::string, std::vector<std::string>> not_judged;  // reason -> solutions
  for (const Json& record : records) {
    const auto text = [&](const char* path) { return printable(text_at(record, path)); };
    const auto number = [&](const char* path) { return number_at(record, path); };
    const auto us = [&](const char* path) { return microseconds(number(path)); };
    const std::string axes = printable(axes_words(record));
    const std::string status = text("/evaluation/status");
    const std::string latency = us("/evaluation/performance/latency_ms");
    std::vector<std::string> row = {text("/definition"), axes,
                                    status == kNotJudged ? "NOT JUDGED" : status};
    if (is_bench) {
      const double speedup = number("/evaluation/performance/speedup_factor");
      const double rate = number("/evaluation/fibshim/gigabytes_per_second");
      const double copy = number("/evaluation/fibshim/copy_gigabytes_per_second");
      row.insert(row.end(),
                 {latency, us("/evaluation/fibshim/p10_ms"), us("/evaluation/fibshim/p90_ms"),
                  us("/evaluation/performance/reference_latency_ms"),
                  speedup > 0 ? fmt::format("{:.2f}", speedup) : "-",
                  rate > 0 ? fmt::format("{:.0f}", rate) : "-",
                  rate > 0 && copy > 0 ? fmt::format("{:.0f} %", 100 * rate / copy) : "-"});
    } else {
      const auto error = [&](const char* parent, const char* path, const char* format) {
        const Json* const found = find_at(record, parent);
        return found != nullptr && found->is_object()
                   ? fmt::format(fmt::runtime(format), number(path))
                   : "-";
      };
      constexpr char kErrors[] = "/evaluation/correctness";
      row.insert(row.end(), {error(kErrors, "/evaluation/correctness/max_absolute_error", "{:.1e}"),
                             error(kErrors, "/evaluation/correctness/max_relative_error", "{:.1e}"),
                             error("/evaluation/correctness/extra",
                                   "/evaluation/correctness/extra/matched_ratio", "{:.6g}"),
                             latency});
    }
    if (status == kNotJudged) {
      not_judged[text("/evaluation/log")].push_back(text("/solution"));
      if (axes.empty()) continue;
    }
    rows.push_back(std::move(row));
    if (status == kPassed || status == kNotJudged) continue;
    faults += fmt::format("{} ({}): {}\n", text("/solution"), axes, text("/evaluation/log"));
  }
  // One reason often applies to many solutions.
  for (auto& [why, names] : not_judged) {
    names.erase(std::unique(names.begin(), names.end()), names.end());
    const size_t left_out = names.size() - std::min<size_t>(names.size(), 3);
    names.resize(names.size() - left_out);
    faults += fmt::format("{}{}: not judged: {}\n", fmt::join(names, ", "),
                          left_out == 0 ? "" : fmt::format(" and {} more", left_out), why);
  }
  const std::string table = rows.size() > 1 ? tools::format_table(rows) : "";
  return table + (faults.empty() ? "" : "\n" + faults);
}

std::string format_verdict(const std::vector<Json>& records, size_t skipped, bool is_bench) {
  size_t passed = 0, compared = 0, not_judged = 0;
  double logarithms = 0, worst = INFINITY;
  for (const Json& record : records) {
    const std::string status = text_at(record, "/evaluation/status");
    not_judged += status == kNotJudged;
    if (status != kPassed) continue;
    ++passed;
    const double speedup = number_at(record, "/evaluation/performance/speedup_factor");
    if (speedup <= 0) continue;
    ++compared;
    logarithms += log(speedup);
    worst = std::min(worst, speedup);
  }
  std::string words =
      fmt::format("{}: {} passed, {} failed", tools::counted(records.size(), "case"), passed,
                  records.size() - passed - not_judged);
  if (not_judged > 0) words += fmt::format(", {} not judged", not_judged);
  if (skipped > 0) words += fmt::format(", {} outside what the solution takes", skipped);
  if (is_bench && compared > 0) {
    words += fmt::format("; speed-up over the baseline: geometric mean {:.2f}, least {:.2f}",
                         exp(logarithms / static_cast<double>(compared)), worst);
  }
  return words + "\n";
}

}  // namespace fibshim::judge
