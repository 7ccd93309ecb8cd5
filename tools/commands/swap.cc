// fibshim swap: moves running processes to another config folder, or to none and back.
#include <limits.h>
#include <stdlib.h>

#include <algorithm>
#include <charconv>
#include <set>

#include "tools/commands/commands.h"
#include "tools/counters/control.h"
#include "tools/base/diagnostics_output.h"
#include "tools/base/files.h"
#include "tools/processes/processes.h"
#include "tools/base/setting_values.h"

namespace fibshim::tools {
namespace {

constexpr double kDefaultWaitSeconds = 30;

struct Options {
  std::string folder;  // where to go, as given
  bool is_off = false;
  bool is_on = false;
  std::vector<uint64_t> pids;
  bool wants_all = false;
  std::string job;
  std::string wait;  // seconds as given; empty: does not wait
  bool wants_link = false;
  bool is_unchecked = false;
  bool wants_json = false;
  std::string stats_dir;
  double wait_seconds = kDefaultWaitSeconds;
};

bool is_fine(MoveState state) { return state == MoveState::moved || state == MoveState::asked; }

// Absolute, with links in it as they are: each process follows them itself.
std::string absolute(const std::string& path) {
  if (path.starts_with('/')) return path;
  char here[PATH_MAX];
  return getcwd(here, sizeof here) == nullptr ? path : fmt::format("{}/{}", here, path);
}

// False, with every mistake on stderr: the processes would refuse it.
bool passes_check(const std::string& folder) {
  const CheckReport report = check_folder(folder);
  if (report.snapshot != nullptr && report.error_count == 0) return true;
  for (const Diagnostic& diagnostic : report.diagnostics) {
    if (diagnostic.severity == Severity::error) {
      print_message("swap", printable(format_diagnostic(diagnostic)));
    }
  }
  return false;
}

// A label, or VAR=VALUE, which may also stand in the environment that the process was started with.
bool is_in_job(const ProcessCounters& process, const std::string& job) {
  if (process.folder.job == job) return true;
  if (job.find('=') == std::string::npos) return false;
  const std::string environment = read_small_file(fmt::format("/proc/{}/environ", process.pid));
  return std::ranges::count(split(environment, '\0'), job) != 0;
}

// The processes that are meant. *has_all: every --pid has counters.
std::vector<ProcessCounters> choose(CountersFolder folder, const Options& options, bool* has_all) {
  std::set<uint64_t> missing(options.pids.begin(), options.pids.end());
  const std::set<uint64_t> wanted = missing;
  std::vector<ProcessCounters> out;
  for (ProcessCounters& process : folder.processes) {
    const bool is_named = wanted.contains(process.pid);
    if (!wanted.empty() && !is_named) continue;
    if (!(process.is_alive && is_ours_to_change(process.owner)) && !is_named) continue;
    if (!options.job.empty() && !is_in_job(process, options.job)) continue;
    missing.erase(process.pid);
    out.push_back(std::move(process));
  }
  // Of the programs that a process went on with by exec, the last one runs.
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
    print_message("swap", "no counters of process {} in {}", pid, printable(options.stats_dir));
  }
  *has_all = missing.empty();
  return out;
}

bool is_link(const std::string& path) {
  struct stat status;
  return lstat(path.c_str(), &status) == 0 && S_ISLNK(status.st_mode);
}

// What FIBSHIM_CONFIG is in these processes, and who says so, each once.
std::set<std::pair<std::string, uid_t>> configured_in(
    const std::vector<ProcessCounters>& processes) {
  std::set<std::pair<std::string, uid_t>> out;
  for (const ProcessCounters& process : processes) {
    if (!process.folder.configured.empty()) {
      out.emplace(process.folder.configured, process.owner);
    }
  }
  return out;
}

// Why root does not repoint a link for this user, who has named it; empty: he could do it himself.
std::string distrust_of(const struct stat& link, const struct stat& folder, uid_t named_by) {
  if (geteuid() != 0) return "";
  if (named_by != 0 && named_by != link.st_uid) {
    return "a process of another user than the link's owner names it";
  }
  if ((folder.st_uid != link.st_uid && folder.st_uid != 0) || (folder.st_mode & 0022) != 0) {
    return "others than its owner can write in the folder that it lies in";
  }
  return "";
}

// Whoever looks sees the old link or the new one. Why not; empty: done.
std::string repoint(const std::string& link, const std::string& target, uid_t named_by) {
  const size_t slash = link.rfind('/');
  if (slash == std::string::npos) return "it is no absolute path";
  const std::string name = link.substr(slash + 1);
  // What was looked at is what is changed, wherever the path leads by then.
  const FileDescriptor folder(
      open(link.substr(0, slash + 1).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  struct stat folder_status;
  struct stat status;
  if (!folder || fstat(folder.get(), &folder_status) != 0 ||
      fstatat(folder.get(), name.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0) {
    return strerror(errno);
  }
  if (!S_ISLNK(status.st_mode)) return "it is no symbolic link";
  if (std::string why = distrust_of(status, folder_status, named_by); !why.empty()) return why;
  const std::string temporary = fmt::format("{}.{}.swap", name, getpid());
  if (symlinkat(target.c_str(), folder.get(), temporary.c_str()) != 0) return strerror(errno);
  // It stays its owner's.
  if ((geteuid() != 0 || fchownat(folder.get(), temporary.c_str(), status.st_uid, status.st_gid,
                                  AT_SYMLINK_NOFOLLOW) == 0) &&
      renameat(folder.get(), temporary.c_str(), folder.get(), name.c_str()) == 0) {
    return "";
  }
  std::string reason = strerror(errno);
  (void)unlinkat(folder.get(), temporary.c_str(), 0);
  return reason;
}

// What processes that start later with this FIBSHIM_CONFIG will do, unless it leads to `target`.
std::optional<std::string> later_reading(const std::string& path, const std::string& target) {
  char now[PATH_MAX];
  char then[PATH_MAX];
  if (realpath(path.c_str(), now) == nullptr) {
    return fmt::format("find no folder there: {}", strerror(errno));
  }
  if (realpath(target.c_str(), then) != nullptr && strcmp(now, then) == 0) return std::nullopt;
  return fmt::format("read {}", printable(now));
}

// Repoints links where that is wanted, else says what processes that start later will read. False: a link
// was not repointed.
bool repoint_links(const Options& options, const std::vector<ProcessCounters>& processes,
                   const std::string& target) {
  bool is_done = true;
  for (const auto& [path, named_by] : configured_in(processes)) {
    const auto reading = later_reading(path, target);
    if (!reading) continue;
    if (!options.wants_link) {
      print_message("swap", "processes that start later with FIBSHIM_CONFIG={} {}{}",
                    printable(path), *reading, is_link(path) ? "; --link repoints it" : "");
      continue;
    }
    const std::string reason = repoint(path, target, named_by);
    if (reason.empty()) {
      print_message("swap", "{} now leads to {}", printable(path), printable(target));
    } else {
      print_message("swap", "{}: cannot repoint it: {}", printable(path), reason);
      is_done = false;
    }
  }
  return is_done;
}

std::string destination(const Options& options, const std::string& folder) {
  return options.is_off ? "off" : options.is_on ? "on" : folder;
}

std::string to_text(const std::vector<MoveResult>& results) {
  std::string out;
  for (const MoveResult& result : results) {
    out += fmt::format("pid {}: {}", result.pid, move_state_name(result.state));
    if (!result.reason.empty()) out += ": " + printable(result.reason);
    out += "\n";
  }
  return out;
}

// `error`: why no process was asked; empty otherwise.
nlohmann::ordered_json to_json(const Options& options, const std::string& folder,
                               const std::vector<MoveResult>& results, const std::string& error) {
  nlohmann::ordered_json out;
  out["version"] = 1;
  out["to"] = destination(options, folder);
  out["processes"] = nlohmann::ordered_json::array();
  for (const MoveResult& result : results) {
    out["processes"].push_back({{"pid", result.pid},
                                {"file", result.file},
                                {"state", move_state_name(result.state)},
                                {"reason", result.reason}});
  }
  if (!error.empty()) out["error"] = error;
  return out;
}

// Of a call that asks nobody.
int fail(const Options& options, const std::string& folder, const std::string& error) {
  if (options.wants_json) (void)print_json(to_json(options, folder, {}, error));
  return kExitWrong;
}

int swap(const Options& options) {
  const std::string folder = options.folder.empty() ? "" : absolute(options.folder);
  if (folder.size() >= kControlPathBytes) return usage_error("swap", "DIR: the path is too long");
  if (!folder.empty() && !options.is_unchecked && !passes_check(folder)) {
    return fail(options, folder, "the config folder is not valid");
  }
  const auto deadline =
      ControlClock::now() + std::chrono::duration_cast<ControlClock::duration>(
                                std::chrono::duration<double>(options.wait_seconds));
  const auto right = AskingRight::acquire(options.stats_dir, deadline);
  auto found = read_counters_folder(options.stats_dir);
  if (!right || !found) {
    const std::string error =
        fmt::format("{}: {}", options.stats_dir, right ? found.error() : right.error());
    print_message("swap", printable(error));
    return fail(options, folder, error);
  }
  bool has_all = true;
  const std::vector<ProcessCounters> processes = choose(std::move(*found), options, &has_all);
  if (processes.empty()) {
    const std::string error =
        fmt::format("no such process runs under the shim with counters in {}", options.stats_dir);
    print_message("swap", printable(error));
    return fail(options, folder, error);
  }
  const Move move = {options.is_off  ? AskTarget::off
                     : options.is_on ? AskTarget::on
                                     : AskTarget::folder,
                     folder};
  const bool is_waiting = !options.wait.empty();
  const std::vector<MoveResult> results =
      options.job.empty() ? move_each(*right, processes, move, is_waiting ? &deadline : nullptr)
                          : move_together(*right, processes, move, deadline);
  bool are_fine =
      std::ranges::all_of(results, [](const MoveResult& result) { return is_fine(result.state); });
  const bool is_printed = options.wants_json ? print_json(to_json(options, folder, results, ""))
                                             : print_data(to_text(results));
  if (are_fine && move.target == AskTarget::folder) {
    are_fine = repoint_links(options, processes, folder);
  }
  return has_all && are_fine && is_printed ? kExitFine : kExitWrong;
}

// What does not go together; empty: nothing.
const char* conflict_in(const Options& options) {
  if (!options.folder.empty() + options.is_off + options.is_on != 1) {
    return "name a folder, or --off, or --on";
  }
  if (!options.pids.empty() + options.wants_all + !options.job.empty() > 1) {
    return "--pid, --all and --job exclude each other";
  }
  if (options.wants_link && options.folder.empty()) return "--link takes a folder";
  return "";
}

bool parse_wait(Options* options) {
  // A repointed link is for good: first all have moved.
  if (options->wait.empty() && (options->wants_link || !options->job.empty())) {
    options->wait = fmt::format("{}", kDefaultWaitSeconds);
  }
  if (options->wait.empty()) return true;
  const char* const end = options->wait.data() + options->wait.size();
  const auto parsed = std::from_chars(options->wait.data(), end, options->wait_seconds);
  return parsed.ec == std::errc() && parsed.ptr == end && options->wait_seconds > 0 &&
         options->wait_seconds <= 500;
}

}  // namespace

int swap_command(int argc, const char* const* argv) {
  Options options;
  CommandLine line(
      "swap", "Moves running processes to another config folder", "[OPTIONS] DIR | --off | --on",
      "0 all have moved (without --wait: were asked); 1 the folder is wrong, there is no "
      "such process, or one has not moved; 2 wrong usage.");
  line.positional("DIR", &options.folder, "the folder to go to");
  line.flag("--off", &options.is_off, "to none: originals run until --on, or another folder");
  line.flag("--on", &options.is_on,
            "back to the folder before --off, or to where the link leads by now; it is read anew");
  line.pids(&options.pids, "only this process (may be repeated)");
  line.flag("--all", &options.wants_all, "all processes of the stats folder (the default)");
  auto* const job = line.option(
      "--job", &options.job, "NAME|VAR=VALUE",
      "the ranks of this job, by FIBSHIM_JOB or a variable of their environment: all of them, at "
      "once, or none; implies --wait");
  line.flag("--wait{30}", &options.wait,
            "until all have moved, this many seconds at most (--wait=SECONDS)");
  line.flag(
      "--link", &options.wants_link,
      "repoint the link that FIBSHIM_CONFIG is, for processes that start later, once all have "
      "moved; implies --wait");
  line.flag("--no-check", &options.is_unchecked,
            "do not check the folder from here first; the processes do in any case");
  line.json(&options.wants_json);
  line.stats_dir(&options.stats_dir, "ask there instead of in FIBSHIM_STATS_DIR");
  line.check([&options] { return std::string(conflict_in(options)); });
  line.check([&] {
    if (!parse_wait(&options)) return "--wait: takes seconds, more than 0 and at most 500";
    return job->count() > 0 && options.job.empty() ? "--job: needs a name" : "";
  });
  return line.parse(argc, argv) ? swap(options) : line.exit_code();
}

}  // namespace fibshim::tools
