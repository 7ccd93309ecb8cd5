// What /proc tells of other processes: is the shim in them, which settings and counters have they.
// A process may end while it is looked at, or not let itself be looked at: what cannot be read is
// empty.
#pragma once

#include <stdint.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace fibshim::tools {

struct ProcessInfo {
  uint64_t pid;
  std::string command;  // its command line, cut
  std::string driver;   // path of the libcuda.so that it has loaded, as it sees it; or empty
  std::string shim;     // of libfibshim.so
  std::string loader;   // of libfibloader.so
  std::vector<std::string> counters;  // of counters files that it has mapped
  std::string container;              // a hint: it sees other files or processes than this program
};

// Nothing when there is no such process; `*is_forbidden` when it may not be looked into.
std::optional<ProcessInfo> read_process(uint64_t pid, bool* is_forbidden);

// Every process that has the driver loaded. *unreadable counts those that may not be looked into.
std::vector<ProcessInfo> find_gpu_processes(size_t* unreadable);

// LD_PRELOAD and the variables that begin with FIBSHIM_, as the process was started with.
std::vector<std::pair<std::string, std::string>> shim_variables(uint64_t pid);

// Why a process has no shim, as far as can be told.
std::string why_no_shim(uint64_t pid);

// What this program runs in: "docker", "podman", "kubernetes", "slurm job 17", ...; may be empty.
std::vector<std::string> container_hints();

}  // namespace fibshim::tools
