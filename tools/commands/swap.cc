// fibshim swap: moves running processes to another config folder, or to none and back.
#include <limits.h>
#include <stdlib.h>

#include <charconv>
#include <set>
#include <tuple>

#include <nlohmann/json.hpp>

#include "shim/abi/writers.h"
#include "tools/commands/commands.h"
#include "tools/commands/move_options.h"
#include "tools/counters/control.h"
#include "tools/base/files.h"
#include "tools/base/folder_list.h"
#include "tools/processes/installation.h"
#include "tools/processes/processes.h"
#include "tools/base/setting_values.h"

namespace fibshim::tools {
namespace {

constexpr double kDefaultWaitSeconds = 30;

struct SwapOptions {
  MoveOptions move;
  bool is_off = false;
  bool is_on = false;
  bool is_rollback = false;
  bool is_dry_run = false;
  std::string wait;  // seconds as given; empty: do not wait
  bool wants_link = false;
  bool wants_json = false;
  double wait_seconds = kDefaultWaitSeconds;
};

// The folder that the process is to use; empty: none.
std::string destination_of(const ProcessCounters& process, const SwapOptions& options) {
  const FolderInForce& folder = process.folder;
  if (options.is_off) return "";
  if (!options.move.folder.empty()) return options.move.folder;
  return options.is_rollback && folder.state != FolderState::off ? folder.previous
                                                                 : folder.config.path;
}

// Why root does not repoint a link that a process of `named_by` names; empty if that user could.
std::string distrust_of(const struct stat& link, const struct stat& folder, uid_t named_by) {
  if (geteuid() != 0) return "";
  if (named_by != 0 && named_by != link.st_uid) {
    return "a process of another user than the link's owner names it";
  }
  if ((folder.st_uid != link.st_uid && folder.st_uid != 0) ||
      writers_of(folder.st_mode) != Writers::owner) {
    return "others than its owner can write in the folder that it lies in";
  }
  return "";
}

// A new symbolic link that will replace an old one. It is created beside the old one, so that
// failures are known before any process moves.
class NewLink {
 public:
  static tl::expected<NewLink, std::string> make(const std::string& link, const std::string& target,
                                                 uid_t named_by) {
    const size_t slash = link.rfind('/');
    if (slash == std::string::npos) return tl::unexpected(std::string("it is no absolute path"));
    if (split_folders(link).size() > 1) {
      return tl::unexpected(std::string("it names several folders"));
    }
    NewLink out;
    out.name_ = link.substr(slash + 1);
    // Checks and changes use this descriptor, and so the same folder, even if the path changes.
    out.folder_ =
        FileDescriptor(open(link.substr(0, slash + 1).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    struct stat folder;
    struct stat status;
    if (!out.folder_ || fstat(out.folder_.get(), &folder) != 0 ||
        fstatat(out.folder_.get(), out.name_.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0) {
      return tl::unexpected(std::string(strerror(errno)));
    }
    if (!S_ISLNK(status.st_mode)) return tl::unexpected(std::string("it is no symbolic link"));
    if (std::string why = distrust_of(status, folder, named_by); !why.empty()) {
      return tl::unexpected(std::move(why));
    }
    const std::string temporary = fmt::format("{}.{}.swap", out.name_, getpid());
    if (symlinkat(target.c_str(), out.folder_.get(), temporary.c_str()) != 0) {
      return tl::unexpected(std::string(strerror(errno)));
    }
    out.temporary_ = temporary;
    // The new link keeps the old one's owner.
    if (geteuid() == 0 && fchownat(out.folder_.get(), temporary.c_str(), status.st_uid,
                                   status.st_gid, AT_SYMLINK_NOFOLLOW) != 0) {
      return tl::unexpected(std::string(strerror(errno)));
    }
    return out;
  }
  NewLink(NewLink&& other) noexcept
      : folder_(std::move(other.folder_)),
        name_(std::move(other.name_)),
        temporary_(std::exchange(other.temporary_, "")) {}
  ~NewLink() {
    if (!temporary_.empty()) (void)unlinkat(folder_.get(), temporary_.c_str(), 0);
  }

  // Replaces the old link atomically. Returns why that failed, or "".
  std::string put_in_place() {
    if (renameat(folder_.get(), temporary_.c_str(), folder_.get(), name_.c_str()) != 0) {
      return strerror(errno);
    }
    temporary_.clear();
    return "";
  }

 private:
  NewLink() : folder_(-1) {}
  FileDescriptor folder_;
  std::string name_;
  std::string temporary_;  // name of the new link; empty once it is in place
};

// A FIBSHIM_CONFIG value that leads to another folder than the one to which its processes move.
struct StaleConfig {
  std::string path;
  std::string target;
  std::string reading;  // what processes that start later with this value will do
  std::optional<NewLink> link;
};

// What processes started later with this FIBSHIM_CONFIG will do; nothing if they use `target`.
std::optional<std::string> later_reading(const std::string& path, const std::string& target) {
  for (const std::string& folder : split_folders(path)) {
    if (access(path_of_folder(folder).c_str(), F_OK) == 0) continue;
    return fmt::format("find no folder there: {}", strerror(errno));
  }
  const std::string now = resolved_folders(path);
  if (now == resolved_folders(target)) return std::nullopt;
  return fmt::format("read {}", printable(now));
}

bool is_link(const std::string& path) {
  struct stat status;
  return lstat(path.c_str(), &status) == 0 && S_ISLNK(status.st_mode);
}

// Returns each such value once, with its new link if --link asks for one. Fails if a link cannot be
// repointed.
tl::expected<std::vector<StaleConfig>, std::string> find_stale_configs(
    const std::vector<ProcessCounters>& processes, const SwapOptions& options) {
  std::set<std::tuple<std::string, std::string, uid_t>> configs;
  for (const ProcessCounters& process : processes) {
    const std::string target = destination_of(process, options);
    if (process.folder.configured.empty() || target.empty() || options.is_on) continue;
    configs.emplace(process.folder.configured, target, process.owner);
  }
  std::vector<StaleConfig> out;
  for (const auto& [path, target, named_by] : configs) {
    const auto reading = later_reading(path, target);
    if (!reading) continue;
    out.push_back({path, target, *reading, std::nullopt});
    if (!options.wants_link) continue;
    auto link = NewLink::make(path, target, named_by);
    if (!link) {
      return tl::unexpected(fmt::format("{}: cannot repoint it: {}", path, link.error()));
    }
    out.back().link.emplace(std::move(*link));
  }
  return out;
}

// Repoints the links if --link asks for it, else prints what processes that start later will read.
// Returns false if a link was not repointed.
bool repoint_stale_configs(std::vector<StaleConfig>* configs) {
  bool is_done = true;
  for (StaleConfig& config : *configs) {
    const std::string path = printable(config.path);
    if (!config.link) {
      print_message("swap", "processes that start later with FIBSHIM_CONFIG={} {}{}", path,
                    config.reading, is_link(config.path) ? "; --link repoints it" : "");
      continue;
    }
    const std::string reason = config.link->put_in_place();
    if (reason.empty()) {
      print_message("swap", "{} now leads to {}", path, printable(config.target));
    } else {
      print_message("swap", "{}: cannot repoint it: {}", path, reason);
      is_done = false;
    }
  }
  return is_done;
}

std::string destination(const SwapOptions& options) {
  return options.is_off        ? "off"
         : options.is_on       ? "on"
         : options.is_rollback ? "rollback"
                               : options.move.folder;
}

// "from DIR to DIR". The first folder comes from the counters, which were read before the move.
std::string move_text(const ProcessCounters& process, const SwapOptions& options) {
  const FolderInForce& folder = process.folder;
  const std::string target = destination_of(process, options);
  return fmt::format("from {} to {}",
                     folder.state == FolderState::off ? "off"
                     : folder.config.path.empty()     ? "no folder"
                                                      : folder.config.path,
                     target.empty() ? "off" : target);
}

std::string to_text(const std::vector<ProcessCounters>& processes,
                    const std::vector<MoveResult>& results, const SwapOptions& options) {
  std::string out;
  for (size_t i = 0; i < results.size(); ++i) {
    const MoveResult& result = results[i];
    out += fmt::format("pid {}: {}", result.pid, move_state_name(result.state));
    if (!result.reason.empty()) out += ": " + printable(result.reason);
    const bool is_asked = result.state == MoveState::asked;
    if (is_asked || result.state == MoveState::moved) {
      out += (is_asked ? " to move " : " ") + printable(move_text(processes[i], options));
    }
    if (result.moved_graphs != 0) {
      out += fmt::format(", {} with it", counted(result.moved_graphs, "graph"));
    }
    if (result.kept_graphs != 0) {
      out += fmt::format(", {} as before", counted(result.kept_graphs, "graph"));
    }
    out += "\n";
  }
  return out;
}

// `error`: why no process was asked; empty otherwise.
nlohmann::ordered_json to_json(const SwapOptions& options,
                               const std::vector<ProcessCounters>& processes,
                               const std::vector<MoveResult>& results, const std::string& error) {
  nlohmann::ordered_json out;
  out["version"] = 1;
  out["to"] = destination(options);
  out["processes"] = nlohmann::ordered_json::array();
  for (size_t i = 0; i < results.size(); ++i) {
    out["processes"].push_back({{"pid", results[i].pid},
                                {"file", results[i].file},
                                {"from", processes[i].folder.config.path},
                                {"to", destination_of(processes[i], options)},
                                {"state", move_state_name(results[i].state)},
                                {"reason", results[i].reason},
                                {"graphs_moved", results[i].moved_graphs},
                                {"graphs_kept", results[i].kept_graphs}});
  }
  if (!error.empty()) out["error"] = error;
  return out;
}

// Ends a call that asks no process.
int fail(const SwapOptions& options, const std::string& error) {
  print_message("swap", printable(error));
  if (options.wants_json) (void)print_json(to_json(options, {}, {}, error));
  return kExitWrong;
}

// The results of a dry run.
std::vector<MoveResult> results_of_dry_run(const std::vector<ProcessCounters>& processes,
                                           const SwapOptions& options) {
  std::vector<MoveResult> out;
  for (const ProcessCounters& process : processes) {
    const FolderInForce& folder = process.folder;
    const std::string target = destination_of(process, options);
    MoveResult result = {process.pid, process.file, MoveState::would_move, ""};
    const bool is_off = folder.state == FolderState::off;
    if (!process.is_alive) {
      result.state = MoveState::dead;
      result.reason = "it has ended";
    } else if (target.empty() && !options.is_off) {
      result.state = MoveState::refused;
      result.reason = "it has been in no other folder";
    } else if (options.is_off ? is_off
                              : !is_off && resolved_folders(target) == folder.config.path) {
      result.state = MoveState::would_stay;
      result.reason = "it is there already";
    } else {
      result.reason = move_text(process, options);
    }
    out.push_back(std::move(result));
  }
  return out;
}

std::vector<MoveResult> ask(const AskingRight& right, const std::vector<ProcessCounters>& processes,
                            const SwapOptions& options, ControlClock::time_point deadline) {
  const AskTarget target = options.is_off        ? AskTarget::off
                           : options.is_on       ? AskTarget::on
                           : options.is_rollback ? AskTarget::back
                                                 : AskTarget::folder;
  const Move move = {target, options.move.folder};
  if (!options.move.job.empty()) return move_together(right, processes, move, deadline);
  return move_each(right, processes, move, options.wait.empty() ? nullptr : &deadline);
}

// True if the result is a success. A process that ends meanwhile needs no move, unless it is a rank
// of a job: then the job has not moved.
bool is_fine(const MoveResult& result, const ProcessCounters& process, const SwapOptions& options) {
  return result.state == MoveState::moved || result.state == MoveState::asked ||
         result.state == MoveState::would_move || result.state == MoveState::would_stay ||
         (result.state == MoveState::dead && process.is_alive && options.move.job.empty());
}

int swap(const SwapOptions& options) {
  if (!options.move.folder.empty() && !options.move.is_unchecked) {
    const std::string fault = fault_of("swap", options.move);
    if (!fault.empty() && options.wants_json) (void)print_json(to_json(options, {}, {}, fault));
    if (!fault.empty()) return kExitWrong;
  }
  const auto deadline =
      ControlClock::now() + std::chrono::duration_cast<ControlClock::duration>(
                                std::chrono::duration<double>(options.wait_seconds));
  const auto right = AskingRight::acquire(options.move.stats_dir, deadline);
  auto found = read_counters_folder(options.move.stats_dir);
  if (!right || !found) {
    return fail(options, fmt::format("{}: {}", options.move.stats_dir,
                                     right ? found.error() : right.error()));
  }
  bool has_all = true;
  const std::vector<ProcessCounters> processes =
      choose_processes("swap", std::move(*found), options.move, &has_all);
  if (processes.empty()) {
    return fail(options, fmt::format("no such process runs under the shim with counters in {}",
                                     options.move.stats_dir));
  }
  if (const std::string why = difference_in(processes, options.move); !why.empty()) {
    return fail(options, why);
  }
  auto stale = find_stale_configs(processes, options);
  if (!stale) return fail(options, stale.error());
  const std::vector<MoveResult> results = options.is_dry_run
                                              ? results_of_dry_run(processes, options)
                                              : ask(*right, processes, options, deadline);
  bool are_fine = has_all;
  for (size_t i = 0; i < results.size(); ++i) {
    are_fine = is_fine(results[i], processes[i], options) && are_fine;
  }
  const bool is_printed = options.wants_json ? print_json(to_json(options, processes, results, ""))
                                             : print_data(to_text(processes, results, options));
  if (are_fine && !options.is_dry_run) are_fine = repoint_stale_configs(&*stale);
  return are_fine && is_printed ? kExitFine : kExitWrong;
}

// A message if options exclude each other or one is missing; else empty.
const char* conflict_in(const SwapOptions& options) {
  const int targets =
      !options.move.folder.empty() + options.is_off + options.is_on + options.is_rollback;
  if (targets == 0) return "name a folder, or --off, --on or --rollback";
  if (targets > 1) return "DIR, --off, --on and --rollback exclude each other";
  const std::string& folder = options.move.folder;
  const bool is_one = split_folders(folder).size() == 1 && path_of_folder(folder) == folder;
  if (options.wants_link && !is_one) {
    return "--link takes one folder, without a share";
  }
  return "";
}

bool parse_wait(SwapOptions* options) {
  // A repointed link stays, so all processes must have moved first.
  if (options->wait.empty() && (options->wants_link || !options->move.job.empty())) {
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
  SwapOptions options;
  CommandLine line(
      "swap", "Moves running processes to another config folder",
      "[OPTIONS] DIR | --off | --on | --rollback",
      "0 all have moved (without --wait: were asked); 1 the folder is wrong, there is no "
      "such process, or one has not moved; 2 wrong usage.");
  line.positional("DIR", &options.move.folder, "the folder to go to");
  line.flag("--off", &options.is_off, "to none: originals run until --on, or another folder");
  line.flag("--on", &options.is_on,
            "back to the folder before --off, or to where the link leads by now; it is read anew");
  line.flag("--rollback", &options.is_rollback,
            "each process to the folder that it was in before its last swap");
  line.flag("--dry-run", &options.is_dry_run, "say what would be done, and ask nobody");
  add_choice_options(&line, &options.move);
  const Option job = line.option(
      "--job", &options.move.job, "NAME|VAR=VALUE",
      "the ranks of this job, by FIBSHIM_JOB or a variable of their environment: all of them, at "
      "once, or none; implies --wait");
  line.flag("--wait{30}", &options.wait,
            "until all have moved, this many seconds at most (--wait=SECONDS)");
  line.flag(
      "--link", &options.wants_link,
      "repoint the link that FIBSHIM_CONFIG is, for processes that start later, once all have "
      "moved; implies --wait");
  add_folder_options(&line, &options.move, &options.wants_json);
  line.check([&options] { return std::string(conflict_in(options)); });
  line.check([&] {
    if (!parse_wait(&options)) return "--wait: takes seconds, more than 0 and at most 500";
    return job.count() > 0 && options.move.job.empty() ? "--job: needs a name" : "";
  });
  return line.parse(argc, argv) ? swap(options) : line.exit_code();
}

}  // namespace fibshim::tools
