// Reads one counters file (shim/abi/counters_format.h) while its writer runs, and after it died. A
// file is untrusted: every number in it is checked before it is used, and a file that fails a check
// is refused with a reason, never read in part. Files are read with pread, not mapped, so that a
// file truncated meanwhile is an error and not a SIGBUS.
#pragma once

#include <sys/types.h>

#include <array>
#include <optional>
#include <string_view>
#include <vector>

#include <tl/expected.hpp>

#include "shim/abi/control_format.h"
#include "shim/abi/counters_format.h"
#include "tools/base/file_descriptor.h"
#include "tools/counters/shadow_numbers.h"

namespace fibshim::tools {

struct DeviceIdentity {
  uint32_t sm;  // 90 for compute capability 9.0
  std::string name;
};

struct ConfigIdentity {
  std::string path;
  std::string digest;  // 32 hexadecimal digits
};

// The folder that a process uses, and how it came there (shim/abi/control_format.h).
struct FolderInForce {
  bool has_watcher = false;  // a thread of the shim moves the process when it is asked
  FolderState state = FolderState::on;
  ConfigIdentity config;   // if state is off, the last folder; empty: none
  std::string previous;    // the folder before that; empty: none
  std::string configured;  // FIBSHIM_CONFIG, absolute, links not resolved
  uint64_t swap_count = 0;
  uint64_t refused_count = 0;
  std::string refusal;  // why the last folder was refused; empty if it was not
  std::string job;      // the job that the process is a rank of; may be empty
  // Loaded images and the bytes of their files; "kept": those that only earlier folders have used.
  uint64_t image_count = 0, image_bytes = 0;
  uint64_t kept_image_count = 0, kept_image_bytes = 0;
};

// `launches`: launches of kernels, and kernel nodes of instantiated graphs. `executions`: runs of
// kernels; a launch runs its kernel once, a node each time that its graph is launched.
struct LaunchNumbers {
  uint64_t launches = 0;
  uint64_t nodes = 0;  // those of the launches that are nodes
  uint64_t executions = 0;
  uint64_t body_nodes =
      0;  // nodes in bodies of conditional nodes: the device decides how often they run

  void add(const LaunchNumbers& more);
  bool operator==(const LaunchNumbers&) const = default;
};

// SeriesEntry::shapes
using Shapes = std::array<uint64_t, kShapeWords>;

struct Count {
  uint32_t config;  // index into ProcessCounters::configs; beyond its end: no config
  int32_t device;   // ordinal; -1: not known, and the process sees more than one
  std::string pattern;
  std::string definition;  // this and pattern are empty for launches that no pattern fits
  std::string solution;    // serves the definition; empty: none does, or it depends on the launch
  uint32_t outcome;        // index into kOutcomes; a number beyond its end is from a newer shim
  LaunchNumbers numbers;   // not both 0
  uint64_t image;          // SeriesEntry::image
  Shapes shapes;
};

// Nodes of graphs that keep their original, each time that this was found.
struct KeptNodes {
  int32_t device;  // as a Count's
  std::string pattern;
  std::string definition;
  uint32_t reason;  // index into kGraphReasons; one beyond it is from a newer shim
  uint64_t number;
};

struct ProcessCounters {
  std::string file;  // its name in the folder
  uid_t owner;       // the file's owner
  uint64_t pid;
  uint64_t start_time;  // clock ticks since boot
  uint64_t created_unix_ns;
  bool is_alive;
  std::string mode;
  std::string executable;
  std::string command;
  std::vector<DeviceIdentity> devices;
  std::vector<ConfigIdentity> configs;  // all that it has used, in the order of their first use
  FolderInForce folder;
  std::vector<Count> counts;
  std::vector<KeptNodes> kept;
  std::vector<ShadowCount> shadow;
};

// Opens a file to be read. Returns the reason if that fails, and sets errno.
tl::expected<FileDescriptor, std::string> open_counters_file(int folder_fd,
                                                             const std::string& name);

// Reads one file of an open folder. Returns nothing if its process has not written the header yet.
tl::expected<std::optional<ProcessCounters>, std::string> read_counters_file(
    int folder_fd, const std::string& name);

// How much one reading of a folder may still read and keep, of all files together: a user who may
// write there can create any number of files, of any size. Tables and JSON take several times the
// memory that is kept.
struct ReadingBudget {
  static constexpr uint64_t kMostReadBytes = uint64_t{2} << 30;  // of series and counters
  static constexpr uint64_t kMostKeptBytes = uint64_t{256} << 20;
  uint64_t read_left = kMostReadBytes;
  uint64_t kept_left = kMostKeptBytes;
};

// The same for an open file. `name` is for messages. Charges the bytes read and kept to the budget.
tl::expected<std::optional<ProcessCounters>, std::string> read_open_counters_file(
    int fd, const std::string& name, ReadingBudget* budget = nullptr);

// True if a process of this pid and start time is running now. A zombie is not.
bool is_process_alive(uint64_t pid, uint64_t start_time);

// Does any process have the file open for writing, or mapped? Its writer does until it ends, even
// in another container. `unknown`: the file is not ours, or the file system has no leases.
enum class Writer : uint8_t { none, some, unknown };
Writer find_writer(int fd);

uint64_t saturating_add(uint64_t a, uint64_t b);

// `a - b`; 0 if b is larger, as where counters were damaged or cleared.
inline uint64_t subtract_to_zero(uint64_t a, uint64_t b) { return a > b ? a - b : 0; }

// The text of a field that may lack the terminating zero.
template <size_t size>
std::string text_of(const char (&field)[size]) {
  return std::string(field, strnlen(field, size));
}

// The name of a mode; "mode_<n>" if the setting has no such value.
std::string mode_name(uint32_t mode);

// The name of an outcome; "outcome_<n>" if it is not in the table.
std::string outcome_name(uint32_t outcome);

}  // namespace fibshim::tools
