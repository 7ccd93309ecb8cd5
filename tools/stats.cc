// fibshim stats: what happened to the launches, from the counters files of all processes or some.
#include <stdlib.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include <fmt/format.h>

#include "shim/outcomes.h"
#include "tools/commands.h"
#include "tools/counters_files.h"
#include "tools/options.h"
#include "tools/setting_values.h"
#include "tools/terminal.h"

namespace fibshim::tools {
namespace {

constexpr int kJsonVersion = 1;

struct Options {
  std::string folder;
  std::vector<uint64_t> pids;
  bool wants_json = false;
  bool wants_prometheus = false;
  bool is_per_process = false;
  bool clears = false;
};

// What counts are added up under. `config` and `digest` are empty where there is no config.
struct Key {
  uint32_t outcome;
  std::string definition, pattern, config, digest;
  int32_t device;

  auto tie() const { return std::tie(outcome, definition, pattern, config, digest, device); }
  bool operator<(const Key& other) const { return tie() < other.tie(); }
};

struct Row {
  Key key;
  uint64_t count;
};

uint64_t saturating_add(uint64_t a, uint64_t b) {
  uint64_t sum;
  return __builtin_add_overflow(a, b, &sum) ? UINT64_MAX : sum;
}

// Hits first, then the other outcomes as the table has them; within one the biggest count first.
std::vector<Row> sorted_rows(const std::map<Key, uint64_t>& counts) {
  std::vector<Row> rows;
  rows.reserve(counts.size());
  for (const auto& [key, count] : counts) rows.push_back({key, count});
  std::stable_sort(rows.begin(), rows.end(), [](const Row& a, const Row& b) {
    if (a.key.outcome != b.key.outcome) return a.key.outcome < b.key.outcome;
    return a.count > b.count;
  });
  return rows;
}

void add_counts(const ProcessCounters& process, std::map<Key, uint64_t>* counts) {
  for (const Count& count : process.counts) {
    Key key{count.outcome, count.definition, count.pattern, "", "", count.device};
    // A launch that no pattern knows belongs to no config, whatever its series says.
    const bool has_config = !count.pattern.empty() && count.config < process.configs.size();
    if (has_config) {
      key.config = process.configs[count.config].path;
      key.digest = process.configs[count.config].digest;
    }
    uint64_t& sum = (*counts)[std::move(key)];
    sum = saturating_add(sum, count.count);
  }
}

std::vector<Row> merged_rows(const std::vector<ProcessCounters>& processes) {
  std::map<Key, uint64_t> counts;
  for (const ProcessCounters& process : processes) add_counts(process, &counts);
  return sorted_rows(counts);
}

std::vector<Row> rows_of(const ProcessCounters& process) {
  std::map<Key, uint64_t> counts;
  add_counts(process, &counts);
  return sorted_rows(counts);
}

std::map<uint32_t, uint64_t> totals_of(const std::vector<Row>& rows) {
  std::map<uint32_t, uint64_t> totals;
  for (const Row& row : rows) {
    uint64_t& sum = totals[row.key.outcome];
    sum = saturating_add(sum, row.count);
  }
  return totals;
}

// ---- table

std::string or_dash(const std::string& text) { return text.empty() ? "-" : printable(text); }

std::string rows_table(const std::vector<Row>& rows) {
  std::set<std::pair<std::string, std::string>> configs;
  std::set<int32_t> devices;
  for (const Row& row : rows) {
    if (!row.key.config.empty()) configs.emplace(row.key.config, row.key.digest);
    if (row.key.device >= 0) devices.insert(row.key.device);
  }
  // Columns that say the same on every line are left out.
  const bool shows_config = configs.size() > 1;
  const bool shows_device = devices.size() > 1;
  std::vector<std::string> heading = {"DEFINITION", "PATTERN", "OUTCOME", ">COUNT"};
  if (shows_device) heading.emplace_back(">DEVICE");
  if (shows_config) heading.insert(heading.end(), {"CONFIG", "DIGEST"});
  std::vector<std::vector<std::string>> table = {std::move(heading)};
  for (const Row& row : rows) {
    std::vector<std::string> line = {or_dash(row.key.definition), or_dash(row.key.pattern),
                                     outcome_name(row.key.outcome), fmt::format("{}", row.count)};
    if (shows_device) line.push_back(row.key.device < 0 ? "-" : fmt::format("{}", row.key.device));
    if (shows_config) {
      line.push_back(or_dash(row.key.config));
      line.push_back(row.key.digest.empty() ? "-" : row.key.digest.substr(0, 12));
    }
    table.push_back(std::move(line));
  }
  return format_table(table);
}

std::string totals_line(const std::map<uint32_t, uint64_t>& totals) {
  uint64_t all = 0;
  std::string parts;
  for (const auto& [outcome, count] : totals) {
    all = saturating_add(all, count);
    parts += fmt::format("{}{} {}", parts.empty() ? ": " : ", ", count, outcome_name(outcome));
  }
  return fmt::format("{} {}{}\n", all, all == 1 ? "launch" : "launches", parts);
}

// What the outcomes that were not hits mean, one line each.
std::string reasons(const std::map<uint32_t, uint64_t>& totals) {
  std::string out;
  for (const auto& [outcome, count] : totals) {
    if (outcome == static_cast<uint32_t>(Outcome::hit)) continue;
    const char* const meaning =
        outcome < kOutcomeCount ? kOutcomes[outcome].meaning : "written by a newer shim";
    out += fmt::format("  {}: {}\n", outcome_name(outcome), meaning);
  }
  return out;
}

std::string processes_line(const std::vector<ProcessCounters>& processes,
                           const std::string& folder) {
  const auto live = std::count_if(processes.begin(), processes.end(),
                                  [](const ProcessCounters& p) { return p.is_alive; });
  return fmt::format("{} {} ({} live, {} ended), counters in {}\n", processes.size(),
                     processes.size() == 1 ? "process" : "processes", live,
                     static_cast<std::ptrdiff_t>(processes.size()) - live, printable(folder));
}

std::string process_heading(const ProcessCounters& process) {
  std::string out = fmt::format(
      "pid {} ({}, mode {}): {}\n", process.pid, process.is_alive ? "live" : "ended", process.mode,
      printable(process.command.empty() ? process.executable : process.command));
  for (const ConfigIdentity& config : process.configs) {
    out += fmt::format("  config {} ({})\n", printable(config.path), config.digest.substr(0, 12));
  }
  for (size_t i = 0; i < process.devices.size(); ++i) {
    out += fmt::format("  device {}: {}, sm_{}\n", i, printable(process.devices[i].name),
                       process.devices[i].sm);
  }
  return out;
}

std::string to_table(const std::vector<ProcessCounters>& processes, const Options& options) {
  std::string out;
  if (options.is_per_process) {
    for (const ProcessCounters& process : processes) {
      out += process_heading(process) + rows_table(rows_of(process)) + "\n";
    }
  }
  const std::vector<Row> rows = merged_rows(processes);
  const std::map<uint32_t, uint64_t> totals = totals_of(rows);
  if (!options.is_per_process) out += rows_table(rows) + "\n";
  out += totals_line(totals) + reasons(totals) + processes_line(processes, options.folder);
  return out;
}

// ---- JSON

nlohmann::ordered_json rows_to_json(const std::vector<Row>& rows) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const Row& row : rows) {
    nlohmann::ordered_json item;
    item["config"] = row.key.config;
    item["digest"] = row.key.digest;
    item["device"] = row.key.device;
    item["pattern"] = row.key.pattern;
    item["definition"] = row.key.definition;
    item["outcome"] = outcome_name(row.key.outcome);
    item["count"] = row.count;
    list.push_back(std::move(item));
  }
  return list;
}

// Every outcome that this program knows, also those that never happened, so that a reader need not
// ask whether the key is there.
nlohmann::ordered_json totals_to_json(const std::vector<Row>& rows) {
  std::map<uint32_t, uint64_t> totals = totals_of(rows);
  for (uint32_t outcome = 0; outcome < kOutcomeCount; ++outcome) totals.try_emplace(outcome, 0);
  nlohmann::ordered_json out = nlohmann::ordered_json::object();
  for (const auto& [outcome, count] : totals) out[outcome_name(outcome)] = count;
  return out;
}

nlohmann::ordered_json process_to_json(const ProcessCounters& process, const Options& options) {
  nlohmann::ordered_json out;
  out["pid"] = process.pid;
  out["start_time"] = process.start_time;
  out["created_unix_ns"] = process.created_unix_ns;
  out["alive"] = process.is_alive;
  out["executable"] = process.executable;
  out["command"] = process.command;
  out["mode"] = process.mode;
  nlohmann::ordered_json configs = nlohmann::ordered_json::array();
  for (const ConfigIdentity& config : process.configs) {
    configs.push_back({{"path", config.path}, {"digest", config.digest}});
  }
  out["config"] = std::move(configs);
  nlohmann::ordered_json devices = nlohmann::ordered_json::array();
  for (size_t i = 0; i < process.devices.size(); ++i) {
    devices.push_back(
        {{"ordinal", i}, {"sm", process.devices[i].sm}, {"name", process.devices[i].name}});
  }
  out["devices"] = std::move(devices);
  out["file"] = process.file;
  if (options.is_per_process) {
    const std::vector<Row> rows = rows_of(process);
    out["counters"] = rows_to_json(rows);
    out["totals"] = totals_to_json(rows);
  }
  return out;
}

nlohmann::ordered_json to_json(const CountersFolder& folder, const Options& options) {
  const std::vector<Row> rows = merged_rows(folder.processes);
  nlohmann::ordered_json out;
  out["version"] = kJsonVersion;
  out["folder"] = options.folder;
  out["processes"] = nlohmann::ordered_json::array();
  for (const ProcessCounters& process : folder.processes) {
    out["processes"].push_back(process_to_json(process, options));
  }
  out["counters"] = rows_to_json(rows);
  out["totals"] = totals_to_json(rows);
  out["refused"] = nlohmann::ordered_json::array();
  for (const RefusedFile& refused : folder.refused) {
    out["refused"].push_back({{"file", refused.file}, {"reason", refused.reason}});
  }
  return out;
}

// ---- Prometheus text format, version 0.0.4

std::string label_value(const std::string& text) {
  // The format is UTF-8; the JSON writer is the one that mends what is not.
  const std::string mended = nlohmann::json::parse(
      nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  std::string out;
  for (const char c : mended) {
    switch (c) {
      case '\\': out += "\\\\"; break;
      case '"': out += "\\\""; break;
      case '\n': out += "\\n"; break;
      default: out += c;
    }
  }
  return out;
}

std::string to_prometheus(const CountersFolder& folder, const Options& options) {
  std::string out =
      "# HELP fibshim_launches_total Kernel launches, by what happened to them.\n"
      "# TYPE fibshim_launches_total counter\n";
  const auto add_rows = [&out](const std::vector<Row>& rows, const std::string& process_label) {
    for (const Row& row : rows) {
      out += fmt::format(
          "fibshim_launches_total{{definition=\"{}\",pattern=\"{}\",outcome=\"{}\",config=\"{}\","
          "digest=\"{}\",device=\"{}\"{}}} {}\n",
          label_value(row.key.definition), label_value(row.key.pattern),
          outcome_name(row.key.outcome), label_value(row.key.config), row.key.digest,
          row.key.device < 0 ? "" : fmt::format("{}", row.key.device), process_label, row.count);
    }
  };
  if (options.is_per_process) {
    for (const ProcessCounters& process : folder.processes) {
      add_rows(rows_of(process),
               fmt::format(",pid=\"{}\",start_time=\"{}\"", process.pid, process.start_time));
    }
  } else {
    add_rows(merged_rows(folder.processes), "");
  }
  const auto live = std::count_if(folder.processes.begin(), folder.processes.end(),
                                  [](const ProcessCounters& p) { return p.is_alive; });
  const auto ended = static_cast<std::ptrdiff_t>(folder.processes.size()) - live;
  out += fmt::format(
      "# HELP fibshim_processes Processes that have written counters.\n"
      "# TYPE fibshim_processes gauge\n"
      "fibshim_processes{{state=\"live\"}} {}\n"
      "fibshim_processes{{state=\"ended\"}} {}\n"
      "# HELP fibshim_refused_files Counters files that could not be read.\n"
      "# TYPE fibshim_refused_files gauge\n"
      "fibshim_refused_files {}\n",
      live, ended, folder.refused.size());
  return out;
}

// ----

int clear(const Options& options) {
  const auto clearing = clear_ended_counters(options.folder);
  if (!clearing) {
    print_message("stats", fmt::format("{}: {}", printable(options.folder), clearing.error()));
    return kExitWrong;
  }
  for (const RefusedFile& kept : clearing->kept) {
    print_message("stats", fmt::format("{}/{}: cannot remove it: {}", printable(options.folder),
                                       printable(kept.file), kept.reason));
  }
  const size_t count = clearing->removed.size();
  print_message("stats",
                fmt::format("removed the counters of {} ended {} from {}", count,
                            count == 1 ? "process" : "processes", printable(options.folder)));
  return clearing->kept.empty() ? kExitFine : kExitWrong;
}

// Leaves only the wanted processes. False, with a message, when one of them is not there.
bool keep_pids(const Options& options, std::vector<ProcessCounters>* processes) {
  if (options.pids.empty()) return true;
  const std::set<uint64_t> wanted(options.pids.begin(), options.pids.end());
  std::set<uint64_t> found;
  std::erase_if(*processes, [&](const ProcessCounters& process) {
    if (!wanted.contains(process.pid)) return true;
    found.insert(process.pid);
    return false;
  });
  for (const uint64_t pid : wanted) {
    if (found.contains(pid)) continue;
    print_message("stats",
                  fmt::format("no counters of process {} in {}", pid, printable(options.folder)));
  }
  return found.size() == wanted.size();
}

}  // namespace

int stats_command(int argc, const char* const* argv) {
  Options options;
  CLI::App app("What happened to the launches of all processes under the shim", "fibshim stats");
  app.add_option("--pid", options.pids, "only this process (may be repeated)")
      ->type_name("PID")
      ->check([](const std::string& text) {
        return text.starts_with('-') ? "a process has a positive number, not " + text
                                     : std::string();
      })
      ->allow_extra_args(false);
  app.add_flag("--per-process", options.is_per_process, "each process on its own");
  app.add_flag("--json", options.wants_json, "print JSON");
  app.add_flag("--prometheus", options.wants_prometheus, "print the Prometheus text format");
  auto* const dir =
      app.add_option("--dir", options.folder, "read this folder instead of FIBSHIM_STATS_DIR")
          ->type_name("DIR");
  app.add_flag("--clear", options.clears, "remove the counters of processes that ended");
  app.footer(
      "Exit codes: 0 fine; 1 a file or the folder cannot be read, or no such process; 2 wrong "
      "usage.");
  if (int exit_code = 0; !parse_options(&app, "[OPTIONS]", argc, argv, &exit_code))
    return exit_code;
  if (options.wants_json + options.wants_prometheus + options.clears > 1) {
    return usage_error("stats", "--json, --prometheus and --clear exclude each other");
  }
  if (options.clears && (options.is_per_process || !options.pids.empty())) {
    return usage_error("stats", "--clear takes no --pid and no --per-process");
  }
  if (dir->count() == 0) options.folder = stats_folder();
  if (options.folder.empty()) return usage_error("stats", "--dir: needs the name of a folder");
  if (options.clears) return clear(options);

  auto folder = read_counters_folder(options.folder);
  if (!folder) {
    print_message("stats", fmt::format("{}: {}", printable(options.folder), folder.error()));
    return kExitWrong;
  }
  if (!folder->exists && dir->count() > 0) {
    print_message("stats", fmt::format("{}: no such folder", printable(options.folder)));
    return kExitWrong;
  }
  for (const RefusedFile& refused : folder->refused) {
    print_message("stats", fmt::format("{}/{}: {}", printable(options.folder),
                                       printable(refused.file), printable(refused.reason)));
  }
  if (folder->processes.empty() && folder->refused.empty()) {
    print_message("stats",
                  fmt::format("no counters in {}: no process that uses CUDA has run under the shim "
                              "since they were cleared, or it had another FIBSHIM_STATS_DIR. "
                              "'fibshim doctor' finds out why",
                              printable(options.folder)));
  }
  const bool are_found = keep_pids(options, &folder->processes);
  const bool is_fine = are_found && folder->refused.empty();
  bool is_written = true;
  if (options.wants_json) {
    is_written = print_json(to_json(*folder, options));
  } else if (options.wants_prometheus) {
    is_written = print_data(to_prometheus(*folder, options));
  } else if (!folder->processes.empty()) {
    is_written = print_data(to_table(folder->processes, options));
  }
  return is_fine && is_written ? kExitFine : kExitWrong;
}

}  // namespace fibshim::tools
