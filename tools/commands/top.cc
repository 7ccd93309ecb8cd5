// fibshim top: the counters of running processes, live. Redraws the screen of a terminal; prints
// plain lines, one block after another, to a pipe, a file or a terminal that can only print.
#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <time.h>

#include <fmt/chrono.h>
#include <nlohmann/json.hpp>

#include "tools/commands/commands.h"
#include "tools/counters/folders_in_force.h"
#include "tools/counters/launch_counts.h"
#include "tools/counters/launch_groups.h"
#include "tools/counters/shadow_counts.h"
#include "tools/base/screen.h"
#include "tools/base/setting_values.h"

namespace fibshim::tools {
namespace {

using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

struct TopOptions {
  std::string folder;
  LaunchFilter filter;
  GroupBy by = GroupBy::definition;
  double interval_seconds = 2;
  uint64_t count = 0;  // of readings; 0: until it is stopped
  bool wants_json = false;
};

// Receives signals through a descriptor, so that one poll() waits for everything.
class Signals {
 public:
  Signals() {
    sigemptyset(&wanted_);
    for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGTSTP, SIGCONT, SIGWINCH}) {
      sigaddset(&wanted_, signal);
    }
    sigprocmask(SIG_BLOCK, &wanted_, &before_);
    fd_ = FileDescriptor(signalfd(-1, &wanted_, SFD_CLOEXEC | SFD_NONBLOCK));
  }

  int fd() const { return fd_.get(); }

  // The next signal that has arrived; 0 if there is none.
  int next() const {
    signalfd_siginfo info;
    return read(fd_.get(), &info, sizeof info) == sizeof info ? static_cast<int>(info.ssi_signo)
                                                              : 0;
  }

  // Ends this process by the signal, so that its parent sees the cause.
  [[noreturn]] void die_of(int signal) const {
    ::signal(signal, SIG_DFL);
    raise(signal);
    sigprocmask(SIG_SETMASK, &before_, nullptr);
    _exit(128 + signal);
  }

 private:
  sigset_t wanted_{}, before_{};
  FileDescriptor fd_{-1};
};

// Reads the folder repeatedly, and computes the rates since the reading before.
class Readings {
 public:
  explicit Readings(const TopOptions& options) : options_(options) {}

  // Returns why the folder cannot be read, or "".
  std::string read() {
    auto folder = read_counters_folder(options_.folder);
    if (!folder) return folder.error();
    uint64_t unattributed = 0;
    (void)apply_filter(options_.filter, &*folder, &unattributed);
    before_ = std::move(now_);
    elapsed_ = Clock::now() - taken_;
    taken_ = Clock::now();
    now_ = std::move(*folder);
    return "";
  }

  const CountersFolder& now() const { return *now_; }
  bool has_rates() const { return before_.has_value(); }

  LaunchGroups groups(GroupBy by) const {
    LaunchGroups out = group_launches(now_->processes, by);
    if (before_) add_rates(group_launches(before_->processes, by), elapsed_, &out);
    return out;
  }

 private:
  const TopOptions& options_;
  std::optional<CountersFolder> before_, now_;
  Seconds elapsed_{0};
  Clock::time_point taken_;
};

std::string summary(const Readings& readings, const TopOptions& options) {
  const LaunchGroups groups = readings.groups(options.by);
  LaunchNumbers all;
  uint64_t errors = 0, served = 0;
  double rate = 0;
  for (const LaunchGroup& group : groups) {
    all.add(group.numbers);
    errors = saturating_add(errors, errors_of(group));
    rate += group.per_second;
    served = saturating_add(served, served_by(group));
  }
  const auto& processes = readings.now().processes;
  const auto live = std::ranges::count_if(processes, &ProcessCounters::is_alive);
  const std::string checks = shadow_words(shadow_sums_of(processes));
  return fmt::format(
      "{} launches, {} executions, {}, {:.1f}% hits, {} per second; {} live, {} ended{}{}{}{}",
      all.launches, all.executions, counted(errors, "error"),
      all.executions == 0
          ? 0.0
          : 100.0 * static_cast<double>(served) / static_cast<double>(all.executions),
      rate_words(readings.has_rates() ? rate : -1), live,
      static_cast<std::ptrdiff_t>(processes.size()) - live,
      readings.now().refused.empty()
          ? ""
          : fmt::format("; {} files refused, see 'fibshim stats'", readings.now().refused.size()),
      all.body_nodes == 0 ? "" : fmt::format("; {} nodes in bodies", all.body_nodes),
      folder_words(processes).empty() ? "" : "; " + folder_words(processes),
      checks.empty() ? "" : "; " + checks);
}

std::string shortened(const std::string& text, size_t width) {
  if (display_width(text) <= width) return text;
  return cut_to_width(width < 4 ? text : cut_to_width(text, width - 2) + "..", width);
}

// Wraps the text after semicolons, into as many lines as it needs.
std::vector<std::string> wrapped(const std::string& text, size_t columns) {
  std::vector<std::string> out;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find("; ", at), text.size());
    const std::string part = text.substr(at, end - at);
    if (!out.empty() && display_width(out.back()) + 2 + display_width(part) <= columns) {
      out.back() += "; " + part;
    } else {
      out.push_back(part);
    }
    at = end + 2;
  }
  return out;
}

// Fits the table into the screen's width. First shortens names, and the commands in the last
// column; then drops whole columns, the least important first: a truncated number would mislead.
std::vector<std::string> fitted_table(std::vector<std::vector<std::string>> rows, size_t columns) {
  constexpr size_t kLeastName = 12;
  const auto width_without = [&rows](size_t kept) {  // of the kept columns except the first
    size_t out = 0;
    for (size_t i = 1; i < kept; ++i) {
      size_t widest = 0;
      for (size_t r = 0; r < rows.size(); ++r) {
        const size_t mark = r == 0 && rows[r][i].starts_with('>') ? 1 : 0;
        widest = std::max(widest, display_width(rows[r][i]) - mark);
      }
      out += widest + 2;
    }
    return out;
  };
  size_t kept = rows[0].size();
  const size_t least = width_without(kept - 1) + 2 + 2 * kLeastName;
  if (rows[0].back() == "COMMAND" && least <= columns) {
    const size_t room = columns - least + kLeastName;
    for (auto& row : rows) row.back() = shortened(row.back(), room);
  }
  while (kept > 1 && width_without(kept) + kLeastName > columns) --kept;
  const size_t name_width = std::max(columns - std::min(columns, width_without(kept)), size_t{1});
  for (auto& row : rows) {
    row.resize(kept);
    row[0] = shortened(row[0], name_width);
  }
  const std::string table = format_table(rows);
  const auto lines = split(table, '\n');
  return {lines.begin(), lines.end()};
}

// ---- what is shown

std::vector<std::string> screen_lines(const Readings& readings, const TopOptions& options,
                                      const ScreenSize& size, bool has_colours) {
  const auto in = [has_colours](const char* code, const std::string& text) {
    return has_colours ? fmt::format("\x1b[{}m{}\x1b[0m", code, text) : text;
  };
  LaunchGroups groups = readings.groups(options.by);
  // Few lines may fit, so groups with failures come first.
  std::ranges::stable_partition(groups, &LaunchGroup::has_failed);
  std::vector<std::string> out = wrapped(summary(readings, options), size.columns);
  out.resize(std::min(out.size(), std::max(size.rows / 6, size_t{1})));
  if (groups.empty()) {
    out.push_back(fmt::format("no counters in {}", printable(options.folder)));
  } else {
    const auto table = fitted_table(group_rows(groups, options.by, true), size.columns);
    for (size_t i = 0; i < table.size(); ++i) {
      const bool has_failed = i > 0 && groups[i - 1].has_failed();
      out.push_back(i == 0 ? in("1", table[i]) : has_failed ? in("31", table[i]) : table[i]);
    }
  }
  std::string keys = "q quit; by";
  for (const GroupByInfo& info : kGroupBys) keys += fmt::format(" {}:{}", info.key, info.name);
  const size_t room = size.rows > 2 ? size.rows - 1 : size.rows;
  if (out.size() > room) {
    const size_t hidden = out.size() - room + 1;
    out.resize(room - 1);
    out.push_back(fmt::format("... {} more", hidden));
  }
  if (size.rows > 2) {
    out.resize(size.rows - 1);
    out.push_back(in("2", cut_to_width(keys, size.columns)));
  }
  return out;
}

std::string block(const Readings& readings, const TopOptions& options) {
  const std::time_t now = std::time(nullptr);
  std::string out =
      fmt::format("{:%Y-%m-%dT%H:%M:%SZ} {}\n", fmt::gmtime(now), summary(readings, options));
  const LaunchGroups groups = readings.groups(options.by);
  if (!groups.empty()) out += format_table(group_rows(groups, options.by, true));
  return out + "\n";
}

std::string reading_line(const Readings& readings, const TopOptions& options) {
  timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  nlohmann::ordered_json out;
  out["version"] = 1;
  out["unix_ns"] =
      static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
  out["grouped_by"] = kGroupBys[static_cast<size_t>(options.by)].name;
  const auto& processes = readings.now().processes;
  const auto live = std::ranges::count_if(processes, &ProcessCounters::is_alive);
  out["live"] = live;
  out["ended"] = static_cast<std::ptrdiff_t>(processes.size()) - live;
  out["refused"] = readings.now().refused.size();
  out["groups"] = groups_to_json(readings.groups(options.by));
  return json_line(out) + "\n";
}

// ---- the loop

enum class Step : uint8_t { read, redraw, quit };

class Top {
 public:
  explicit Top(const TopOptions& options) : options_(options), readings_(options_) {}

  int run() {
    if (has_screen() && !options_.wants_json) screen_.emplace();
    int ended_by = 0;
    std::string reason;
    for (uint64_t reading = 0; options_.count == 0 || reading < options_.count; ++reading) {
      reason = readings_.read();
      if (!reason.empty() || !show()) break;
      if (reading + 1 == options_.count || !wait(&ended_by)) break;
    }
    screen_.reset();
    if (ended_by == SIGINT) return kExitFine;  // ctrl-C is the usual way to leave a live view
    if (ended_by != 0) signals_.die_of(ended_by);
    if (reason.empty()) return is_shown_ ? kExitFine : kExitWrong;
    print_message("top", "{}: {}", printable(options_.folder), reason);
    return kExitWrong;
  }

 private:
  bool show() {
    if (screen_) {
      is_shown_ =
          screen_->show(screen_lines(readings_, options_, screen_->size(), wants_colours()));
    } else {
      is_shown_ = print_data(options_.wants_json ? reading_line(readings_, options_)
                                                 : block(readings_, options_));
    }
    return is_shown_;
  }

  // Waits until the next reading is due. Returns false to leave; if a signal is the reason,
  // *ended_by is that signal.
  bool wait(int* ended_by) {
    const auto due = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                        Seconds(options_.interval_seconds));
    for (;;) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(due - Clock::now()).count();
      if (left <= 0) return true;
      pollfd ends[2] = {{signals_.fd(), POLLIN, 0},
                        {screen_ && screen_->has_keys() ? STDIN_FILENO : -1, POLLIN, 0}};
      if (poll(ends, 2, static_cast<int>(left)) < 0 && errno != EINTR) return false;
      if (ends[0].revents != 0 && !on_signal(signals_.next(), ended_by)) return false;
      if (ends[1].revents != 0 && !on_key()) return false;
    }
  }

  bool on_signal(int signal, int* ended_by) {
    switch (signal) {
      case 0: return true;
      case SIGTSTP:
        if (screen_) {
          screen_->suspend();
        } else {
          raise(SIGSTOP);
        }
        return show();
      case SIGCONT:
      case SIGWINCH: return screen_ ? show() : true;
      default: *ended_by = signal; return false;
    }
  }

  bool on_key() {
    char key = 0;
    if (read(STDIN_FILENO, &key, 1) != 1) return false;  // the terminal is gone
    if (key == 'q') return false;
    for (const GroupByInfo& info : kGroupBys) {
      if (key == info.key) options_.by = info.by;
    }
    return show();
  }

  TopOptions options_;
  Signals signals_;
  Readings readings_;
  std::optional<Screen> screen_;
  bool is_shown_ = true;
};

}  // namespace

int top_command(int argc, const char* const* argv) {
  TopOptions options;
  std::string by = kGroupBys[0].name;
  CommandLine line(
      "top", "Live view of what happens to the launches", "[OPTIONS]",
      "0 fine, also when it was left with q or ctrl-C; 1 the folder cannot be read, or "
      "the output is gone; 2 wrong usage.");
  add_filter_options(&line, &options.filter);
  line.choice("--by", &by, group_by_names(), "one line for each of these (default: definition)");
  line.number("--interval", &options.interval_seconds, 0.1, 3600.0, "SECONDS",
              "between two readings (default 2)");
  line.number("--count", &options.count, uint64_t{1}, UINT64_MAX, "N",
              "leave after this many readings");
  line.json(&options.wants_json, "print one line of JSON for each reading");
  line.stats_dir(&options.folder, "read this folder instead of FIBSHIM_STATS_DIR");
  if (!line.parse(argc, argv)) return line.exit_code();
  options.by = group_by_named(by);
  return Top(options).run();
}

}  // namespace fibshim::tools
