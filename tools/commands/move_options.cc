#include "tools/commands/move_options.h"

#include <cstddef>
#include <set>

#include "shim/abi/writers.h"
#include "tools/base/files.h"
#include "tools/base/folder_list.h"
#include "tools/base/terminal.h"
#include "tools/lint/mistakes.h"

namespace fibshim::tools {
namespace {

// True if the process belongs to the job: a label, or VAR=VALUE, also from its environment.
bool is_in_job(const ProcessCounters& process, const std::string& job) {
  if (process.folder.job == job) return true;
  if (job.find('=') == std::string::npos) return false;
  // The pid of a process in another container may be another one's here.
  if (!is_process_alive(process.pid, process.start_time)) return false;
  const std::string environment = read_small_file(fmt::format("/proc/{}/environ", process.pid));
  return std::ranges::count(split(environment, '\0'), job) != 0;
}

const char* conflict_in(const MoveOptions& options) {
  if (!options.pids.empty() + options.wants_all + !options.job.empty() > 1) {
    return "--pid, --all and --job exclude each other";
  }
  if (options.wants_all && !options.from.empty()) return "--all and --from exclude each other";
  return options.folder.size() >= kControlPathBytes ? "DIR: the path is too long" : "";
}

}  // namespace

void add_choice_options(CommandLine* line, MoveOptions* options) {
  line->pids(&options->pids, "only this process (may be repeated)");
  line->flag("--all", &options->wants_all,
             "all processes of the stats folder, whatever folders they run on; without it a DIR is "
             "refused where these differ");
  line->option("--from", &options->from, "DIR", "only the processes that run on this folder");
}

void add_folder_options(CommandLine* line, MoveOptions* options, bool* wants_json) {
  line->flag("--no-check", &options->is_unchecked,
             "do not check the folder from here first; the processes do in any case");
  line->flag(
      "--force", &options->is_forced,
      "also to a folder with mistakes that only `fibshim check` looks for; they are counted");
  line->json(wants_json);
  line->stats_dir(&options->stats_dir, "ask there instead of in FIBSHIM_STATS_DIR");
  line->check([options] {
    if (!options->folder.empty()) options->folder = absolute_folders(options->folder);
    return std::string(conflict_in(*options));
  });
}

std::string fault_of(const char* command, const MoveOptions& options) {
  const std::string& folder = options.folder;
  const CheckReport report = check_with_mistakes(folder);
  const FoundMistakes found = count_mistakes(folder, report);
  if (report.snapshot != nullptr && found.errors == 0 &&
      (found.mistakes == 0 || options.is_forced)) {
    if (found.mistakes > 0)
      print_message(command, "{} {}", printable(folder), printable(found.words));
    return "";
  }
  for (const Diagnostic& diagnostic : report.diagnostics) {
    if (diagnostic.severity == Severity::error) {
      print_message(command, printable(format_diagnostic(diagnostic)));
    }
  }
  if (found.errors > 0) return "the config folder is not valid";
  print_message(command,
                "no process was moved; use --force to move them to a folder with mistakes");
  return "the config folder has mistakes";
}

std::string folder_in(const ProcessCounters& process) {
  const FolderInForce& folder = process.folder;
  return folder.config.path.empty() ? resolved_folders(folder.configured) : folder.config.path;
}

std::vector<ProcessCounters> choose_processes(const char* command, CountersFolder folder,
                                              const MoveOptions& options, bool* has_all) {
  std::set<uint64_t> missing(options.pids.begin(), options.pids.end());
  const std::set<uint64_t> wanted = missing;
  std::set<uint64_t> alive;
  for (const ProcessCounters& process : folder.processes) {
    if (process.is_alive) alive.insert(process.pid);
  }
  std::vector<ProcessCounters> out;
  for (ProcessCounters& process : folder.processes) {
    const bool is_named = wanted.contains(process.pid);
    if (!wanted.empty() && !is_named) continue;
    if (!process.is_alive && alive.contains(process.pid)) continue;  // the pid's last process
    if (!(process.is_alive && is_ours_to_change(process.owner)) && !is_named) continue;
    if (!options.job.empty() && !is_in_job(process, options.job)) continue;
    if (!options.from.empty() && folder_in(process) != resolved_folders(options.from)) continue;
    missing.erase(process.pid);
    out.push_back(std::move(process));
  }
  // A process that called exec has a file for each program; only the last of these programs runs.
  for (size_t i = 0; i + 1 < out.size();) {
    const bool is_same = out[i].pid == out[i + 1].pid && out[i].start_time == out[i + 1].start_time;
    if (is_same) {
      out.erase(out.begin() + static_cast<std::ptrdiff_t>(
                                  out[i].created_unix_ns > out[i + 1].created_unix_ns ? i + 1 : i));
    } else {
      ++i;
    }
  }
  for (const uint64_t pid : missing) {
    print_message(command, "no counters of process {} in {}", pid, printable(options.stats_dir));
  }
  *has_all = missing.empty();
  return out;
}

std::string difference_in(const std::vector<ProcessCounters>& processes,
                          const MoveOptions& options) {
  const bool is_chosen = options.wants_all || !options.pids.empty() || !options.job.empty();
  if (options.folder.empty() || is_chosen) return "";
  std::map<std::string, std::string> pids_in;
  for (const ProcessCounters& process : processes) {
    const std::string folder = folder_in(process);
    if (folder == resolved_folders(options.folder)) continue;
    pids_in[folder] += fmt::format(" {}", process.pid);
  }
  if (pids_in.size() < 2) return "";
  std::string out;
  for (const auto& [folder, pids] : pids_in) {
    out += fmt::format("{}{} (pid{})", out.empty() ? "" : ", ", folder.empty() ? "none" : folder,
                       pids);
  }
  return "the processes run on different folders: " + out +
         "; --from DIR moves those of one, --all moves all of them";
}

}  // namespace fibshim::tools
