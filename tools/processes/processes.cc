#include "tools/processes/processes.h"

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <system_error>

#include "tools/base/files.h"
#include "tools/base/terminal.h"
#include "shim/abi/counters_format.h"
#include "tools/processes/programs.h"

namespace fibshim::tools {
namespace {

std::string command_line(const std::string& process) {
  std::string out = read_small_file(process + "/cmdline").substr(0, 200);
  std::ranges::replace(out, '\0', ' ');
  out.erase(out.find_last_not_of(' ') + 1);
  if (!out.empty()) return out;
  out = read_small_file(process + "/comm");
  return out.substr(0, out.find('\n'));
}

std::string link_target(const std::string& path) {
  char buffer[256];
  const ssize_t length = readlink(path.c_str(), buffer, sizeof buffer);
  return length < 0 ? "" : std::string(buffer, static_cast<size_t>(length));
}

// The path at the end of a line of /proc/<pid>/maps: the sixth field, which may contain blanks.
std::string mapped_path(const std::string& line) {
  const size_t slash = line.find('/');
  return slash == std::string::npos ? "" : line.substr(slash);
}

std::string foreign_namespaces(const std::string& process) {
  std::string out;
  for (const auto& [name, words] : {std::pair("mnt", "files"), std::pair("pid", "processes")}) {
    const std::string own = link_target(fmt::format("/proc/self/ns/{}", name));
    const std::string its = link_target(fmt::format("{}/ns/{}", process, name));
    if (own.empty() || its.empty() || own == its) continue;
    out += fmt::format("{}{}", out.empty() ? "" : " and ", words);
  }
  return out.empty() ? "" : fmt::format("a container: it sees other {} than this program", out);
}

}  // namespace

std::optional<ProcessInfo> read_process(uint64_t pid, bool* is_forbidden) {
  *is_forbidden = false;
  const std::string process = fmt::format("/proc/{}", pid);
  std::ifstream maps(process + "/maps");
  if (!maps) {
    *is_forbidden = errno == EACCES || errno == EPERM;
    return std::nullopt;
  }
  ProcessInfo out{pid, command_line(process), "", "", "", {}, foreign_namespaces(process)};
  std::string line;
  while (std::getline(maps, line)) {
    const std::string path = mapped_path(line);
    const std::string_view name = std::string_view(path).substr(path.rfind('/') + 1);
    if (name.starts_with("libcuda.so")) out.driver = path;
    if (name.starts_with("libfibshim.so")) out.shim = path;
    if (name.starts_with("libfibloader.so")) out.loader = path;
    if (name.ends_with(kCountersSuffix) &&
        std::ranges::find(out.counters, path) == out.counters.end()) {
      out.counters.push_back(path);
    }
  }
  if (maps.bad()) {  // some kernels forbid reading the file rather than opening it
    *is_forbidden = errno == EACCES || errno == EPERM;
    return std::nullopt;
  }
  return out;
}

std::vector<ProcessInfo> find_gpu_processes(size_t* unreadable) {
  std::vector<ProcessInfo> out;
  *unreadable = 0;
  std::error_code error;
  for (std::filesystem::directory_iterator at("/proc", error), end; !error && at != end;
       at.increment(error)) {
    const std::string name = at->path().filename().string();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    bool is_forbidden = false;
    auto found = read_process(std::stoull(name), &is_forbidden);
    *unreadable += is_forbidden ? 1 : 0;
    if (found && !found->driver.empty()) out.push_back(std::move(*found));
  }
  std::ranges::sort(out, {}, &ProcessInfo::pid);
  return out;
}

std::vector<std::pair<std::string, std::string>> shim_variables(uint64_t pid) {
  std::vector<std::pair<std::string, std::string>> out;
  const std::string variables = read_small_file(fmt::format("/proc/{}/environ", pid));
  for (const std::string_view text : split(variables, '\0')) {
    const size_t equals = text.find('=');
    if (equals == std::string_view::npos) continue;
    const std::string_view name = text.substr(0, equals);
    if (name == "LD_PRELOAD" || name.starts_with("FIBSHIM_")) {
      out.emplace_back(name, text.substr(equals + 1));
    }
  }
  std::ranges::sort(out);
  return out;
}

std::string why_no_shim(uint64_t pid) {
  if (!judge_program(fmt::format("/proc/{}/exe", pid)).explanation.empty()) {
    return "its program cannot be preloaded";
  }
  for (const auto& [name, value] : shim_variables(pid)) {
    if (name == "LD_PRELOAD" && value.find("libfibshim.so") != std::string::npos) {
      return "LD_PRELOAD names the shim, but the linker did not load it: its message is in the "
             "program's stderr";
    }
  }
  return "LD_PRELOAD in its environment does not name the shim: it was started without, or its "
         "parent rewrote the variable";
}

std::vector<std::string> container_hints() {
  std::vector<std::string> out;
  if (access("/.dockerenv", F_OK) == 0) out.emplace_back("docker");
  if (access("/run/.containerenv", F_OK) == 0) out.emplace_back("podman");
  if (getenv("KUBERNETES_SERVICE_HOST") != nullptr) out.emplace_back("kubernetes");
  if (getenv("APPTAINER_CONTAINER") != nullptr || getenv("SINGULARITY_CONTAINER") != nullptr) {
    out.emplace_back("apptainer");
  }
  if (const char* const job = getenv("SLURM_JOB_ID"))
    out.push_back(fmt::format("slurm job {}", job));
  if (const char* const kind = getenv("container"); kind != nullptr && out.empty()) {
    out.emplace_back(kind);  // set by systemd-nspawn, podman and others
  }
  return out;
}

}  // namespace fibshim::tools
