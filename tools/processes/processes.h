// Reads from /proc whether the shim is in other processes, and which settings and counters they
// have. A process may end meanwhile, or may not be read by this user: what cannot be read is empty.
#pragma once

#include <stdint.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace fibshim::tools {

struct ProcessInfo {
  uint64_t pid;
  std::string command;  // its command line, truncated
  std::string driver;   // path of the libcuda.so that it has loaded, as it sees it; or empty
  std::string shim;     // the same for libfibshim.so
  std::string loader;   // the same for libfibloader.so
  std::vector<std::string> counters;  // the same for the counters files that it has mapped
  std::string container;  // a hint that it sees other files or processes than this program
};

// Nothing if there is no such process, or with `*is_forbidden` if this user may not read it.
std::optional<ProcessInfo> read_process(uint64_t pid, bool* is_forbidden);

// Every process that has the driver loaded. *unreadable counts those that this user may not read.
std::vector<ProcessInfo> find_gpu_processes(size_t* unreadable);

// LD_PRELOAD and the variables that begin with FIBSHIM_, as they were when the process started.
std::vector<std::pair<std::string, std::string>> shim_variables(uint64_t pid);

// Why a process has no shim, as far as can be told.
std::string why_no_shim(uint64_t pid);

// What this program runs in: "docker", "podman", "kubernetes", "slurm job 17", ...; may be empty.
std::vector<std::string> container_hints();

}  // namespace fibshim::tools
