// fibshim doctor: checks everything that the shim needs on this machine, one thing at a time, and
// says what is missing and what to do. Whatever may crash or hang (a driver, a library's start-up)
// is tried in a child process with a time limit.
#include <dlfcn.h>
#include <gnu/libc-version.h>
#include <stdlib.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>

#include <filesystem>
#include <map>
#include <set>

#include <nlohmann/json.hpp>

#include "shim/abi/recorder_api.h"
#include "shim/abi/shadow_api.h"
#include "tools/commands/commands.h"
#include "tools/lint/mistakes.h"
#include "tools/base/diagnostics_output.h"
#include "tools/base/files.h"
#include "tools/counters/counters_folder.h"
#include "tools/judge/worker.h"
#include "tools/processes/gpus.h"
#include "tools/processes/installation.h"
#include "tools/processes/processes.h"
#include "tools/processes/programs.h"
#include "tools/base/setting_values.h"

namespace fibshim::tools {
namespace {

// Without a persistence daemon, a driver takes up to some seconds per GPU to start.
constexpr double kProbeTimeoutS = 60;
// The size of a counters file with all its series and a shard for each of many threads.
constexpr uint64_t kWantedStatsBytes = 64 << 20;
// After so many kernels, a pattern that has fitted none is reported.
constexpr uint64_t kEnoughKernels = 10'000;

enum class Status : uint8_t { ok, note, warning, error };

const char* status_name(Status status) {
  static constexpr const char* kNames[] = {"ok", "note", "warning", "error"};
  return kNames[static_cast<size_t>(status)];
}

struct Finding {
  std::string name;  // of the check, in snake_case
  Status status;
  std::string detail;
  std::string advice;  // what the user should do; empty: nothing
};

// ---- probes in child processes

using Probe = judge::WorkerEnd;

// Runs `body` in a child that ends with its return value. This program has only one thread, so the
// child may call anything.
Probe run_probe(const std::function<int()>& body) {
  Probe probe = judge::run_worker([&](const judge::Tell&) { _exit(body()); },
                                  [](const nlohmann::ordered_json& /*message*/) {}, kProbeTimeoutS);
  probe.output.erase(probe.output.find_last_not_of('\n') + 1);
  return probe;
}

// Called in the child. Prints one line and returns `code`.
int print_line(const std::string& line, int code) {
  fmt::print("{}", line);
  fflush(stdout);
  return code;
}

// Called in the child. Returns the exit code: 0, 1 without a driver, 2 without a GPU.
int probe_driver() {
  const DriverInfo driver = ask_driver();
  if (driver.path.empty()) return print_line(driver.fault, 1);
  std::string line =
      fmt::format("{}, CUDA {}.{}", driver.path, driver.version / 1000, driver.version % 1000 / 10);
  if (!driver.fault.empty()) return print_line(line + "; " + driver.fault, 2);
  for (size_t i = 0; i < driver.gpus.size(); ++i) {
    line += fmt::format("; GPU {}: {} (sm_{})", i, driver.gpus[i].name, driver.gpus[i].sm);
  }
  return print_line(line, 0);
}

Finding check_driver() {
  const Probe probe = run_probe(probe_driver);
  if (probe.is_fine) return {"driver", Status::ok, probe.output, ""};
  if (!probe.exit_code) {
    return {"driver", Status::error, "the driver did not start: " + probe.words,
            "nvidia-smi and the kernel's log tell more"};
  }
  return {"driver", Status::error, probe.output,
          probe.exit_code == 1
              ? "install the NVIDIA driver; in a container, start it with the GPU (--gpus all)"
              : "is there a GPU, and does the kernel module run? nvidia-smi tells more; in a "
                "container, start it with the GPU (--gpus all)"};
}

// ---- the installation

// The shim, the loader and this program must be from one build.
Finding check_versions() {
  std::string detail = fmt::format("fibshim {}, glibc {}", kVersion, gnu_get_libc_version());
  utsname system{};
  if (uname(&system) == 0) {
    detail += fmt::format(", {} {} {}", system.sysname, system.release, system.machine);
  }
  const std::string module = read_small_file("/sys/module/nvidia/version");
  if (!module.empty()) {
    detail += fmt::format(", NVIDIA kernel module {}", module.substr(0, module.find('\n')));
  }
  return {"versions", Status::ok, detail, ""};
}

// Tells what differs inside a container, if this program runs in one.
Finding check_container() {
  const std::vector<std::string> hints = container_hints();
  if (hints.empty()) return {"container", Status::ok, "no sign of one", ""};
  return {"container", Status::note, fmt::format("{}", fmt::join(hints, ", ")),
          "the path in LD_PRELOAD must exist inside; so must the config folder; counters lie in "
          "the container's own /dev/shm unless FIBSHIM_STATS_DIR names a volume that is shared"};
}

Finding check_shim_library() {
  const std::string path = shim_library_path();
  const DynamicSection library = read_dynamic_section(path);
  if (!library.fault.empty()) {
    return {"shim_library", Status::error, fmt::format("{}: {}", path, library.fault),
            "it belongs beside this program, as ../lib/libfibshim.so: run make, or make install"};
  }
  std::string foreign;
  std::string needed;
  for (const std::string& name : library.needed) {
    needed += " " + name;
    if (name.rfind("libc.so.", 0) != 0 && name.rfind("ld-linux", 0) != 0) foreign += " " + name;
  }
  const std::string detail = fmt::format("{}, needs{}", path, needed.empty() ? " nothing" : needed);
  if (!foreign.empty()) {
    return {"shim_library", Status::error, detail,
            fmt::format("a preloaded library must need nothing but libc; this one needs{}: it is "
                        "not as it was built",
                        foreign)};
  }
  if (path.find_first_of(": \t\n") != std::string::npos) {
    return {"shim_library", Status::error, detail,
            "LD_PRELOAD cannot name a path with blanks or colons: move the installation"};
  }
  return {"shim_library", Status::ok, detail, ""};
}

// Really preloads the shim: this program starts itself, and the linker complains on failure.
Finding check_preload() {
  const std::string path = shim_library_path();
  const Probe probe = run_probe([&path] {
    setenv("LD_PRELOAD", path.c_str(), 1);
    unsetenv("FIBSHIM_CONFIG");
    const std::string own = own_path();
    execl(own.c_str(), own.c_str(), "--version", nullptr);
    return 1;
  });
  const std::string wanted = fmt::format("fibshim {}", kVersion);
  if (probe.is_fine && probe.output == wanted) {
    return {"preload", Status::ok, "a program starts with the library preloaded", ""};
  }
  return {
      "preload", Status::error,
      fmt::format("a program with the library preloaded did not start cleanly: {}{}{}", probe.words,
                  probe.words.empty() || probe.output.empty() ? "" : ": ", probe.output),
      "is it built for an older glibc or another machine than this one?"};
}

// Checks a library that the shim opens, by calling its one entry point.
template <class Api>
Finding check_opened_library(const char* name, const std::string& path, const char* entry_point,
                             uint32_t version) {
  const Probe probe = run_probe([&] {
    void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return print_line(dlerror(), 1);
    const auto get_api = reinterpret_cast<const Api* (*)(uint32_t)>(dlsym(library, entry_point));
    if (get_api == nullptr || get_api(version) == nullptr) {
      return print_line(fmt::format("it does not speak version {} of {}", version, entry_point), 1);
    }
    return 0;
  });
  if (probe.is_fine) return {name, Status::ok, path, ""};
  return {name, Status::error,
          fmt::format("{}: {}", path, probe.exit_code ? probe.output : probe.words),
          "libfibloader.so, libfibrecord.so, libfibshadow.so and the libfibshim-*.so libraries "
          "belong beside "
          "libfibshim.so, from the same build"};
}

// ---- settings, folder, counters

Finding check_settings(const SettingValues& settings) {
  std::vector<std::string> faults;
  for (const SettingValue& setting : settings.values) {
    if (setting.not_understood.empty()) continue;
    faults.push_back(
        fmt::format("{}=\"{}\" is not understood", setting.info->name, setting.not_understood));
  }
  for (const std::string& name : unknown_variables()) faults.push_back(name + " is not a setting");
  if (!faults.empty()) {
    return {"settings", Status::warning, fmt::format("{}", fmt::join(faults, "; ")),
            "'fibshim env' lists names and values"};
  }
  const std::string& mode = settings[SettingId::mode].value;
  if (mode != "apply") {
    return {"settings", Status::note,
            fmt::format("FIBSHIM_MODE is {}: nothing is redirected", mode), ""};
  }
  return {"settings", Status::ok, "all values are understood", ""};
}

Finding check_config_folder(const SettingValues& settings) {
  const std::string& folder = settings[SettingId::config].value;
  if (folder.empty()) {
    return {"config", Status::note,
            "FIBSHIM_CONFIG is not set: the shim does nothing in programs started from here",
            "set it, or use 'fibshim run -c DIR'"};
  }
  const CheckReport report = check_with_mistakes(folder);
  std::string summary = format_summary(folder, report);
  summary.pop_back();
  const Status status = report.error_count > 0     ? Status::error
                        : report.warning_count > 0 ? Status::warning
                                                   : Status::ok;
  return {"config", status, summary,
          status == Status::ok ? "" : fmt::format("'fibshim check {}' shows them", folder)};
}

// The nearest existing folder: `path` or one above it.
std::filesystem::path existing_folder(std::filesystem::path path) {
  std::error_code error;
  while (!std::filesystem::exists(path, error) && path.has_relative_path()) {
    path = path.parent_path();
  }
  return path;
}

Finding check_stats_folder(const SettingValues& settings) {
  const std::string folder = absolute_path(settings[SettingId::stats_dir].value);
  const std::filesystem::path existing = existing_folder(folder);
  struct stat status;
  struct statvfs space;
  if (stat(existing.c_str(), &status) != 0 || statvfs(existing.c_str(), &space) != 0) {
    return {"stats_dir", Status::error, fmt::format("{}: {}", folder, strerror(errno)),
            "name another folder with FIBSHIM_STATS_DIR"};
  }
  if (!S_ISDIR(status.st_mode)) {
    return {"stats_dir", Status::error, fmt::format("{} is not a folder", existing.string()),
            "name another folder with FIBSHIM_STATS_DIR"};
  }
  if (access(existing.c_str(), W_OK | X_OK) != 0) {
    return {"stats_dir", Status::error,
            fmt::format("{}: cannot write in {}: {}", folder, existing.string(), strerror(errno)),
            "name another folder with FIBSHIM_STATS_DIR; launches are redirected all the same, but "
            "not counted"};
  }
  if (const std::string why = why_no_counters(folder); !why.empty()) {
    return {"stats_dir", Status::error,
            fmt::format("{}: the shim keeps no counters there: {}", folder, why),
            "launches are redirected all the same; correct this, or name another folder with "
            "FIBSHIM_STATS_DIR"};
  }
  const uint64_t free_bytes = uint64_t{space.f_bavail} * space.f_frsize;
  const std::string detail = fmt::format(
      "{}{}, {} MiB free", folder, existing == folder ? "" : " (will be made)", free_bytes >> 20);
  if (free_bytes < kWantedStatsBytes) {
    return {"stats_dir", Status::warning, detail,
            "a full file system loses counts; in a container, give it more with --shm-size"};
  }
  return {"stats_dir", Status::ok, detail, ""};
}

// Finds processes that run without the folder that they were given. So far only a warning in their
// own logs says so.
Finding check_folders_in_force(const SettingValues& settings) {
  const auto folder = read_counters_folder(settings[SettingId::stats_dir].value);
  std::vector<std::string> refusals;
  size_t live = 0;
  for (const ProcessCounters& process :
       folder ? folder->processes : std::vector<ProcessCounters>()) {
    live += process.is_alive ? 1 : 0;
    if (!process.is_alive || process.folder.state != FolderState::refused) continue;
    refusals.push_back(fmt::format("pid {}: {}", process.pid, process.folder.refusal));
  }
  if (refusals.empty()) {
    return {"folders_in_force", Status::ok,
            fmt::format("{} counted, none whose folder was refused",
                        counted(live, "live process", "live processes")),
            ""};
  }
  return {
      "folders_in_force", Status::warning,
      fmt::format("{} of {} in no folder, because theirs was refused: {}", refusals.size(),
                  counted(live, "live process", "live processes"), fmt::join(refusals, "; ")),
      "correct the folder: they try it again within a minute; or move them with 'fibshim swap'"};
}

// Finds patterns that no kernel has fitted, in each folder in use whose processes ran enough
// kernels to tell.
Finding check_unused_patterns(const SettingValues& settings) {
  struct Use {
    size_t processes = 0;
    std::set<std::string> labels;
  };
  std::map<std::string, Use> uses;  // by folder
  const auto folder = read_counters_folder(settings[SettingId::stats_dir].value);
  for (const ProcessCounters& process :
       folder ? folder->processes : std::vector<ProcessCounters>()) {
    uint64_t kernels = 0;
    for (const Count& count : process.counts) kernels += count.numbers.executions;
    if (!process.is_alive || process.folder.state != FolderState::on ||
        process.folder.config.path.empty() || kernels < kEnoughKernels) {
      continue;
    }
    Use& use = uses[process.folder.config.path];
    ++use.processes;
    for (const Count& count : process.counts) use.labels.insert(count.pattern);
  }
  std::vector<std::string> unused;
  for (const auto& [path, use] : uses) {
    const CheckReport report = check_folder(path);
    if (report.snapshot == nullptr) continue;  // the folder has changed since
    std::vector<std::string> labels;
    for (uint32_t i = 0; i < report.snapshot->patterns.count; ++i) {
      const Pattern& pattern = report.snapshot->begin(report.snapshot->patterns)[i];
      const std::string label = report.snapshot->text(pattern.label);
      if (pattern.kind != PatternKind::member && !use.labels.contains(label)) {
        labels.push_back(label);
      }
    }
    if (labels.empty()) continue;
    unused.push_back(
        fmt::format("{}: {} fitted no kernel of {}: {}", path, counted(labels.size(), "pattern"),
                    counted(use.processes, "process", "processes"), fmt::join(labels, ", ")));
  }
  if (!unused.empty()) {
    return {
        "patterns", Status::note, fmt::format("{}", fmt::join(unused, "; ")),
        "they may be for other models, or for another version of the engine: 'fibshim check DIR "
        "--against LIBRARY' tells"};
  }
  return {"patterns", Status::ok,
          uses.empty()
              ? fmt::format("no live process has run {} kernels in a folder yet", kEnoughKernels)
              : "every pattern has fitted a kernel",
          ""};
}

// ---- other processes

Finding judge_processes(const std::vector<ProcessInfo>& processes, size_t unreadable) {
  size_t without = 0;
  for (const ProcessInfo& process : processes) without += process.shim.empty() ? 1 : 0;
  std::string detail =
      fmt::format("{} with the driver loaded, {} without the shim", processes.size(), without);
  if (unreadable > 0) detail += fmt::format("; {} may not be looked into", unreadable);
  return {"gpu_processes", without > 0 ? Status::warning : Status::ok, detail,
          unreadable > 0 && geteuid() != 0 ? "root sees the processes of all users" : ""};
}

Finding check_program(const std::string& name) {
  const std::string path = find_program(name);
  if (path.empty() || access(path.c_str(), F_OK) != 0) {
    return {"program", Status::error, fmt::format("{}: not found", name), ""};
  }
  const ProgramInfo program = judge_program(path);
  // For a script, this is about its interpreter. Programs that it starts are not checked.
  const std::string script =
      program.path == path ? "" : fmt::format("{} is a script for {}; ", path, program.path);
  if (!program.explanation.empty()) {
    return {"program", Status::error, script + program.explanation,
            "start the programs inside it with LD_PRELOAD where it allows that"};
  }
  if (program.verdict == ProgramVerdict::unknown) {
    return {"program", Status::note, fmt::format("{}: cannot tell what runs it", path), ""};
  }
  if (script.empty()) return {"program", Status::ok, path + " can be preloaded", ""};
  return {"program", Status::ok, script + "that can be preloaded",
          "where the script only starts another program, name that one"};
}

// ---- output

std::string to_text(const std::vector<Finding>& findings,
                    const std::vector<ProcessInfo>& processes) {
  std::string out;
  for (const Finding& finding : findings) {
    out += fmt::format("{:<8}{}: {}\n", status_name(finding.status), finding.name,
                       printable(finding.detail));
    if (!finding.advice.empty()) out += fmt::format("        {}\n", printable(finding.advice));
    if (finding.name != "gpu_processes") continue;
    for (const ProcessInfo& process : processes) {
      out += fmt::format("        pid {} {}: {}\n", process.pid,
                         process.shim.empty() ? "has no shim" : "has the shim",
                         printable(process.command));
      // The process may still run an earlier installation's shim.
      if (!process.shim.empty() && process.shim != shim_library_path()) {
        out += fmt::format("          another one: {}\n", printable(process.shim));
      }
      if (process.shim.empty()) out += fmt::format("          {}\n", why_no_shim(process.pid));
      if (!process.container.empty()) out += fmt::format("          in {}\n", process.container);
    }
  }
  return out;
}

nlohmann::ordered_json to_json(const std::vector<Finding>& findings,
                               const std::vector<ProcessInfo>& processes) {
  nlohmann::ordered_json out;
  out["version"] = 1;
  out["checks"] = nlohmann::ordered_json::array();
  for (const Finding& finding : findings) {
    out["checks"].push_back({{"name", finding.name},
                             {"status", status_name(finding.status)},
                             {"detail", finding.detail},
                             {"advice", finding.advice}});
  }
  out["gpu_processes"] = nlohmann::ordered_json::array();
  for (const ProcessInfo& process : processes) {
    out["gpu_processes"].push_back(
        {{"pid", process.pid},
         {"command", process.command},
         {"has_shim", !process.shim.empty()},
         {"shim", process.shim},
         {"reason", process.shim.empty() ? why_no_shim(process.pid) : ""},
         {"container", process.container}});
  }
  return out;
}

}  // namespace

int doctor_command(int argc, const char* const* argv) {
  CommandLine line("doctor", "Finds out why the shim does not work on this machine",
                   "[OPTIONS] [PROGRAM...]",
                   "0 nothing is wrong (there may be warnings); 1 an error; 2 wrong usage.");
  std::vector<std::string> programs;
  bool wants_json = false;
  line.positional("PROGRAM", &programs, "programs: can they be preloaded?");
  line.json(&wants_json);
  if (!line.parse(argc, argv)) return line.exit_code();

  const SettingValues settings = resolve_settings();
  std::vector<Finding> findings = {
      check_versions(),
      check_container(),
      check_driver(),
      check_shim_library(),
      check_preload(),
      check_opened_library<LoaderApi>("loader_library", loader_library_path(), "fibloader_api",
                                      kLoaderApiVersion),
      check_opened_library<RecorderApi>("record_library", record_library_path(), "fibrecord_api",
                                        kRecorderApiVersion),
      check_opened_library<ShadowApi>("shadow_library", shadow_library_path(), "fibshadow_api",
                                      kShadowApiVersion),
      check_settings(settings),
      check_config_folder(settings),
      check_stats_folder(settings),
      check_folders_in_force(settings),
      check_unused_patterns(settings)};
  for (const std::string& program : programs) findings.push_back(check_program(program));
  size_t unreadable = 0;
  const std::vector<ProcessInfo> processes = find_gpu_processes(&unreadable);
  findings.push_back(judge_processes(processes, unreadable));

  const bool has_error = std::ranges::any_of(
      findings, [](const Finding& finding) { return finding.status == Status::error; });
  const bool is_written = wants_json ? print_json(to_json(findings, processes))
                                     : print_data(to_text(findings, processes));
  return is_written && !has_error ? kExitFine : kExitWrong;
}

}  // namespace fibshim::tools
