#include "tools/record/summary.h"

#include <algorithm>
#include <optional>
#include <set>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "shim/abi/outcomes.h"
#include "tools/base/terminal.h"
#include "tools/record/recording_json.h"

namespace fibshim::tools {
namespace {

struct GpuTime {
  double all_ns = 0;
  double warm_up_ns = 0;
  double known_ns = 0;  // of kernels that a pattern fits, and of their replacements
  std::optional<double> replaced_ns = 0;  // of replacements; nothing if it cannot be known
  uint64_t span_ns = 0;
  uint64_t busy_ns = 0;
  size_t gpus = 0;  // a GPU counts once for each process
  uint64_t dropped_runs = 0;
  size_t by_cupti = 0;  // processes
  size_t by_events = 0;
  std::map<std::string, size_t> reasons;  // for events -> processes
};

// The time of a kernel's replacements, if measured with events: these time whatever ran in its
// place. Nodes of graphs are not timed: how many of the others were hits is known if all or none were.
std::optional<double> replaced_by_events_ns(const KernelRecord& kernel) {
  const auto hits = kernel.outcomes.find(static_cast<uint32_t>(Outcome::hit));
  if (hits == kernel.outcomes.end() || hits->second == 0 || !kernel.runs.empty()) return 0;
  const double ns = kernel.estimated_ns();
  const uint64_t all = saturating_add(kernel.launches, kernel.nodes);
  if (ns > 0 && kernel.nodes != 0 && hits->second < all) return std::nullopt;
  return ns * static_cast<double>(hits->second) / static_cast<double>(all);
}

bool is_known(const std::vector<PatternFit>& fits) {
  return std::ranges::any_of(fits, &PatternFit::fits);
}

GpuTime gpu_time_of(const Summary& summary) {
  GpuTime out;
  const Recording& recording = summary.recording;
  for (size_t i = 0; i < recording.kernels.size(); ++i) {
    const KernelRecord& kernel = recording.kernels[i];
    const double ns = kernel.estimated_ns();
    const bool is_replacement = !replaced_definition(summary, kernel).empty();
    out.all_ns += ns;
    out.warm_up_ns += static_cast<double>(kernel.all_runs().warm_up.sum_ns);
    if (is_replacement || is_known(summary.fits[i])) out.known_ns += ns;
    const auto replaced = is_replacement ? ns : replaced_by_events_ns(kernel);
    out.replaced_ns =
        out.replaced_ns && replaced ? std::optional(*out.replaced_ns + *replaced) : std::nullopt;
  }
  for (const RecordedProcess& process : recording.processes) {
    ++(process.timing == RecordedTiming::events ? out.by_events : out.by_cupti);
    if (!process.timing_reason.empty()) ++out.reasons[process.timing_reason];
    out.dropped_runs = saturating_add(out.dropped_runs, process.dropped_runs);
    for (const DeviceTime& device : process.devices) {
      ++out.gpus;
      out.span_ns = saturating_add(out.span_ns, device.span_ns);
      out.busy_ns = saturating_add(out.busy_ns, device.busy_ns);
    }
  }
  return out;
}

std::string percent(double part, double whole) {
  return whole > 0 && part > 0 ? fmt::format("{:.1f}%", part / whole * 100) : "-";
}

const char* source_of(const GpuTime& time) {
  if (time.by_cupti == 0) return "events";
  return time.by_events == 0 && time.reasons.empty() ? "CUPTI" : "CUPTI and events";
}

// The first lines of the summary.
std::string head_text(const Summary& summary, const GpuTime& time) {
  std::string out;
  if (time.all_ns > 0) {
    out += fmt::format("GPU time {:.3f} ms by {}", time.all_ns / 1e6, source_of(time));
    if (time.warm_up_ns > 0) {
      out += fmt::format(", {} of it in first runs", percent(time.warm_up_ns, time.all_ns));
    }
    if (time.by_cupti == 0 && summary.recording.nodes() > 0) {
      out += "; replays of graphs are not in it";
    }
    out += "\n";
  } else {
    out += "GPU time was not measured\n";
  }
  if (time.span_ns > 0) {
    out +=
        fmt::format("busy {} of {:.3f} ms from the first kernel that CUPTI told of to the last{}\n",
                    percent(static_cast<double>(time.busy_ns), static_cast<double>(time.span_ns)),
                    static_cast<double>(time.span_ns) / 1e6,
                    time.gpus > 1 ? fmt::format(", of {} GPUs and processes", time.gpus) : "");
  }
  if (!summary.config.empty() && time.all_ns > 0) {
    out += fmt::format("{} of GPU time in kernels that a pattern knows, {} in what replaced them\n",
                       percent(time.known_ns, time.all_ns),
                       percent(time.replaced_ns.value_or(0), time.all_ns));
  }
  for (const auto& [reason, processes] : time.reasons) {
    out += fmt::format("events instead of CUPTI in {}: {}\n",
                       counted(processes, "process", "processes"), printable(reason));
  }
  if (time.dropped_runs > 0) {
    out += fmt::format("{} of kernels found no room, and are not in it\n",
                       counted(time.dropped_runs, "run"));
  }
  return out + "\n";
}

std::string pattern_cell(const Summary& summary, size_t i) {
  if (summary.config.empty()) return "-";
  const std::string definition = replaced_definition(summary, summary.recording.kernels[i]);
  if (!definition.empty()) return printable("= " + definition);
  const std::vector<PatternFit>& fits = summary.fits[i];
  for (const PatternFit& fit : fits) {
    if (fit.fits) return printable(fit.label);
  }
  return fits.empty() ? "-" : "(" + printable(fits[0].label) + ")";
}

// Cuts long template arguments in the middle, where they tell least.
std::string shortened(const std::string& text, size_t width) {
  if (text.size() <= width) return text;
  const size_t head = width * 2 / 3;
  return text.substr(0, head) + "..." + text.substr(text.size() - (width - head - 3));
}

// Distinguishes kernels of the same name.
std::string identity_of(const KernelRecord& kernel) {
  std::vector<uint32_t> sizes;
  for (const ParamRecord& param : kernel.params) sizes.push_back(param.size);
  const std::string image = kernel.image.empty() ? "image not known" : kernel.image.substr(0, 15);
  return fmt::format(" ({}, params [{}])", image, fmt::join(sizes, ", "));
}

std::vector<std::string> names_of(const Recording& recording) {
  constexpr size_t kNameWidth = 72;
  std::vector<std::string> names;
  std::map<std::string, size_t> of_name;
  for (const KernelRecord& kernel : recording.kernels) {
    names.push_back(printable(shortened(function_name(kernel.symbol), kNameWidth)));
    ++of_name[names.back()];
  }
  for (size_t i = 0; i < names.size(); ++i) {
    if (of_name[names[i]] > 1) names[i] += identity_of(recording.kernels[i]);
  }
  return names;
}

std::string microseconds(double ns) { return fmt::format("{:.2f}", ns / 1e3); }

// The mean of the runs after the warm-up; if measured with events, of all launches.
std::string mean_cell(const KernelRecord& kernel) {
  const Times times = kernel.times();
  if (times.count == 0) return "-";
  if (kernel.runs.empty()) {
    return kernel.launches == 0
               ? "-"
               : microseconds(kernel.estimated_ns() / static_cast<double>(kernel.launches));
  }
  return microseconds(static_cast<double>(times.sum_ns) / static_cast<double>(times.count));
}

std::string spread_cell(const KernelRecord& kernel) {
  const Times times = kernel.times();
  return times.count == 0
             ? "-"
             : fmt::format("{}-{}", microseconds(static_cast<double>(times.shortest_ns)),
                           microseconds(static_cast<double>(times.longest_ns)));
}

std::string notes_of(const Summary& summary, size_t i) {
  std::string out;
  if (summary.recording.kernels[i].shares_runs) {
    out += fmt::format(
        "  #{} has the name and geometries of another kernel: the runs of both are with one of "
        "them\n",
        i + 1);
  }
  // Of another size or type there may be dozens; JSON has them all.
  size_t misfits_left = std::ranges::any_of(summary.fits[i], &PatternFit::fits) ? 0 : 3;
  for (const PatternFit& fit : summary.fits[i]) {
    if (fit.why.empty() || (!fit.fits && misfits_left == 0)) continue;
    if (!fit.fits) --misfits_left;
    out += fmt::format("  #{} {}{}: {}\n", i + 1, printable(fit.label),
                       fit.fits ? "" : " does not fit", printable(fit.why));
  }
  return out;
}

nlohmann::ordered_json share(double part, double whole) {
  return whole > 0 ? nlohmann::ordered_json(part / whole) : nlohmann::ordered_json();
}

nlohmann::ordered_json mean_us(const Runs& runs) {
  const Times& times = runs.typical();
  if (times.count == 0) return nullptr;
  return static_cast<double>(times.sum_ns) / 1e3 / static_cast<double>(times.count);
}

nlohmann::ordered_json gpu_time_json(const Summary& summary, const GpuTime& time) {
  const bool has_patterns = !summary.config.empty();
  nlohmann::ordered_json out = {
      {"total_us", time.all_ns / 1e3},
      {"source", source_of(time)},
      {"warm_up_us", time.warm_up_ns / 1e3},
      {"span_us", static_cast<double>(time.span_ns) / 1e3},
      {"busy_share", share(static_cast<double>(time.busy_ns), static_cast<double>(time.span_ns))},
      {"known_share", has_patterns ? share(time.known_ns, time.all_ns) : nullptr},
      {"replaced_share",
       has_patterns && time.replaced_ns ? share(*time.replaced_ns, time.all_ns) : nullptr},
      {"dropped_runs", time.dropped_runs}};
  out["events_because"] = nlohmann::ordered_json::object();
  for (const auto& [reason, processes] : time.reasons) out["events_because"][reason] = processes;
  return out;
}

}  // namespace

std::string replaced_definition(const Summary& summary, const KernelRecord& kernel) {
  const auto found = summary.replacements.find(kernel.symbol);
  return found == summary.replacements.end() || !kernel.only_ran() ? "" : found->second;
}

std::string summary_text(const Summary& summary, uint32_t top) {
  const Recording& recording = summary.recording;
  const GpuTime time = gpu_time_of(summary);
  std::vector<std::vector<std::string>> table = {{">#", ">SHARE", ">GPU ms", ">MEAN us",
                                                  ">SPREAD us", ">LAUNCHES", ">IN GRAPHS",
                                                  ">REPLAYED", "PATTERN", "KERNEL"}};
  std::string notes;
  const std::vector<std::string> names = names_of(recording);
  const size_t shown =
      top == 0 ? recording.kernels.size() : std::min<size_t>(top, recording.kernels.size());
  for (size_t i = 0; i < shown; ++i) {
    const KernelRecord& kernel = recording.kernels[i];
    const double ns = kernel.estimated_ns();
    const uint64_t ran = kernel.all_runs(false).count();
    table.push_back({fmt::format("{}", i + 1), percent(ns, time.all_ns),
                     ns > 0 ? fmt::format("{:.3f}", ns / 1e6) : "-", mean_cell(kernel),
                     spread_cell(kernel),
                     fmt::format("{}", kernel.only_ran() ? ran : kernel.launches),
                     fmt::format("{}", kernel.nodes),
                     kernel.runs.empty() ? "-" : fmt::format("{}", kernel.all_runs(true).count()),
                     pattern_cell(summary, i), names[i]});
    notes += notes_of(summary, i);
  }
  std::string out = head_text(summary, time) + format_table(table);
  if (shown < recording.kernels.size()) {
    out += fmt::format("and {} more\n", recording.kernels.size() - shown);
  }
  out += "\n" + notes;
  out += fmt::format("{}, {}, {} in graphs in {}\n", counted(recording.kernels.size(), "kernel"),
                     counted(recording.launches(), "launch", "launches"), recording.nodes(),
                     counted(recording.processes.size(), "process", "processes"));
  if (!summary.config.empty()) {
    out += fmt::format("patterns of {}\n", printable(summary.config));
  }
  return out;
}

nlohmann::ordered_json summary_json(const Summary& summary, uint32_t top) {
  const Recording& recording = summary.recording;
  const GpuTime time = gpu_time_of(summary);
  nlohmann::ordered_json out;
  out["version"] = 1;
  out["launches"] = recording.launches();
  out["in_graph"] = recording.nodes();
  out["estimated_us"] =
      time.all_ns > 0 ? nlohmann::ordered_json(time.all_ns / 1e3) : nlohmann::ordered_json();
  out["gpu_time"] = gpu_time_json(summary, time);
  out["config"] = or_null(summary.config);
  out["processes"] = processes_to_json(recording.processes);
  out["kernels"] = nlohmann::ordered_json::array();
  for (size_t i = 0; i < recording.kernels.size() && (top == 0 || i < top); ++i) {
    const KernelRecord& kernel = recording.kernels[i];
    nlohmann::ordered_json one =
        kernel_to_json(kernel, time.all_ns > 0 ? kernel.estimated_ns() / time.all_ns : -1);
    one.erase("type");
    one["ran"] = {{"eagerly", kernel.all_runs(false).count()},
                  {"in_graphs", kernel.all_runs(true).count()},
                  {"eager_mean_us", mean_us(kernel.all_runs(false))},
                  {"in_graph_mean_us", mean_us(kernel.all_runs(true))}};
    one["replaces"] = or_null(replaced_definition(summary, kernel));
    one["patterns"] = nlohmann::ordered_json::array();
    for (const PatternFit& fit : summary.fits[i]) {
      one["patterns"].push_back(
          {{"label", fit.label}, {"fits", fit.fits}, {"why", or_null(fit.why)}});
    }
    out["kernels"].push_back(std::move(one));
  }
  return out;
}

}  // namespace fibshim::tools
