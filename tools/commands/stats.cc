// fibshim stats: what happened to the launches, from the counters files of all processes or some.
#include <set>
#include <thread>

#include <nlohmann/json.hpp>

#include "shim/abi/outcomes.h"
#include "tools/base/files.h"
#include "tools/commands/commands.h"
#include "tools/counters/decisions.h"
#include "tools/counters/folders_in_force.h"
#include "tools/counters/kept_nodes.h"
#include "tools/counters/launch_groups.h"
#include "tools/counters/shadow_counts.h"
#include "tools/counters/prometheus.h"
#include "tools/base/setting_values.h"
#include "tools/counters/ended_counters.h"

namespace fibshim::tools {
namespace {

constexpr int kJsonVersion = 1;

struct StatsOptions {
  std::string folder;
  LaunchFilter filter;
  std::string group_by;  // empty: every name on its own
  double rate_seconds = 0;
  std::string output;  // empty: stdout
  PrometheusOptions prometheus;
  bool wants_json = false;
  bool wants_prometheus = false;
  bool is_per_process = false;
  bool clears = false;
  bool wants_diff = false;
  std::string earlier;  // with `wants_diff`; empty: processes are compared
};

// What is printed: the folder, and how fast the counts grew where that was asked for.
struct CountsReading {
  CountersFolder folder;
  std::optional<std::chrono::duration<double>> elapsed;  // since `earlier`
  std::map<LaunchKey, LaunchNumbers> earlier;
  LaunchGroups earlier_groups;
};

double per_second(uint64_t now, uint64_t before, std::chrono::duration<double> elapsed) {
  return now > before ? static_cast<double>(now - before) / elapsed.count() : 0;
}

double rate_of(const LaunchRow& row, const CountsReading& reading) {
  const auto at = reading.earlier.find(row.key);
  return per_second(row.numbers.executions, at == reading.earlier.end() ? 0 : at->second.executions,
                    *reading.elapsed);
}

// ---- table

std::string or_dash(const std::string& text) { return text.empty() ? "-" : printable(text); }

// Whether launches of one definition went different ways.
bool has_choices(const std::vector<LaunchRow>& rows) {
  std::map<std::string, std::string> known;
  return std::ranges::any_of(rows, [&](const LaunchRow& row) {
    return known.emplace(row.key.definition, row.key.solution).first->second != row.key.solution;
  });
}

std::string rows_table(const std::vector<LaunchRow>& rows, const CountsReading* rates) {
  std::set<std::pair<std::string, std::string>> configs;
  std::set<int32_t> devices;
  for (const LaunchRow& row : rows) {
    if (!row.key.config.empty()) configs.emplace(row.key.config, row.key.digest);
    if (row.key.device >= 0) devices.insert(row.key.device);
  }
  // Columns that say the same on every line are left out.
  const bool shows_config = configs.size() > 1;
  const bool shows_device = devices.size() > 1;
  const bool shows_solution = has_choices(rows);
  std::vector<std::string> heading = {"DEFINITION", "PATTERN", "OUTCOME", ">LAUNCHES",
                                      ">EXECUTIONS"};
  if (shows_solution) heading.insert(heading.begin() + 1, "SOLUTION");
  if (rates != nullptr) heading.emplace_back(">PER S");
  if (shows_device) heading.emplace_back(">DEVICE");
  if (shows_config) heading.insert(heading.end(), {"CONFIG", "DIGEST"});
  std::vector<std::vector<std::string>> table = {std::move(heading)};
  for (const LaunchRow& row : rows) {
    if (row.numbers.launches == 0 && row.numbers.executions == 0) continue;  // in bodies alone
    std::vector<std::string> line = {
        or_dash(row.key.definition), or_dash(row.key.pattern), outcome_name(row.key.outcome),
        fmt::format("{}", row.numbers.launches), fmt::format("{}", row.numbers.executions)};
    if (shows_solution) line.insert(line.begin() + 1, or_dash(row.key.solution));
    if (rates != nullptr) line.push_back(rate_words(rate_of(row, *rates)));
    if (shows_device) line.push_back(row.key.device < 0 ? "-" : fmt::format("{}", row.key.device));
    if (shows_config) {
      line.push_back(or_dash(row.key.config));
      line.push_back(row.key.digest.empty() ? "-" : row.key.digest.substr(0, 12));
    }
    table.push_back(std::move(line));
  }
  return format_table(table);
}

std::string parts_of(const std::map<uint32_t, LaunchNumbers>& totals,
                     uint64_t LaunchNumbers::*number) {
  std::string out;
  const bool is_of_bodies = number == &LaunchNumbers::body_nodes;
  for (const auto& [outcome, numbers] : totals) {
    const bool has_run = numbers.launches != 0 || numbers.executions != 0;
    if (is_of_bodies ? numbers.body_nodes == 0 : !has_run) continue;
    out +=
        fmt::format("{}{} {}", out.empty() ? ": " : ", ", numbers.*number, outcome_name(outcome));
  }
  return out;
}

std::string totals_lines(const std::map<uint32_t, LaunchNumbers>& totals) {
  LaunchNumbers all;
  for (const auto& [outcome, numbers] : totals) all.add(numbers);
  std::string out = counted(all.launches, "launch", "launches") +
                    parts_of(totals, &LaunchNumbers::launches) + "\n";
  // They differ where graphs were instantiated.
  if (all.executions != all.launches) {
    out += counted(all.executions, "execution", "executions") +
           parts_of(totals, &LaunchNumbers::executions) + "\n";
  }
  if (all.body_nodes != 0) {
    out += counted(all.body_nodes, "kernel node", "kernel nodes") +
           " in bodies of conditional nodes, which run as often as the device decides" +
           parts_of(totals, &LaunchNumbers::body_nodes) + "\n";
  }
  return out;
}

// What the outcomes that were not hits mean, one line each.
std::string reasons(const std::map<uint32_t, LaunchNumbers>& totals) {
  std::string out;
  for (const auto& [outcome, numbers] : totals) {
    if (outcome == static_cast<uint32_t>(Outcome::hit)) continue;
    const char* const meaning =
        outcome < kOutcomeCount ? kOutcomes[outcome].meaning : "written by a newer shim";
    out += fmt::format("  {}: {}\n", outcome_name(outcome), meaning);
  }
  return out;
}

LaunchGroups groups_of(const CountsReading& reading, const StatsOptions& options) {
  LaunchGroups groups = group_launches(reading.folder.processes, group_by_named(options.group_by));
  if (reading.elapsed) add_rates(reading.earlier_groups, *reading.elapsed, &groups);
  return groups;
}

std::string processes_line(const std::vector<ProcessCounters>& processes,
                           const std::string& folder) {
  const auto live = std::ranges::count_if(processes, &ProcessCounters::is_alive);
  return fmt::format("{} ({} live, {} ended), counters in {}\n",
                     counted(processes.size(), "process", "processes"), live,
                     static_cast<std::ptrdiff_t>(processes.size()) - live, printable(folder));
}

std::string process_heading(const ProcessCounters& process) {
  std::string out = fmt::format(
      "pid {} ({}, mode {}): {}\n", process.pid, process.is_alive ? "live" : "ended", process.mode,
      printable(process.command.empty() ? process.executable : process.command));
  for (const ConfigIdentity& config : process.configs) {
    out += fmt::format("  config {} ({})\n", printable(config.path), config.digest.substr(0, 12));
  }
  const FolderInForce& folder = process.folder;
  if (folder.swap_count + folder.refused_count != 0) {
    out += fmt::format(
        "  {}; {}, {}\n",
        folder.state == FolderState::refused ? "in no folder: the one that it was given was refused"
        : folder.state == FolderState::off   ? "off; before: " + or_dash(folder.config.path)
                                             : "now in " + or_dash(folder.config.path),
        counted(folder.swap_count, "move", "moves"),
        counted(folder.refused_count, "refusal", "refusals"));
  }
  if (!process.folder.refusal.empty()) {
    out += fmt::format("  refused: {}\n", printable(process.folder.refusal));
  }
  if (const std::string decisions = fingerprint(decisions_of(process)); !decisions.empty()) {
    out += fmt::format("  decisions {}\n", decisions);
  }
  for (size_t i = 0; i < process.devices.size(); ++i) {
    out += fmt::format("  device {}: {}, sm_{}\n", i, printable(process.devices[i].name),
                       process.devices[i].sm);
  }
  return out;
}

std::string to_table(const CountsReading& reading, const StatsOptions& options) {
  const std::vector<ProcessCounters>& processes = reading.folder.processes;
  const CountsReading* const rates = reading.elapsed ? &reading : nullptr;
  std::string out;
  if (options.is_per_process) {
    for (const ProcessCounters& process : processes) {
      out += process_heading(process) + rows_table(sorted_rows(counts_of(process)), nullptr) + "\n";
    }
  }
  const std::vector<LaunchRow> rows = sorted_rows(counts_of(processes));
  const std::map<uint32_t, LaunchNumbers> totals = totals_of(rows);
  if (!options.group_by.empty()) {
    out += format_table(group_rows(groups_of(reading, options), group_by_named(options.group_by),
                                   rates != nullptr)) +
           "\n";
  } else if (!options.is_per_process) {
    out += rows_table(rows, rates) + "\n";
  }
  if (const std::string checks = shadow_table(shadow_sums_of(processes)); !checks.empty()) {
    out += checks + "\n";
  }
  out += totals_lines(totals) + reasons(totals) + kept_lines(kept_sums_of(processes)) +
         processes_line(processes, options.folder);
  for (const std::string& words : {folder_words(processes), image_words(processes)}) {
    if (!words.empty()) out += words + "\n";
  }
  return out;
}

// ---- JSON

nlohmann::ordered_json rows_to_json(const std::vector<LaunchRow>& rows,
                                    const CountsReading* rates) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const LaunchRow& row : rows) {
    nlohmann::ordered_json item;
    item["config"] = row.key.config;
    item["digest"] = row.key.digest;
    item["device"] = row.key.device;
    item["pattern"] = row.key.pattern;
    item["definition"] = row.key.definition;
    item["solution"] = row.key.solution;
    item["outcome"] = outcome_name(row.key.outcome);
    item["count"] = row.numbers.launches;
    item["executions"] = row.numbers.executions;
    item["body_nodes"] = row.numbers.body_nodes;
    if (rates != nullptr) item["per_second"] = rate_of(row, *rates);
    list.push_back(std::move(item));
  }
  return list;
}

// Every outcome that this program knows, also those that never happened, so that a reader need not
// ask whether the key is there.
nlohmann::ordered_json totals_to_json(const std::vector<LaunchRow>& rows,
                                      uint64_t LaunchNumbers::*number) {
  std::map<uint32_t, LaunchNumbers> totals = totals_of(rows);
  for (uint32_t outcome = 0; outcome < kOutcomeCount; ++outcome) totals.try_emplace(outcome);
  nlohmann::ordered_json out = nlohmann::ordered_json::object();
  for (const auto& [outcome, numbers] : totals) out[outcome_name(outcome)] = numbers.*number;
  return out;
}

void add_totals(const std::vector<LaunchRow>& rows, nlohmann::ordered_json* out) {
  (*out)["totals"] = totals_to_json(rows, &LaunchNumbers::launches);
  (*out)["nodes"] = totals_to_json(rows, &LaunchNumbers::nodes);
  (*out)["executions"] = totals_to_json(rows, &LaunchNumbers::executions);
  (*out)["body_nodes"] = totals_to_json(rows, &LaunchNumbers::body_nodes);
}

nlohmann::ordered_json process_to_json(const ProcessCounters& process,
                                       const StatsOptions& options) {
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
  out["folder"] = folder_to_json(process.folder);
  nlohmann::ordered_json devices = nlohmann::ordered_json::array();
  for (size_t i = 0; i < process.devices.size(); ++i) {
    devices.push_back(
        {{"ordinal", i}, {"sm", process.devices[i].sm}, {"name", process.devices[i].name}});
  }
  out["devices"] = std::move(devices);
  out["file"] = process.file;
  out["decisions"] = fingerprint(decisions_of(process));
  if (options.is_per_process) {
    const std::vector<LaunchRow> rows = sorted_rows(counts_of(process));
    out["counters"] = rows_to_json(rows, nullptr);
    add_totals(rows, &out);
    out["graph_reasons"] = kept_to_json(kept_sums_of(process));
  }
  return out;
}

nlohmann::ordered_json to_json(const CountsReading& reading, const StatsOptions& options) {
  const CountersFolder& folder = reading.folder;
  const std::vector<LaunchRow> rows = sorted_rows(counts_of(folder.processes));
  nlohmann::ordered_json out;
  out["version"] = kJsonVersion;
  out["folder"] = options.folder;
  out["processes"] = nlohmann::ordered_json::array();
  for (const ProcessCounters& process : folder.processes) {
    out["processes"].push_back(process_to_json(process, options));
  }
  if (reading.elapsed) out["elapsed_s"] = reading.elapsed->count();
  out["counters"] = rows_to_json(rows, reading.elapsed ? &reading : nullptr);
  out["decisions"] = decisions_to_json(folder.processes);
  if (!options.group_by.empty()) {
    out["grouped_by"] = options.group_by;
    out["groups"] = groups_to_json(groups_of(reading, options));
  }
  add_totals(rows, &out);
  out["graph_reasons"] = kept_to_json(kept_sums_of(folder.processes));
  out["shadow"] = shadow_to_json(shadow_sums_of(folder.processes));
  out["refused"] = nlohmann::ordered_json::array();
  for (const RefusedFile& refused : folder.refused) {
    out["refused"].push_back({{"file", refused.file}, {"reason", refused.reason}});
  }
  return out;
}

// ----

int clear(const StatsOptions& options) {
  const auto clearing = clear_ended_counters(options.folder);
  if (!clearing) {
    print_message("stats", "{}: {}", printable(options.folder), clearing.error());
    return kExitWrong;
  }
  for (const RefusedFile& kept : clearing->kept) {
    print_message("stats", "{}/{}: cannot delete it: {}", printable(options.folder),
                  printable(kept.file), kept.reason);
  }
  print_message("stats", "removed the counters of {} from {}",
                counted(clearing->removed.size(), "ended process", "ended processes"),
                printable(options.folder));
  return clearing->kept.empty() ? kExitFine : kExitWrong;
}

// Reads the folder and leaves what is wanted. Nothing, with a message, when it cannot be read.
std::optional<CountersFolder> read_wanted(const StatsOptions& options, bool* has_all) {
  auto folder = read_counters_folder(options.folder);
  if (!folder) {
    print_message("stats", "{}: {}", printable(options.folder), folder.error());
    return std::nullopt;
  }
  uint64_t unattributed = 0;
  const std::vector<uint64_t> missing = apply_filter(options.filter, &*folder, &unattributed);
  *has_all = missing.empty();
  for (const uint64_t pid : missing) {
    print_message("stats", "no counters of process {} in {}", pid, printable(options.folder));
  }
  if (unattributed > 0) {
    print_message("stats",
                  "{} launches of processes that see several GPUs are left "
                  "out: the counters do not tell on which one they ran",
                  unattributed);
  }
  return std::move(*folder);
}

// Two readings where rates are wanted, else one.
std::optional<CountsReading> read_counts(const StatsOptions& options, bool* has_all) {
  CountsReading out{};
  const bool wants_rates = options.rate_seconds > 0;
  if (wants_rates) {
    const auto start = std::chrono::steady_clock::now();
    const auto first = read_wanted(options, has_all);
    if (!first) return std::nullopt;
    out.earlier = counts_of(first->processes);
    out.earlier_groups = group_launches(first->processes, group_by_named(options.group_by));
    std::this_thread::sleep_for(std::chrono::duration<double>(options.rate_seconds));
    out.elapsed =
        std::chrono::steady_clock::now() - start;  // from one reading's begin to the other's
  }
  auto folder = read_wanted(options, has_all);
  if (!folder) return std::nullopt;
  out.folder = std::move(*folder);
  return out;
}

std::string to_text(const CountsReading& reading, const StatsOptions& options) {
  if (options.wants_json) return json_text(to_json(reading, options));
  if (options.wants_prometheus) return prometheus_text(reading.folder, options.prometheus);
  return reading.folder.processes.empty() ? "" : to_table(reading, options);
}

std::string conflict_in(const StatsOptions& options) {
  if (options.wants_json + options.wants_prometheus + options.clears > 1) {
    return "--json, --prometheus and --clear exclude each other";
  }
  if (options.clears &&
      (options.is_per_process || !options.filter.wants_all() || options.rate_seconds > 0 ||
       !options.group_by.empty() || !options.output.empty())) {
    return "--clear takes no --pid, --per-process or other choice of what to print";
  }
  if (options.wants_diff && (options.wants_prometheus || options.clears || options.is_per_process ||
                             options.rate_seconds > 0 || !options.group_by.empty())) {
    return "--diff takes --json, --output and the choice of processes and series, nothing else";
  }
  if (!options.wants_diff && !options.earlier.empty()) {
    return fmt::format("unexpected argument '{}': FILE is for --diff", options.earlier);
  }
  if (!options.earlier.empty() && !options.filter.devices.empty()) {
    return "--diff FILE takes no --device: FILE does not say on which GPU what was decided";
  }
  if (options.is_per_process && !options.group_by.empty()) {
    return "--by and --per-process exclude each other";
  }
  if (options.wants_prometheus && (options.rate_seconds > 0 || !options.group_by.empty())) {
    return "--prometheus takes no --rate and no --by: Prometheus works them out itself";
  }
  return "";
}

// What could not be read, and why nothing was found.
void report_gaps(const CountersFolder& folder, const StatsOptions& options) {
  for (const RefusedFile& refused : folder.refused) {
    print_message("stats", "{}/{}: {}", printable(options.folder), printable(refused.file),
                  printable(refused.reason));
  }
  if (folder.foreign_count > 0) {
    print_message("stats", counted(folder.foreign_count, "file") +
                               (folder.foreign_count == 1 ? " of other users is left out"
                                                          : " of other users are left out"));
  }
  // Another user's own processes may well count there.
  const bool is_refused =
      !folder.refusal.empty() && !(folder.is_anothers && !folder.processes.empty());
  if (is_refused) {
    print_message("stats", "{}: the shim keeps no counters there: {}", printable(options.folder),
                  folder.refusal);
  } else if (folder.processes.empty() && folder.refused.empty()) {
    print_message("stats",
                  "no counters in {}: no process that uses CUDA has run under the shim "
                  "since they were cleared, or it had another FIBSHIM_STATS_DIR. "
                  "'fibshim doctor' finds out why",
                  printable(options.folder));
  }
}

// Nothing, with a message, where there is nothing to compare.
std::optional<std::vector<SideGroup>> find_sides(const CountersFolder& folder,
                                                 const StatsOptions& options) {
  if (!options.earlier.empty()) {
    auto group = compare_with_earlier(folder.processes, options.filter, options.earlier);
    if (group) return std::vector{std::move(*group)};
    print_message("stats", printable(group.error()));
    return std::nullopt;
  }
  auto groups = ranks_of(folder.processes);
  if (!groups.empty()) return groups;
  print_message("stats", "nothing to compare: no two processes of one job have counted launches");
  return std::nullopt;
}

int compare(const CountersFolder& folder, const StatsOptions& options) {
  const auto groups = find_sides(folder, options);
  if (!groups) return kExitWrong;
  const bool is_written = write_output(
      "stats", options.output,
      options.wants_json ? json_text(differences_to_json(*groups)) : differences_text(*groups));
  return is_written && std::ranges::none_of(*groups, &SideGroup::differs) ? kExitFine : kExitWrong;
}

}  // namespace

int stats_command(int argc, const char* const* argv) {
  StatsOptions options;
  CommandLine line(
      "stats", "What happened to the launches of all processes under the shim", "[OPTIONS] [FILE]",
      "0 fine, also without any counters; 1 a file or the folder cannot be read, or a "
      "process of --pid has no counters; the others are printed; of --diff: they "
      "run different kernels (shapes do not matter), or there is nothing to compare; 2 "
      "wrong usage.");
  line.positional("FILE", &options.earlier, "with --diff: what stats --json wrote earlier");
  add_filter_options(&line, &options.filter);
  line.choice(
      "--by", &options.group_by, group_by_names(),
      "one line for each of these: launches, share of hits, and the main reason for falling "
      "back");
  line.flag("--per-process", &options.is_per_process,
            "each process on its own, with its config folder and GPUs");
  line.number("--rate", &options.rate_seconds, 0.1, 3600.0, "SECONDS",
              "look twice, this many seconds apart, and print launches per second");
  line.flag("--diff", &options.wants_diff,
            "whether the processes of each job decide alike; with FILE, whether all of them do as "
            "those of an earlier stats --json did");
  line.json(&options.wants_json);
  line.flag("--prometheus", &options.wants_prometheus, "print the Prometheus text format");
  line.number("--max-series", &options.prometheus.max_series, size_t{1}, size_t{1000000}, "N",
              kMaxSeriesHelp);
  line.option("--output", &options.output, "FILE",
              "write to this file instead of stdout; a regular file is replaced as a whole, by "
              "rename");
  line.stats_dir(&options.folder, "read this folder instead of FIBSHIM_STATS_DIR");
  line.flag("--clear", &options.clears, "delete the counters of processes that ended, at once");
  line.check([&options] { return conflict_in(options); });
  if (!line.parse(argc, argv)) return line.exit_code();
  if (options.clears) return clear(options);

  delete_old_counters(options.folder);
  bool has_all = true;
  const auto reading = read_counts(options, &has_all);
  if (!reading) return kExitWrong;
  const CountersFolder& folder = reading->folder;
  if (has_all) report_gaps(folder, options);
  if (options.wants_diff) {
    const int code = compare(folder, options);
    return has_all && folder.refused.empty() ? code : kExitWrong;
  }
  const bool is_written = write_output("stats", options.output, to_text(*reading, options));
  return has_all && folder.refused.empty() && is_written ? kExitFine : kExitWrong;
}

}  // namespace fibshim::tools
