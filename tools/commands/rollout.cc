// fibshim rollout: moves processes to another config folder a share at a time, watches those that have moved, and takes all
// back where they do worse than before.
#include <math.h>
#include <signal.h>

#include <algorithm>
#include <map>
#include <thread>

#include <nlohmann/json.hpp>

#include "shim/abi/outcomes.h"
#include "tools/commands/commands.h"
#include "tools/commands/move_options.h"
#include "tools/commands/rollout_stages.h"
#include "tools/counters/control.h"
#include "tools/counters/folder_findings.h"
#include "tools/counters/launch_groups.h"
#include "tools/counters/step_times.h"
#include "tools/base/folder_list.h"
#include "tools/base/setting_values.h"

namespace fibshim::tools {
namespace {

constexpr std::chrono::seconds kMoveTime{60};
constexpr std::chrono::milliseconds kPollInterval{500};
constexpr std::chrono::milliseconds kInterruptInterval{50};
constexpr uint64_t kLeastSteps = 20;  // fewer say nothing

volatile sig_atomic_t g_is_interrupted = 0;
void interrupt(int) { g_is_interrupted = 1; }

struct RolloutOptions {
  MoveOptions move;
  std::string shares = "10%,50%,100%";
  std::vector<double> stages;  // percent, rising
  double watch_seconds = 60;
  double slower_percent = 5;
  std::string check = "off";
  uint32_t check_interval = 0;  // 0: as they are told already
  bool wants_whole = false;
  bool is_dry_run = false;
  bool wants_json = false;
};

// What is known of a process at one time.
struct Reading {
  ProcessCounters process;
  LaunchNumbers all, hits;
  uint64_t served = 0;  // executions
  uint64_t errors = 0;
  uint64_t checks = 0;  // shadow checks
  std::vector<StepTimes> steps;
};
using ReadingsByFile =
    std::map<std::string, Reading>;  // by counters file: containers have equal pids

// What processes did between two readings.
struct Watched {
  Steps steps;
  uint64_t errors = 0, executions = 0, hits = 0, served = 0, checks = 0;

  void add(const Watched& more) {
    errors += more.errors;
    checks += more.checks;
    executions += more.executions;
    hits += more.hits;
    served += more.served;
    if (more.steps.count > steps.count) steps = more.steps;
  }
};

Watched between(const Reading& before, const Reading& after) {
  return {steps_between(before.steps, after.steps),
          subtract_to_zero(after.errors, before.errors),
          subtract_to_zero(after.all.executions, before.all.executions),
          subtract_to_zero(after.hits.executions, before.hits.executions),
          subtract_to_zero(after.served, before.served),
          subtract_to_zero(after.checks, before.checks)};
}

std::string words_of(const Watched& watched, const Watched* before) {
  std::string out;
  if (watched.steps.count > 0) {
    out = fmt::format("{} of the busiest graph, median {:.4g} us",
                      counted(watched.steps.count, "step"), watched.steps.median_us);
    if (before != nullptr && before->steps.count > 0) {
      out += fmt::format(" ({:.4g} us before)", before->steps.median_us);
    }
  } else {
    out = "no graph was launched";
  }
  out += fmt::format("; {}", counted(watched.errors, "error"));
  if (watched.executions == 0) return out + "; nothing was launched";
  return out +
         fmt::format(
             "; {:.1f} % of {} replaced; {}",
             100.0 * static_cast<double>(watched.served) / static_cast<double>(watched.executions),
             counted(watched.executions, "execution"),
             watched.checks == 0 ? "no shadow checks" : counted(watched.checks, "shadow check"));
}

nlohmann::ordered_json json_of(const Watched& watched) {
  nlohmann::ordered_json out;
  out["steps"] = watched.steps.count;
  out["step_median_us"] = watched.steps.count > 0 ? nlohmann::ordered_json(watched.steps.median_us)
                                                  : nlohmann::ordered_json();
  out["errors"] = watched.errors;
  out["shadow_checks"] = watched.checks;
  out["executions"] = watched.executions;
  out["hits"] = watched.hits;
  return out;
}

class Rollout {
 public:
  Rollout(const RolloutOptions& options, FileDescriptor folder, std::vector<Unit> units,
          bool can_share)
      : options_(options),
        folder_(std::move(folder)),
        units_(std::move(units)),
        names_(process_names(all_processes())),
        can_share_(can_share) {}

  // False: something was worse, or failed; what had moved was taken back.
  bool run() {
    time_steps(folder_.get(), all_processes(), true);
    // From the beginning and of all: steps with checks are compared with steps with checks.
    const bool wants_checks = options_.check_interval != 0;
    std::string fault = wants_checks ? ask_checks(options_.check_interval) : "";
    const bool is_done = fault.empty() ? run_stages() : stop(std::move(fault));
    if (!is_done && moved_count_ > 0) move_all_back();
    if (wants_checks) {
      fault = ask_checks(kShadowUnset);
      if (!fault.empty()) report("checks go on: " + fault);
    }
    time_steps(folder_.get(), all_processes(), false);
    return is_done;
  }

  bool is_output_gone() const { return is_output_gone_; }

  nlohmann::ordered_json to_json() const {
    nlohmann::ordered_json out;
    out["version"] = 1;
    out["to"] = options_.move.folder;
    out["state"] = reason_.empty() ? "complete" : "taken_back";
    out["reason"] = reason_;
    out["not_taken_back"] = not_taken_back_;
    out["before"] = json_of(before_);
    out["steps_not_judged"] = steps_not_judged_;
    out["stages"] = stages_;
    return out;
  }

 private:
  std::vector<ProcessCounters> all_processes() const {
    std::vector<ProcessCounters> out;
    for (const Unit& unit : units_) {
      out.insert(out.end(), unit.processes.begin(), unit.processes.end());
    }
    return out;
  }

  void report(const std::string& text) {
    if (options_.wants_json) {
      print_message("rollout", printable(text));
    } else {
      is_output_gone_ = !print_data(printable(text) + "\n") || is_output_gone_;
    }
  }

  bool stop(std::string reason) {
    reason_ = std::move(reason);
    report("stopped: " + reason_);
    return false;
  }

  std::string ask_checks(uint32_t interval) const {
    return check_at_least(options_.move.stats_dir, all_processes(), interval,
                          ControlClock::now() + kMoveTime);
  }

  // What will not be noticed.
  void report_unjudged() {
    if (before_.checks == 0) {
      report(
          "no launch was checked meanwhile: a solution with wrong results would not be noticed; "
          "--check, FIBSHIM_SHADOW or `fibshim shadow` has launches checked");
    }
    const auto has_steps = [](const auto& watched) {
      return watched.second.steps.count >= kLeastSteps;
    };
    const auto judged = static_cast<size_t>(std::ranges::count_if(watched_before_, has_steps));
    steps_not_judged_ = watched_before_.size() - judged;
    if (steps_not_judged_ == 0) return;
    report(
        fmt::format("steps of {} cannot be judged: fewer than {} launches of a graph whose kernels "
                    "a pattern knows; "
                    "slower kernels would not be noticed there",
                    counted(steps_not_judged_, "process", "processes"), kLeastSteps));
  }

  ReadingsByFile read_processes() const {
    ReadingsByFile out;
    for (const ProcessCounters& known : all_processes()) {
      auto process = read_counters_file(folder_.get(), known.file);
      if (!process || !process->has_value() || !(*process)->is_alive) continue;
      Reading reading;
      reading.process = std::move(**process);
      for (const LaunchGroup& group : group_launches({reading.process}, GroupBy::process)) {
        reading.all.add(group.numbers);
        reading.errors += errors_of(group);
        reading.served += served_by(group);
        const auto hits = group.outcomes.find(static_cast<uint32_t>(Outcome::hit));
        if (hits != group.outcomes.end()) reading.hits.add(hits->second);
      }
      for (const ShadowCount& count : reading.process.shadow) {
        reading.checks = saturating_add(reading.checks, count.numbers.checks);
      }
      reading.steps = read_step_times(folder_.get(), known.file);
      out.emplace(known.file, std::move(reading));
    }
    return out;
  }

  void remember_moves(const Unit& unit) {
    const ReadingsByFile now = read_processes();
    for (const ProcessCounters& process : unit.processes) {
      const auto found = now.find(process.file);
      if (found == now.end()) continue;
      const FolderInForce& folder = found->second.process.folder;
      moves_[process.file] = {folder.swap_count, {folder.config.digest, share_}};
    }
  }
  bool is_moved_by_another(const ProcessCounters& process) const {
    const auto move = moves_.find(process.file);
    return move != moves_.end() && move->second.swap_count != process.folder.swap_count;
  }

  // What a process that has moved does that it may not; empty: nothing. What it has launched since `before_move` counts:
  // a solution that is left alone after its first fault has no other. Of the folder that it was in before, nothing does: that is
  // what it is to get away from.
  std::string fault_in(const Unit& unit, const ReadingsByFile& before_move,
                       const ReadingsByFile& now) const {
    for (const ProcessCounters& process : unit.processes) {
      const auto before_moving = before_move.find(process.file);
      if (before_moving == before_move.end()) continue;
      const auto found = now.find(process.file);
      if (found == now.end()) return fmt::format("process {} has ended", names_.at(process.file));
      if (is_moved_by_another(found->second.process)) {
        return fmt::format("process {} was moved by somebody else", names_.at(process.file));
      }
      const auto move = moves_.find(process.file);
      if (move == moves_.end()) continue;
      const FolderFindings earlier = findings_in(before_moving->second.process, move->second.to);
      const FolderFindings findings = findings_in(found->second.process, move->second.to);
      if (findings.mismatches > earlier.mismatches) {
        return fmt::format("process {}: shadow checks found a solution wrong",
                           names_.at(process.file));
      }
      const uint64_t errors = subtract_to_zero(findings.errors, earlier.errors);
      const auto before = watched_before_.find(process.file);
      const uint64_t errors_before = before == watched_before_.end() ? 0 : before->second.errors;
      if (errors > errors_before) {
        return fmt::format(
            "process {}: {} ({} before)", names_.at(process.file),
            counted(errors, "launch failed in its solution", "launches failed in their solutions"),
            errors_before);
      }
    }
    return "";
  }

  // Until the time is up, or the first fault of one that has moved. Slower steps are one at the end, or when two readings have
  // found them: one may have met a pause.
  std::string watch(const ReadingsByFile& before_move, ReadingsByFile* begin, ReadingsByFile* end) {
    *begin = *end = read_processes();
    bool was_slow = false;
    const auto begun = ControlClock::now();
    const auto deadline = begun + std::chrono::duration_cast<ControlClock::duration>(
                                      std::chrono::duration<double>(options_.watch_seconds));
    while (true) {
      const auto next = std::min(ControlClock::now() + kPollInterval, deadline);
      while (ControlClock::now() < next && g_is_interrupted == 0 && !is_output_gone_) {
        std::this_thread::sleep_for(
            std::min<ControlClock::duration>(kInterruptInterval, next - ControlClock::now()));
      }
      if (g_is_interrupted != 0) return "interrupted";
      if (is_output_gone_) return "the output is gone";
      *end = read_processes();
      watched_seconds_ = std::chrono::duration<double>(ControlClock::now() - begun).count();
      for (size_t i = 0; i < moved_count_; ++i) {
        if (std::string fault = fault_in(units_[i], before_move, *end); !fault.empty())
          return fault;
      }
      const bool is_over = ControlClock::now() >= deadline;
      std::string slow = slowness(*begin, *end);
      if (is_over || (was_slow && !slow.empty())) return slow;
      was_slow = !slow.empty();
    }
  }

  // How many times as long its steps take as before; 0: too few to tell.
  double step_ratio(const ProcessCounters& process, const ReadingsByFile& begin,
                    const ReadingsByFile& end) const {
    const auto before = watched_before_.find(process.file);
    const auto from = begin.find(process.file);
    const auto to = end.find(process.file);
    if (before == watched_before_.end() || from == begin.end() || to == end.end()) return 0;
    const Steps now = between(from->second, to->second).steps;
    if (now.count < kLeastSteps || before->second.steps.count < kLeastSteps) return 0;
    return now.median_us / before->second.steps.median_us;
  }

  // Which process has slower steps, beyond what those that have not moved have, too; empty: none.
  std::string slowness(const ReadingsByFile& begin, const ReadingsByFile& end) const {
    std::vector<double> others;
    for (size_t i = moved_count_; i < units_.size(); ++i) {
      for (const ProcessCounters& process : units_[i].processes) {
        if (const double ratio = step_ratio(process, begin, end); ratio > 0) {
          others.push_back(ratio);
        }
      }
    }
    std::ranges::sort(others);
    const double usual = others.empty() ? 1 : others[others.size() / 2];
    for (size_t i = 0; i < moved_count_; ++i) {
      for (const ProcessCounters& process : units_[i].processes) {
        const double percent = (step_ratio(process, begin, end) / usual - 1) * 100;
        if (percent <= options_.slower_percent) continue;
        return fmt::format("process {}: a step takes {:.1f} % longer than before{}",
                           names_.at(process.file), percent,
                           others.empty() ? "" : ", more than where nothing has moved");
      }
    }
    return "";
  }

  // Of the units that have moved, or of all.
  Watched sum(const ReadingsByFile& begin, const ReadingsByFile& end, size_t units) const {
    Watched out;
    for (size_t i = 0; i < units; ++i) {
      for (const ProcessCounters& process : units_[i].processes) {
        const auto from = begin.find(process.file);
        const auto to = end.find(process.file);
        if (from != begin.end() && to != end.end()) out.add(between(from->second, to->second));
      }
    }
    return out;
  }

  // Empty, or why not: all of a unit go, or none. Back go all that still run, each for itself.
  std::string move_unit(const Unit& unit, const Move& move) const {
    const bool is_back = move.target != AskTarget::folder;
    const auto deadline = ControlClock::now() + kMoveTime;
    const auto right = AskingRight::acquire(options_.move.stats_dir, deadline);
    if (!right) return right.error();
    const std::vector<MoveResult> results =
        is_back ? move_each(*right, unit.processes, move, &deadline)
                : move_together(*right, unit.processes, move, deadline);
    for (const MoveResult& result : results) {
      if (result.state == MoveState::moved) continue;
      if (is_back && result.state == MoveState::dead) continue;
      return fmt::format("process {}: {}: {}", names_.at(result.file),
                         move_state_name(result.state), result.reason);
    }
    return "";
  }

  // To where it came from. Empty, or why not.
  std::string move_back(const Unit& unit) const {
    const bool was_on = unit.processes.front().folder.state == FolderState::on;
    return move_unit(unit, {was_on ? AskTarget::back : AskTarget::off, ""});
  }

  void move_all_back() {
    for (; moved_count_ > 0; --moved_count_) {
      Unit unit = units_[moved_count_ - 1];
      const ReadingsByFile now = read_processes();
      // "Back" of a process that somebody else has moved is where it was before that.
      const auto is_left = [&](const ProcessCounters& process) {
        const auto found = now.find(process.file);
        if (found == now.end()) return true;  // it has ended
        if (!is_moved_by_another(found->second.process)) return false;
        const std::string words =
            fmt::format("pid {}: left where somebody else has moved it: {}",
                        names_.at(process.file), folder_in(found->second.process));
        not_taken_back_.push_back(words);
        report(words);
        return true;
      };
      std::erase_if(unit.processes, is_left);
      if (unit.processes.empty()) continue;
      const std::string fault = move_back(unit);
      if (!fault.empty()) not_taken_back_.push_back(unit.name + ": " + fault);
      report(fault.empty() ? unit.name + ": taken back" : unit.name + ": not taken back: " + fault);
    }
  }

  bool run_stages() {
    ReadingsByFile begin, end;
    if (std::string fault = watch({}, &begin, &end); !fault.empty()) return stop(std::move(fault));
    for (const auto& [file, reading] : begin) {
      if (end.contains(file)) watched_before_[file] = between(reading, end.at(file));
    }
    before_ = sum(begin, end, units_.size());
    report(fmt::format("before: {:g} s, {}: {}", options_.watch_seconds,
                       counted(units_.size(), "process or job", "processes or jobs"),
                       words_of(before_, nullptr)));
    report_unjudged();
    for (const double share : options_.stages) {
      const Stage stage = stage_of(share, units_.size(), can_share_);
      // From a share it goes back first, so that `back` leads to where it came from later, too.
      if (share_ != 0) {
        if (const std::string fault = move_back(units_[0]); !fault.empty()) {
          return stop(units_[0].name + ": " + fault);
        }
        moved_count_ = 0;
        share_ = 0;
      }
      if (stage.units <= moved_count_) continue;
      const ReadingsByFile before_move = end;
      while (moved_count_ < stage.units) {
        const Unit& unit = units_[moved_count_];
        const std::string& folder = options_.move.folder;
        const std::string fault = move_unit(
            unit,
            {AskTarget::folder,
             stage.share == 0 ? folder : shared_list(folder, stage.share, unit.processes.front())});
        if (!fault.empty()) return stop(unit.name + ": " + fault);
        ++moved_count_;
        share_ = stage.share;
        remember_moves(unit);
        report(fmt::format("{:g} %: {}: moved{}", share, unit.name, share_words(stage)));
      }
      std::string fault = watch(before_move, &begin, &end);
      const Watched watched = sum(begin, end, moved_count_);
      report(fmt::format("{:g} %: {:.3g} s: {}", share,
                         fault.empty() ? options_.watch_seconds : watched_seconds_,
                         words_of(watched, &before_)));
      nlohmann::ordered_json json = {{"percent", share}, {"moved", moved_count_}};
      json["launches_percent"] = share_ == 0 ? 100 : share_ / 100.0;
      json.update(json_of(watched));
      stages_.push_back(std::move(json));
      if (!fault.empty()) return stop(std::move(fault));
    }
    report(fmt::format("complete: {} in {}",
                       counted(units_.size(), "process or job", "processes or jobs"),
                       options_.move.folder));
    return true;
  }

  const RolloutOptions& options_;
  FileDescriptor folder_;
  std::vector<Unit> units_;
  const std::map<std::string, std::string> names_;
  const bool can_share_;
  size_t moved_count_ = 0;  // the first of them
  uint32_t share_ = 0;      // that the only one that has moved has of its launches; 0: all
  struct Moved {
    uint64_t swap_count;  // the process's moves until then
    FolderInQuestion to;
  };
  std::map<std::string, Moved> moves_;  // of each process that has moved, by counters file
  double watched_seconds_ = 0;          // the last time
  std::map<std::string, Watched> watched_before_;
  Watched before_;
  size_t steps_not_judged_ = 0;  // processes
  nlohmann::ordered_json stages_ = nlohmann::ordered_json::array();
  std::vector<std::string> not_taken_back_;
  std::string reason_;
  bool is_output_gone_ = false;
};

int fail(const std::string& error) {
  print_message("rollout", printable(error));
  return kExitWrong;
}

int rollout(const RolloutOptions& options) {
  if (!options.move.is_unchecked) {
    if (const std::string fault = fault_of("rollout", options.move); !fault.empty())
      return fail(fault);
  }
  auto opened = open_counters_folder(options.move.stats_dir);
  if (!opened) return fail(options.move.stats_dir + ": " + opened.error());
  auto found = read_counters_folder(options.move.stats_dir);
  if (!found) return fail(options.move.stats_dir + ": " + found.error());
  bool has_all = true;
  std::vector<ProcessCounters> processes =
      choose_processes("rollout", std::move(*found), options.move, &has_all);
  if (!has_all) return kExitWrong;
  std::erase_if(processes, [&](const ProcessCounters& process) {
    return process.folder.state == FolderState::on &&
           folder_in(process) == resolved_folders(options.move.folder);
  });
  if (processes.empty()) {
    return fail(fmt::format("no process with counters in {} runs on another folder",
                            options.move.stats_dir));
  }
  if (const std::string why = difference_in(processes, options.move); !why.empty()) {
    return fail(why);
  }
  std::vector<Unit> units = units_of(processes);
  bool can_share =
      !options.wants_whole && stage_of(options.stages.front(), units.size(), true).share != 0;
  if (can_share) {
    const std::string why = why_not_shared(units.front(), options.move.folder);
    if (!why.empty()) {
      print_message("rollout", "{} moves as a whole: {}", printable(units.front().name),
                    printable(why));
    }
    can_share = why.empty();
  }
  if (options.is_dry_run) {
    size_t moved = 0;
    std::string out;
    nlohmann::ordered_json stages = nlohmann::ordered_json::array();
    for (const double share : options.stages) {
      const Stage stage = stage_of(share, units.size(), can_share);
      nlohmann::ordered_json json = {{"percent", share}, {"moves", nlohmann::json::array()}};
      json["launches_percent"] = stage.share == 0 ? 100 : stage.share / 100.0;
      for (; moved < stage.units; ++moved) {
        out +=
            fmt::format("{:g} %: {}{}\n", share, printable(units[moved].name), share_words(stage));
        json["moves"].push_back(units[moved].name);
      }
      if (stage.share != 0) moved = 0;
      stages.push_back(std::move(json));
    }
    const nlohmann::ordered_json document = {
        {"version", 1}, {"to", options.move.folder}, {"state", "foreseen"}, {"stages", stages}};
    return (options.wants_json ? print_json(document) : print_data(out)) ? kExitFine : kExitWrong;
  }
  struct sigaction action {};
  action.sa_handler = interrupt;
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    struct sigaction before {};
    const bool is_ignored = signal == SIGHUP && sigaction(signal, nullptr, &before) == 0 &&
                            before.sa_handler == SIG_IGN;  // nohup
    if (!is_ignored) sigaction(signal, &action, nullptr);
  }
  action.sa_handler = SIG_IGN;  // a pipe without a reader takes back what has moved, too
  sigaction(SIGPIPE, &action, nullptr);
  Rollout work(options, std::move(opened->fd), std::move(units), can_share);
  const bool is_done = work.run();
  const bool is_printed = !options.wants_json || print_json(work.to_json());
  return is_done && is_printed && !work.is_output_gone() ? kExitFine : kExitWrong;
}

}  // namespace

int rollout_command(int argc, const char* const* argv) {
  RolloutOptions options;
  CommandLine line(
      "rollout",
      "Moves running processes to another config folder a share at a time, and takes "
      "them back where they do worse",
      "[OPTIONS] DIR",
      "0 all stages were passed; 1 what had moved was taken back, or nothing was done; "
      "2 wrong usage.");
  line.positional("DIR", &options.move.folder, "the folder to go to").required();
  line.option(
      "--to", &options.shares, "SHARES",
      "the stages, as shares of the processes; the ranks of a job go together; what is less than a "
      "process or job is a share of its launches (10%,50%,100%)");
  line.flag("--whole", &options.wants_whole,
            "share no launches: the first stage moves one process or job as a whole");
  line.duration(
      "--watch", &options.watch_seconds, 0.1, 86400.0,
      "how long to watch before the first stage and after each: seconds, or 60s, 5m, 1h (60)");
  line.number("--slower", &options.slower_percent, 0.0, 1000.0, "PERCENT",
              "how much longer the steps of graphs may take (5)");
  line.option("--check", &options.check, "1/N",
              "while it watches, have one of N launches at least compared with the original in all "
              "processes, and as before afterwards");
  line.flag("--dry-run", &options.is_dry_run, "say who would move when, and ask nobody");
  add_choice_options(&line, &options.move);
  line.option("--job", &options.move.job, "NAME|VAR=VALUE",
              "only the ranks of this job, by FIBSHIM_JOB or a variable of their environment");
  add_folder_options(&line, &options.move, &options.wants_json);
  line.check([&options] { return parse_stages(options.shares, &options.stages); });
  line.check([&options] {
    const bool is_rate = parse_shadow(options.check.c_str(), &options.check_interval);
    return std::string(is_rate ? "" : "--check: is 1/N, with N from 1 to 1000000000");
  });
  return line.parse(argc, argv) ? rollout(options) : line.exit_code();
}

}  // namespace fibshim::tools
