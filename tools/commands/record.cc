// fibshim record: runs a program under the shim with every launch recorded, gathers the processes'
// recordings into one file of JSON Lines while it runs, and ranks the kernels of such a file.
//
// The shim writes one binary file for each process into a folder beside the output. Each gathering
// replaces the output by rename, so that a reader always finds a whole recording.
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>

#include <algorithm>
#include <chrono>
#include <filesystem>

#include <nlohmann/json.hpp>

#include "tools/base/files.h"
#include "tools/commands/commands.h"
#include "tools/commands/record_views.h"
#include "tools/base/diagnostics_output.h"
#include "tools/base/folder_list.h"
#include "tools/judge/tensor_capture.h"
#include "tools/base/setting_values.h"
#include "tools/processes/installation.h"
#include "tools/record/kept_image.h"
#include "tools/record/recording_files.h"
#include "tools/record/recording_json.h"

namespace fibshim::tools {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr auto kGatherEvery = std::chrono::seconds(1);
constexpr int kGatherShare = 20;  // gathering takes at most 1/20 of the time

struct RecordOptions {
  std::string output;
  std::string summary;
  std::string from;
  std::string config;
  std::string mode = "observe";
  std::string times;  // empty: FIBSHIM_RECORD_TIMES
  std::string keep_images;
  std::vector<std::string> compared;  // none, or two
  double tolerance_percent = 10;
  uint64_t limit = kDefaultRecordLimit;
  uint32_t top = 0;
  bool wants_json = false;
  bool shows_progress = false;
  bool skips_check = false;
  bool is_forced = false;
  bool simulates = false;
  std::string tensors;  // the dataset to make; empty: none
  std::string tensors_keep;
  judge::CaptureOptions capture;
  std::vector<std::string> command;
};

// ---- gathering

class Gatherer {
 public:
  Gatherer(const RecordOptions& options, std::string folder)
      : options_(options), folder_(std::move(folder)) {}

  // Reads what the processes have recorded, and replaces the output if there is more than before.
  bool gather(bool is_last) {
    auto recording = read_recording_folder(folder_);
    if (!recording) {
      print_message("record", "{}: {}", printable(folder_), printable(recording.error()));
      return false;
    }
    recording_ = std::move(*recording);
    const uint64_t seen = recording_.launches() + recording_.nodes() + recording_.runs();
    // A program that did not start, or used no GPU, leaves an earlier recording as it is.
    leaves_earlier_ =
        recording_.processes.empty() && seen_ == UINT64_MAX && fs::is_regular_file(options_.output);
    if (leaves_earlier_) return true;
    if (!is_last && (seen == seen_ || !is_replaceable(options_.output))) return true;
    seen_ = seen;
    JsonLines lines = to_json_lines(recording_, options_.limit);
    recording_.kernels_left_out = lines.kernels_left_out;
    bytes_ = lines.text.size();
    return write_output("record", options_.output, lines.text, 0600);  // has command lines
  }

  std::string counts() const {
    const uint64_t nodes = recording_.nodes();
    return fmt::format("{}, {}{} of {}", counted(recording_.kernels.size(), "kernel"),
                       counted(recording_.launches(), "launch", "launches"),
                       nodes == 0 ? "" : fmt::format(", {} in graphs", nodes),
                       counted(recording_.processes.size(), "process", "processes"));
  }

  uint64_t bytes() const { return bytes_; }
  bool leaves_earlier() const { return leaves_earlier_; }
  const Recording& recording() const { return recording_; }

 private:
  const RecordOptions& options_;
  std::string folder_;
  Recording recording_;
  uint64_t seen_ = UINT64_MAX;  // until the output is written first
  uint64_t bytes_ = 0;
  bool leaves_earlier_ = false;
};

// ---- running

std::string format_bytes(uint64_t bytes) {
  return bytes < 1024 * 1024 ? fmt::format("{} kB", (bytes + 1023) / 1024)
                             : fmt::format("{:.1f} MB", static_cast<double>(bytes) / 1048576);
}

class Progress {
 public:
  explicit Progress(bool is_wanted)
      : is_terminal_(isatty(STDERR_FILENO) == 1), is_on_(is_wanted || is_terminal_) {}

  void show(const Gatherer& gatherer) {
    const auto now = Clock::now();
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(now - begin_).count();
    const std::string text = fmt::format("fibshim record: {} s: {}, {}", seconds, gatherer.counts(),
                                         format_bytes(gatherer.bytes()));
    if (!is_on_) return;
    // On a terminal, one line is overwritten again and again.
    write_text(is_terminal_ ? "\r\x1b[K" + text : text + "\n");
    is_shown_ = is_terminal_;
  }

  void clear() {
    if (is_shown_) write_text("\r\x1b[K");
    is_shown_ = false;
  }

 private:
  static void write_text(const std::string& text) { (void)write_all(STDERR_FILENO, text); }

  bool is_terminal_;
  bool is_on_;
  bool is_shown_ = false;
  Clock::time_point begin_ = Clock::now();
};

constexpr int kForwardedSignals[] = {SIGINT, SIGQUIT, SIGTERM, SIGHUP};

sigset_t watched_signals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGCHLD);
  for (const int signal : kForwardedSignals) sigaddset(&set, signal);
  return set;
}

// What this program has changed, and its child gets back.
struct SignalsBefore {
  sigset_t blocked;
  struct sigaction on_pipe;
};

[[noreturn]] void become_program(const RecordOptions& options, const std::string& folder,
                                 const SignalsBefore& before) {
  sigaction(SIGPIPE, &before.on_pipe, nullptr);
  sigprocmask(SIG_SETMASK, &before.blocked, nullptr);
  const auto name_of = [](SettingId id) { return kSettings[static_cast<size_t>(id)].name; };
  // The setting expands "%": escape it, so that the path is taken literally.
  std::string pattern;
  for (const char c : folder) pattern += c == '%' ? "%%" : std::string(1, c);
  setenv(name_of(SettingId::record), pattern.c_str(), 1);
  setenv(name_of(SettingId::record_limit), fmt::format("{}", options.limit).c_str(), 1);
  if (!options.keep_images.empty()) {
    setenv(name_of(SettingId::record_images), options.keep_images.c_str(), 1);
  }
  if (!options.times.empty()) setenv(name_of(SettingId::record_times), options.times.c_str(), 1);
  std::vector<std::string> words = {"run", "--mode", options.mode};
  if (!options.config.empty()) words.insert(words.end(), {"--config", options.config});
  if (options.skips_check) words.emplace_back("--no-check");
  if (options.is_forced) words.emplace_back("--force");
  if (options.simulates) words.emplace_back("--simulate");
  words.emplace_back("--");
  words.insert(words.end(), options.command.begin(), options.command.end());
  std::vector<const char*> argv;
  argv.reserve(words.size());
  for (const std::string& word : words) argv.push_back(word.c_str());
  _exit(run_command(static_cast<int>(argv.size()), argv.data()));
}

// Gathers until the program ends. Returns its status as waitpid reports it.
int gather_until_end(pid_t program, Gatherer* gatherer, Progress* progress) {
  const sigset_t signals = watched_signals();
  auto next = Clock::now() + kGatherEvery;
  while (true) {
    int status = 0;
    if (waitpid(program, &status, WNOHANG) == program) return status;
    const auto left = std::max(next - Clock::now(), Clock::duration::zero());
    const auto ns = std::chrono::duration_cast<std::chrono::nanoseconds>(left).count();
    const timespec timeout = {static_cast<time_t>(ns / 1000000000),
                              static_cast<long>(ns % 1000000000)};
    siginfo_t info;
    const int signal = sigtimedwait(&signals, &info, &timeout);
    // Signals of the terminal reach the program directly, so only those of processes are passed on.
    if (signal > 0 && signal != SIGCHLD && info.si_code <= 0) kill(program, signal);
    if (signal > 0 || Clock::now() < next) continue;
    const auto begin = Clock::now();
    (void)gatherer->gather(false);
    progress->show(*gatherer);
    const auto end = Clock::now();
    next = end + std::max<Clock::duration>(kGatherEvery, (end - begin) * kGatherShare);
  }
}

bool make_folder(const std::string& folder) {
  if (mkdir(folder.c_str(), 0700) == 0) return true;
  if (errno == EEXIST) {
    print_message(
        "record",
        fmt::format("{} is there already: of a recording that was not finished, or is under "
                    "way. 'fibshim record --from {} -o FILE' makes a file of it; or "
                    "remove it",
                    printable(folder), shell_quoted(folder)));
  } else {
    print_message("record", "{}: {}", printable(folder), strerror(errno));
  }
  return false;
}

// Copies the kept images beside the output. Returns false on failure.
bool keep_images(const RecordOptions& options, const std::string& folder) {
  const auto kept = move_kept_images(folder, options.output);
  if (!kept) {
    print_message("record", printable(kept.error().message));
  } else if (kept->count > 0) {
    print_message("record", "{} ({}) in {}", counted(kept->count, "image"),
                  format_bytes(kept->bytes), printable(kept_images_folder(options.output)));
  } else if (!options.keep_images.empty()) {
    print_message("record",
                  "no image was kept: no kernel's name fits '{}', or none of their images is known",
                  printable(options.keep_images));
  }
  return kept.has_value();
}

// ---- tensors

// Reads the folders whose patterns tell which launch is a call of which definition.
bool read_model(const RecordOptions& options, FolderModel* model) {
  const std::string config =
      options.config.empty() ? resolve_settings({})[SettingId::config].value : options.config;
  if (config.empty()) {
    print_message(
        "record",
        "--tensors needs a config folder, whose definitions say what tensors there are: -c DIR");
    return false;
  }
  CheckOptions check;
  check.model = model;
  const CheckReport report = check_folder(config, check);
  if (report.snapshot != nullptr) return true;
  print_message("record", "the config folder has mistakes:\n{}", format_findings(report));
  return false;
}

// Writes the plan where the processes look for it. Returns false if there is none.
bool plan_tensors(const RecordOptions& options, const std::string& folder) {
  FolderModel model;
  if (!read_model(options, &model)) return false;
  std::vector<std::string> notes;
  const auto plan = judge::make_tensor_plan(model, options.capture, &notes);
  for (const std::string& note : notes) print_message("record", printable(note));
  const std::string fault =
      plan ? write_file(folder + "/" + kTensorPlanFile, *plan) : plan.error().message;
  if (!fault.empty()) print_message("record", "--tensors: {}", printable(fault));
  return fault.empty();
}

// Makes the dataset. Returns false if a part of it is missing.
bool keep_tensors(const RecordOptions& options, const std::string& folder) {
  FolderModel model;
  if (!read_model(options, &model)) return false;
  const mode_t before = umask(077);  // the program's own data
  const auto kept = judge::write_workloads(model, folder, options.tensors);
  umask(before);
  if (!kept) {
    print_message("record", printable(kept.error().message));
    return false;
  }
  for (const std::string& fault : kept->faults) print_message("record", printable(fault));
  for (const auto& [why, launches] : kept->losses) {
    print_message("record", "{} not kept: {}", counted(launches, "launch", "launches"), why);
  }
  print_message(
      "record", "{} ({}, {} more like them) of {} in {}{}", counted(kept->workloads, "workload"),
      format_bytes(kept->bytes), kept->duplicates, counted(kept->processes, "process", "processes"),
      printable(options.tensors),
      options.capture.keeps_statistics ? "" : ": tensors of the program, which may be private");
  return kept->faults.empty();
}

// Gathers for the last time. Returns false if something could not be read or written.
bool finish(const RecordOptions& options, const std::string& folder, Gatherer* gatherer) {
  bool is_written = gatherer->gather(true) && keep_images(options, folder);
  if (!options.tensors.empty()) is_written = keep_tensors(options, folder) && is_written;
  const Recording& recording = gatherer->recording();
  report_losses(recording);
  const auto running = std::ranges::count_if(recording.processes, &RecordedProcess::is_alive);
  std::error_code error;
  if (recording.processes.empty()) {
    print_message(
        "record",
        "no launch was recorded: no process that uses CUDA ran under the shim, or none could "
        "write what it recorded. 'fibshim doctor' finds out why{}",
        gatherer->leaves_earlier()
            ? fmt::format("; {} is an earlier recording", printable(options.output))
            : "");
  } else if (is_written) {
    print_message("record", "{} in {}: 'fibshim record --summary {}' ranks them",
                  gatherer->counts(), printable(options.output), shell_quoted(options.output));
  }
  if (running > 0) {
    print_message("record",
                  "{} process{} still running: 'fibshim record --from {} -o "
                  "FILE' gathers what they record from here on",
                  running, running == 1 ? " is" : "es are", shell_quoted(folder));
  }
  if (is_written && running == 0 && recording.refused.empty()) fs::remove_all(folder, error);
  return is_written && recording.refused.empty() && !gatherer->leaves_earlier();
}

// Creates the dataset's folder before the program runs: otherwise a recording could be lost.
bool make_tensors_folder(const RecordOptions& options) {
  std::error_code error;
  const mode_t before = umask(077);
  fs::create_directories(options.tensors, error);
  umask(before);
  const bool is_folder = !error && fs::is_directory(options.tensors, error);
  if (is_folder && fs::is_empty(options.tensors, error) && !error) return true;
  print_message("record", "--tensors: {}: {}", printable(options.tensors),
                error ? error.message() : "it is no empty folder");
  return false;
}

int record_program(const RecordOptions& options) {
  std::error_code error;
  if (fs::is_directory(options.output, error)) {
    print_message("record", "{}: cannot write it: it is a folder", printable(options.output));
    return kExitWrong;
  }
  const std::string folder = absolute_path(options.output) + ".parts";
  if (!make_folder(folder)) return kExitWrong;
  if (!options.tensors.empty() &&
      !(plan_tensors(options, folder) && make_tensors_folder(options))) {
    fs::remove_all(folder, error);
    return kExitWrong;
  }
  Gatherer gatherer(options, folder);
  Progress progress(options.shows_progress);
  SignalsBefore before;
  const sigset_t signals = watched_signals();
  sigprocmask(SIG_BLOCK, &signals, &before.blocked);
  struct sigaction ignore {};
  ignore.sa_handler = SIG_IGN;  // it records on when nobody reads its messages any more
  sigaction(SIGPIPE, &ignore, &before.on_pipe);
  const pid_t program = fork();
  if (program < 0) {
    print_message("record", "cannot start a process: {}", strerror(errno));
    return kExitWrong;
  }
  if (program == 0) become_program(options, folder, before);
  const int status = gather_until_end(program, &gatherer, &progress);
  progress.clear();
  const bool is_whole = finish(options, folder, &gatherer);
  if (WIFSIGNALED(status)) return 128 + WTERMSIG(status);
  const int exit_code = WEXITSTATUS(status);
  return exit_code == 0 && !is_whole ? kExitWrong : exit_code;
}

int convert(const RecordOptions& options) {
  if (!fs::is_directory(options.from)) {
    print_message("record", "{}: not a folder of recordings", printable(options.from));
    return kExitWrong;
  }
  if (const auto recording = read_recording(options.from); !recording) {
    print_message("record", "{}: {}", printable(options.from), printable(recording.error()));
    return kExitWrong;
  }
  Gatherer gatherer(options, options.from);
  if (!gatherer.gather(true) || !keep_images(options, options.from)) return kExitWrong;
  report_losses(gatherer.recording());
  if (!options.tensors.empty() && !keep_tensors(options, options.from)) return kExitWrong;
  print_message("record", "{} in {}", gatherer.counts(), printable(options.output));
  return gatherer.recording().refused.empty() ? kExitFine : kExitWrong;
}

}  // namespace

int record_command(int argc, const char* const* argv) {
  RecordOptions options;
  CommandLine line(
      "record", "Records every launch of a program, and ranks the kernels of a recording",
      "-o FILE [OPTIONS] [--] COMMAND [ARGUMENTS...] | --summary FILE | --compare A B | "
      "--from DIR -o FILE",
      "the program's own; 1 a recording or the installation is wrong, or two "
      "recordings differ; 2 wrong usage; "
      "126 the program cannot be run or preloaded; 127 it was not found.");
  line.option("-o,--output", &options.output, "FILE",
              "write the recording to this file; it is replaced as a whole about once a second");
  line.option("-c,--config", &options.config, "DIR",
              "config folder whose patterns are compared (default: FIBSHIM_CONFIG; of the summary: "
              "the one of the recording)");
  const Option mode = line.choice("--mode", &options.mode, {"observe", "apply"},
                                  "observe (default): redirect nothing; apply: redirect");
  const Option limit = line.size(
      "--limit", &options.limit,
      "the size that the file, and each process's recording, may not exceed: a number, or "
      "one with kb, mb or gb (default 64 MB)");
  line.choice("--times", &options.times, {"auto", "cupti", "events"},
              "how kernels are timed: by CUPTI, in graphs too (cupti); by events on their stream "
              "(events); by CUPTI where it works, else by events (auto). cupti warns where it does "
              "not work (default: FIBSHIM_RECORD_TIMES, else auto)");
  line.option("--keep-images", &options.keep_images, "GLOB",
              "keep the images of kernels whose symbol fits, for `fibshim verify "
              "--against-original`: each once, in FILE.images, as many as the limit allows");
  line.option("--tensors", &options.tensors, "DIR",
              "keep inputs and outputs of launches that the config folder's patterns know, as "
              "FlashInfer Trace workloads in this folder, which is made; they are the program's "
              "own data");
  line.option("--tensors-of", &options.capture.definitions, "GLOB",
              "of these definitions alone (may be repeated)");
  line.option("--tensors-keep", &options.tensors_keep, "POLICY",
              "which launches of a definition each process keeps: first:K, every:N, shape:K (K of "
              "each shape), axis:NAME:K (K for each value of an axis) (shape:3)");
  line.size("--tensors-limit", &options.capture.limit_bytes,
            "the size that no process's tensors may exceed (default 1 GB)");
  line.number("--tensors-seconds", &options.capture.seconds, 1u, UINT32_MAX, "S",
              "keep nothing later than this after the first launch of a definition");
  line.flag("--tensors-stats", &options.capture.keeps_statistics,
            "keep statistics alone: least, largest, mean, deviation, NaN and infinities");
  line.flag("--progress", &options.shows_progress,
            "say how far it is, also where stderr is no terminal");
  line.flag("--no-check", &options.skips_check, "do not check the config folder first");
  line.flag("--force", &options.is_forced,
            "run a program that cannot be preloaded: what it starts perhaps can be");
  line.flag(
      "--simulate", &options.simulates,
      "without a GPU: on the simulated driver of `fibshim run --simulate`; times say nothing then");
  line.option("--summary", &options.summary, "FILE",
              "rank the kernels of this recording; run nothing");
  line.number("-n,--top", &options.top, 0u, UINT32_MAX, "N", "of the summary: this many kernels");
  line.option("--compare", &options.compared, "A B",
              "kernels, shapes, counts and times that differ between two recordings; run nothing")
      .takes(2);
  line.number("--tolerance", &options.tolerance_percent, 0.0, 1e6, "PERCENT",
              "of --compare: times differ where their means are further apart (default 10)");
  line.json(&options.wants_json, "of the summary and the comparison: print JSON");
  line.option("--from", &options.from, "DIR",
              "make the file of what processes have recorded there; run nothing");
  line.check([&options, mode, limit]() -> std::string {
    const bool runs = !options.command.empty();
    const bool compares = !options.compared.empty();
    if (runs + !options.summary.empty() + !options.from.empty() + compares != 1) {
      return "takes one of: a command, --summary FILE, --compare A B, --from DIR";
    }
    const std::pair<const char*, bool> of_commands[] = {
        {"--mode", mode.count() > 0},
        {"--times", !options.times.empty()},
        {"--progress", options.shows_progress},
        {"--no-check", options.skips_check},
        {"--force", options.is_forced},
        {"--simulate", options.simulates},
        {"--keep-images", !options.keep_images.empty()}};
    for (const auto& [name, is_given] : of_commands) {
      if (is_given && !runs) return fmt::format("{} goes with a command", name);
    }
    if (options.tolerance_percent != 10 && !compares) return "--tolerance goes with --compare";
    if (options.top != 0 && options.summary.empty()) return "--top goes with --summary";
    if (compares && !options.config.empty()) return "--compare takes no -c";
    const judge::CaptureOptions unset;
    const bool has_tensor_options =
        !options.tensors_keep.empty() || !options.capture.definitions.empty() ||
        options.capture.keeps_statistics || options.capture.seconds != unset.seconds ||
        options.capture.limit_bytes != unset.limit_bytes;
    if (!options.summary.empty() || compares) {
      return options.output.empty() && limit.count() == 0 && options.tensors.empty() &&
                     !has_tensor_options
                 ? ""
                 : "--summary and --compare take no -o, --limit and --tensors";
    }
    if (options.wants_json) return "--json goes with --summary or --compare";
    if (has_tensor_options && options.tensors.empty()) return "--tensors-... go with --tensors DIR";
    if (!options.tensors_keep.empty()) {
      const std::string fault = judge::read_policy(options.tensors_keep, &options.capture);
      if (!fault.empty()) return "--tensors-keep: " + fault;
    }
    if (options.output.empty()) return "-o: say where the recording goes";
    return options.limit < kSmallestBytes
               ? fmt::format("--limit: at least {} bytes", kSmallestBytes)
               : "";
  });
  if (!line.parse_with_command(argc, argv, &options.command)) return line.exit_code();
  if (!options.config.empty()) options.config = absolute_folders(options.config);
  if (!options.summary.empty()) {
    return summarize_recording(options.summary, options.config, options.top, options.wants_json);
  }
  if (!options.compared.empty()) {
    return compare_two_recordings(options.compared, options.tolerance_percent, options.wants_json);
  }
  return options.command.empty() ? convert(options) : record_program(options);
}

}  // namespace fibshim::tools
