// Reads the counters files of a FIBSHIM_STATS_DIR (shim/counters_format.h) while their writers run,
// and after they died. A file is data from elsewhere: every number in it is checked before it is
// used, and what does not fit is refused with a reason, never read halfway. Files are read with
// pread, not mapped, so that one cut short meanwhile is an error and not a SIGBUS.
#ifndef FIBSHIM_TOOLS_COUNTERS_FILES_H_
#define FIBSHIM_TOOLS_COUNTERS_FILES_H_

#include <stdint.h>

#include <string>
#include <vector>

#include <tl/expected.hpp>

namespace fibshim::tools {

struct DeviceIdentity {
  uint32_t sm;  // 90 for compute capability 9.0
  std::string name;
};

struct ConfigIdentity {
  std::string path;
  std::string digest;  // 32 hexadecimal digits
};

struct Count {
  uint32_t config;  // index into ProcessCounters::configs; beyond its end: no config
  int32_t device;   // ordinal; -1: not told apart
  std::string pattern;
  std::string definition;  // this and pattern are empty for launches that no pattern knows
  uint32_t outcome;        // index into kOutcomes; one beyond it is from a newer shim
  uint64_t count;          // not 0
};

struct ProcessCounters {
  std::string file;  // its name in the folder
  uint64_t pid;
  uint64_t start_time;  // clock ticks since boot
  uint64_t created_unix_ns;
  bool is_alive;
  std::string mode;
  std::string executable;
  std::string command;
  std::vector<DeviceIdentity> devices;
  std::vector<ConfigIdentity> configs;
  std::vector<Count> counts;
};

struct RefusedFile {
  std::string file;
  std::string reason;
};

struct CountersFolder {
  bool exists;
  std::vector<ProcessCounters> processes;  // by pid, then start time
  std::vector<RefusedFile> refused;        // by name
};

// Reads every "*.counters" file of the folder. The error says why the folder itself cannot be
// read; a folder that does not exist is no error.
tl::expected<CountersFolder, std::string> read_counters_folder(const std::string& folder);

struct Clearing {
  std::vector<std::string> removed;
  std::vector<RefusedFile> kept;  // files that could not be removed
};

// Removes the files of processes that ended. Goes by the files' names ("<pid>-<start
// time>.counters"), so damaged files go too, and touches nothing that is named otherwise.
tl::expected<Clearing, std::string> clear_ended_counters(const std::string& folder);

// A process of this pid that started then is running now. A zombie is not.
bool is_process_alive(uint64_t pid, uint64_t start_time);

// The name of an outcome; "outcome_<n>" when it is not in the table.
std::string outcome_name(uint32_t outcome);

}  // namespace fibshim::tools

#endif  // FIBSHIM_TOOLS_COUNTERS_FILES_H_
