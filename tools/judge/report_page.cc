#include "tools/judge/report_page.h"

#include <nlohmann/json.hpp>

#include "tools/base/json_input.h"
#include "tools/judge/judge.h"
#include "tools/base/terminal.h"

namespace fibshim::judge {
namespace {

using Json = nlohmann::ordered_json;

// The numbers that an axis can show; a record may contain any number.
constexpr double kLeastShown = 1e-12, kMostShown = 1e15;
bool can_be_shown(double value) { return value >= kLeastShown && value <= kMostShown; }

constexpr double kWidth = 880, kLeft = 250, kRight = 70, kRowHeight = 24, kTop = 34, kBottom = 36;

// Text has a contrast of 7 or more in light and dark. Marks differ in shape as well as in colour.
constexpr char kStyle[] = R"css(
:root{color-scheme:light dark;--ink:#1b1f24;--paper:#fff;--faint:#5a6470;--line:#d0d7de;--mark:#0a58ca;--mean:#8a3800;--bad:#a40e26}
@media(prefers-color-scheme:dark){:root{--ink:#e6edf3;--paper:#0d1117;--faint:#9aa5b1;--line:#30363d;--mark:#6cb0ff;--mean:#ffb77c;--bad:#ff8f9c}}
body{margin:0 auto;max-width:60rem;padding:1.5rem 1rem;font:16px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper)}
h1{font-size:1.6rem}h2{font-size:1.2rem;margin-top:2.2rem}
p.note{color:var(--faint)}
svg{width:100%;height:auto;font:12px system-ui,sans-serif}
svg text{fill:var(--ink)}svg .tick{fill:var(--faint)}
svg .grid{stroke:var(--line)}svg .one{stroke:var(--ink);stroke-dasharray:5 4}
svg .dot{fill:var(--mark);fill-opacity:.7}svg .mean{stroke:var(--mean);stroke-width:3}
.scroll{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-size:.85rem}
th,td{text-align:left;padding:.25rem .6rem;border-bottom:1px solid var(--line);white-space:nowrap}
td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}
td.log{white-space:normal;min-width:16rem}.bad{color:var(--bad);font-weight:600}
summary{cursor:pointer;padding:.3rem 0}
)css";

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : tools::printable(text)) {
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&quot;"; break;
      default: out += c;
    }
  }
  return out;
}

std::string shown(const Json& record, const char* path, const char* format) {
  const Json* const value = tools::find_at(record, path);
  if (value == nullptr || value->is_null()) return "";
  if (value->is_string()) return escaped(value->get<std::string>());  // "Infinity", "NaN"
  return value->is_number() ? fmt::format(fmt::runtime(format), value->get<double>()) : "";
}

struct Row {
  std::string definition, solution, axes, status, log, hardware, baseline, timestamp;
  double latency_ms, reference_ms, speedup, rate, copy_rate;
  std::string max_absolute_error, max_relative_error;
};

Row make_row(const Json& record) {
  const auto text = [&](const char* path) { return tools::text_at(record, path); };
  const auto number = [&](const char* path) {
    const double value = tools::number_at(record, path);
    return std::isfinite(value) ? value : 0;
  };
  return {text("/definition"),
          text("/solution"),
          axes_words(record),
          text("/evaluation/status"),
          text("/evaluation/log"),
          text("/evaluation/environment/hardware"),
          text("/evaluation/fibshim/baseline"),
          text("/evaluation/timestamp"),
          number("/evaluation/performance/latency_ms"),
          number("/evaluation/performance/reference_latency_ms"),
          number("/evaluation/performance/speedup_factor"),
          number("/evaluation/fibshim/gigabytes_per_second"),
          number("/evaluation/fibshim/copy_gigabytes_per_second"),
          shown(record, "/evaluation/correctness/max_absolute_error", "{:.1e}"),
          shown(record, "/evaluation/correctness/max_relative_error", "{:.1e}")};
}

struct Strip {
  std::string title, description, axis_words;
  double Row::*value;
  bool is_logarithmic;
  double reference;  // a dashed line; 0: none
  std::string reference_words;
};

// "1", "2.5", "1200": as short as possible.
std::string tick_words(double value) { return fmt::format("{:.4g}", value); }

std::vector<double> ticks(double low, double high, bool is_logarithmic) {
  std::vector<double> out;
  // A range of less than a decade would contain only one or two of 1, 2 and 5.
  if (is_logarithmic && high / low > 8) {
    const double ratio = high / low;
    for (double power = pow(10, floor(log10(low))); power <= high; power *= 10) {
      for (const double step : {1.0, 2.0, 5.0}) {
        const double tick = power * step;
        if (tick < low * 0.999 || tick > high * 1.001) continue;
        if (ratio > 200 && step != 1.0) continue;
        out.push_back(tick);
      }
    }
    return out;
  }
  const double rough = (high - low) / 6;
  const double power = pow(10, floor(log10(rough)));
  double step = power;
  for (const double factor : {2.0, 5.0, 10.0}) {
    if (step < rough) step = power * factor;
  }
  for (double i = ceil(low / step * 0.999); step * i <= high * 1.001; ++i) out.push_back(step * i);
  return out;
}

// One line for each definition, one dot for each case, a bar at the mean (geometric on logarithmic
// axes).
std::string draw(const Strip& strip, const std::vector<Row>& rows) {
  std::map<std::string, std::vector<const Row*>> by_definition;
  double low = HUGE_VAL, high = 0;
  for (const Row& row : rows) {
    const double value = row.*strip.value;
    if (!can_be_shown(value)) continue;
    by_definition[row.definition].push_back(&row);
    low = std::min(low, value);
    high = std::max(high, value);
  }
  if (by_definition.empty()) return "";
  const bool has_reference = can_be_shown(strip.reference);
  if (has_reference) {
    low = std::min(low, strip.reference);
    high = std::max(high, strip.reference);
  }
  if (strip.is_logarithmic) {
    low /= 1.15;
    high *= 1.15;
  } else {
    low = 0;
    high *= 1.05;
  }
  const double plot = kWidth - kLeft - kRight;
  const auto x_of = [&](double value) {
    const double share =
        strip.is_logarithmic ? (log(value) - log(low)) / (log(high) - log(low)) : value / high;
    return kLeft + share * plot;
  };
  const double rows_height = kRowHeight * static_cast<double>(by_definition.size());
  const double height = kTop + rows_height + kBottom;
  std::string out = fmt::format(
      "<h2>{0}</h2>\n<p class=\"note\">{1}</p>\n<svg viewBox=\"0 0 {2:.0f} {3:.0f}\" role=\"img\" "
      "aria-label=\"{0}\"><desc>{1} The numbers are in the tables below.</desc>\n",
      escaped(strip.title), escaped(strip.description), kWidth, height);
  for (const double tick : ticks(low, high, strip.is_logarithmic)) {
    const double x = x_of(tick);
    out += fmt::format(
        "<line class=\"grid\" x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1:.0f}\" y2=\"{2:.0f}\"/>"
        "<text class=\"tick\" x=\"{0:.1f}\" y=\"{3:.0f}\" text-anchor=\"middle\">{4}</text>\n",
        x, kTop, kTop + rows_height, kTop + rows_height + 16, tick_words(tick));
  }
  if (has_reference) {
    out += fmt::format(
        "<line class=\"one\" x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1:.0f}\" y2=\"{2:.0f}\"/>"
        "<text x=\"{0:.1f}\" y=\"{3:.0f}\" text-anchor=\"middle\">{4}</text>\n",
        x_of(strip.reference), kTop - 8, kTop + rows_height, kTop - 14,
        escaped(strip.reference_words));
  }
  out += fmt::format(
      "<text class=\"tick\" x=\"{:.0f}\" y=\"{:.0f}\" text-anchor=\"middle\">{}</text>\n",
      kLeft + plot / 2, height - 4, escaped(strip.axis_words));
  double y = kTop + kRowHeight / 2;
  for (const auto& [definition, cases] : by_definition) {
    double sum = 0;
    for (const Row* const row : cases) {
      const double value = row->*strip.value;
      sum += strip.is_logarithmic ? log(value) : value;
    }
    sum /= static_cast<double>(cases.size());
    const double mean = strip.is_logarithmic ? exp(sum) : sum;
    std::string name = definition;
    if (name.size() > 36) name = name.substr(0, 35) + "…";
    out += fmt::format("<text x=\"{:.0f}\" y=\"{:.1f}\" text-anchor=\"end\">{}</text>\n",
                       kLeft - 10, y + 4, escaped(name));
    for (const Row* const row : cases) {
      out += fmt::format(
          "<circle class=\"dot\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"4\"><title>{} {}: {:.4g}</title>"
          "</circle>\n",
          x_of(row->*strip.value), y, escaped(definition), escaped(row->axes), row->*strip.value);
    }
    out += fmt::format(
        "<line class=\"mean\" x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1:.1f}\" y2=\"{2:.1f}\"/>"
        "<text x=\"{3:.0f}\" y=\"{4:.1f}\">{5:.4g}</text>\n",
        x_of(mean), y - 9, y + 9, kWidth - kRight + 8, y + 4, mean);
    y += kRowHeight;
  }
  return out + "</svg>\n";
}

std::string number_cell(double value, const char* format) {
  return fmt::format("<td class=\"n\">{}</td>",
                     value > 0 ? fmt::format(fmt::runtime(format), value) : "");
}

// Headings that begin with '>' (dropped) are for columns of numbers. `lines`: <tr> elements.
std::string table(const std::vector<std::string>& headings, const std::string& lines) {
  std::string out = "<div class=\"scroll\"><table><thead><tr>";
  for (const std::string& heading : headings) {
    const bool is_number = heading[0] == '>';
    out += fmt::format("<th scope=\"col\"{}>{}</th>", is_number ? " class=\"n\"" : "",
                       heading.substr(is_number ? 1 : 0));
  }
  return out + "</tr></thead><tbody>\n" + lines + "</tbody></table></div>\n";
}

std::string cases_table(const std::vector<const Row*>& rows) {
  std::string lines;
  for (const Row* const row : rows) {
    lines += fmt::format("<tr><th scope=\"row\">{}</th><td>{}</td><td{}>{}</td>{}{}{}{}",
                         escaped(row->axes), escaped(row->solution),
                         row->status == kPassed ? "" : " class=\"bad\"", escaped(row->status),
                         number_cell(1e3 * row->latency_ms, "{:.2f}"),
                         number_cell(1e3 * row->reference_ms, "{:.2f}"),
                         number_cell(row->speedup, "{:.2f}"), number_cell(row->rate, "{:.0f}"));
    lines += fmt::format("<td class=\"n\">{}</td><td class=\"n\">{}</td></tr>\n",
                         row->max_absolute_error, row->max_relative_error);
  }
  return table({"Case", "Solution", "Status", ">µs", ">Baseline µs", ">Speed-up", ">GB/s",
                ">Max abs", ">Max rel"},
               lines);
}

}  // namespace

std::vector<Json> last_records(std::vector<Json> records) {
  std::map<std::string, size_t> last;
  for (size_t i = 0; i < records.size(); ++i) last[record_key(records[i])] = i;
  std::vector<Json> out;
  for (size_t i = 0; i < records.size(); ++i) {
    if (last[record_key(records[i])] == i) out.push_back(std::move(records[i]));
  }
  return out;
}

std::string make_report_page(const std::string& title, const std::vector<Json>& records) {
  std::vector<Row> rows;
  for (const Json& record : records) rows.push_back(make_row(record));
  std::ranges::stable_sort(rows, {}, &Row::definition);

  std::set<std::string> hardware, baselines;
  std::map<std::string, std::vector<const Row*>> by_definition;
  std::vector<const Row*> failed;
  std::string newest;
  double copy_rate = 0, logarithms = 0, least = HUGE_VAL;
  size_t compared = 0;
  for (const Row& row : rows) {
    hardware.insert(row.hardware);
    if (!row.baseline.empty()) baselines.insert(row.baseline);
    by_definition[row.definition].push_back(&row);
    if (row.status != kPassed) failed.push_back(&row);
    newest = std::max(newest, row.timestamp);
    copy_rate = std::max(copy_rate, row.copy_rate);
    if (!(row.speedup > 0)) continue;
    ++compared;
    logarithms += log(row.speedup);
    least = std::min(least, row.speedup);
  }
  std::string out = fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta "
      "name=\"viewport\" "
      "content=\"width=device-width, initial-scale=1\">\n<title>{0}</title>\n<style>{1}</style>\n"
      "</head>\n<body>\n<main>\n<h1>{0}</h1>\n",
      escaped(title), kStyle);
  out +=
      fmt::format("<p>{} of {} on {}: {} passed, {} failed.", tools::counted(rows.size(), "case"),
                  tools::counted(by_definition.size(), "definition"),
                  escaped(fmt::format("{}", fmt::join(hardware, ", "))),
                  rows.size() - failed.size(), failed.size());
  if (compared > 0) {
    out += fmt::format(" Speed-up over the baseline: geometric mean {:.2f}, least {:.2f}.",
                       exp(logarithms / static_cast<double>(compared)), least);
  }
  if (copy_rate > 0) out += fmt::format(" Copy bandwidth: {:.0f} GB/s.", copy_rate);
  out += fmt::format("</p>\n<p class=\"note\">Newest record: {}.</p>\n",
                     newest.empty() ? "unknown" : escaped(newest));
  if (!failed.empty()) {
    std::string lines;
    for (const Row* const row : failed) {
      lines += fmt::format(
          "<tr><th scope=\"row\">{}</th><td>{}</td><td class=\"bad\">{}</td>"
          "<td class=\"log\">{}</td></tr>\n",
          escaped(row->definition), escaped(row->axes), escaped(row->status), escaped(row->log));
    }
    out += "<h2>Failed</h2>\n" + table({"Definition", "Case", "Status", "Why"}, lines);
  }
  out += draw({"Speed-up",
               "Baseline's time over the solution's, one dot for each case, a bar at the "
               "geometric mean; right of the dashed line the solution is faster.",
               "times as fast", &Row::speedup, true, 1, "equal"},
              rows);
  out += draw({"Bandwidth",
               "Bytes of all inputs and outputs over the time, one dot for each case, a "
               "bar at the mean. Small cases are bound by latency, and what stays in the L2 cache "
               "may pass the copy's bandwidth.",
               "GB/s", &Row::rate, false, copy_rate,
               copy_rate > 0 ? fmt::format("copy {:.0f}", copy_rate) : ""},
              rows);
  out += "<h2>All cases</h2>\n";
  const bool is_short = rows.size() <= 40;
  for (const auto& [definition, cases] : by_definition) {
    out +=
        fmt::format("<details{}><summary>{} ({})</summary>\n{}</details>\n",
                    is_short ? " open" : "", escaped(definition), cases.size(), cases_table(cases));
  }
  return out + "</main>\n</body>\n</html>\n";
}

}  // namespace fibshim::judge
