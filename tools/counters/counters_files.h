// Reads the counters files of a FIBSHIM_STATS_DIR (shim/abi/counters_format.h) while their writers run,
// and after they died. A file is data from elsewhere: every number in it is checked before it is
// used, and what does not fit is refused with a reason, never read halfway. Files are read with
// pread, not mapped, so that one cut short meanwhile is an error and not a SIGBUS.
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

// The folder that a process is in, and how it came there (shim/abi/control_format.h).
struct FolderInForce {
  bool has_watcher = false;  // a thread of the shim moves it when it is asked
  FolderState state = FolderState::on;
  ConfigIdentity config;   // the folder before where state is off; empty: none
  std::string previous;    // the folder before that; empty: none
  std::string configured;  // FIBSHIM_CONFIG, absolute, links not resolved
  uint64_t swap_count = 0;
  uint64_t refused_count = 0;
  std::string refusal;  // why the last folder was refused; empty: it was not
  std::string job;      // that it is a rank of; may be empty
  // Images that it has loaded, and the bytes of their files; of these the ones that only folders before
  // have used.
  uint64_t image_count = 0, image_bytes = 0;
  uint64_t kept_image_count = 0, kept_image_bytes = 0;
};

// Launches that were made, with nodes of graphs that were instantiated; and kernels that have run: a launch's
// once, a node's each time that its graph was launched.
struct LaunchNumbers {
  uint64_t launches = 0;
  uint64_t nodes = 0;  // of the launches
  uint64_t executions = 0;
  uint64_t body_nodes =
      0;  // in bodies of conditional nodes, which run as often as the device decides

  void add(const LaunchNumbers& more);
  bool operator==(const LaunchNumbers&) const = default;
};

// SeriesEntry::shapes
using Shapes = std::array<uint64_t, kShapeWords>;

struct Count {
  uint32_t config;  // index into ProcessCounters::configs; beyond its end: no config
  int32_t device;   // ordinal; -1: not told apart, and the process sees more than one
  std::string pattern;
  std::string definition;  // this and pattern are empty for launches that no pattern knows
  std::string solution;   // that serves the definition; empty: none, or which depends on the launch
  uint32_t outcome;       // index into kOutcomes; one beyond it is from a newer shim
  LaunchNumbers numbers;  // not both 0
  uint64_t image;         // SeriesEntry::image
  Shapes shapes;
};

struct ProcessCounters {
  std::string file;  // its name in the folder
  uid_t owner;       // of the file
  uint64_t pid;
  uint64_t start_time;  // clock ticks since boot
  uint64_t created_unix_ns;
  bool is_alive;
  std::string mode;
  std::string executable;
  std::string command;
  std::vector<DeviceIdentity> devices;
  std::vector<ConfigIdentity> configs;  // that it has been in, in the order of the first time
  FolderInForce folder;
  std::vector<Count> counts;
  std::vector<ShadowCount> shadow;
};

struct RefusedFile {
  std::string file;
  std::string reason;
};

struct CountersFolder {
  bool exists;
  std::vector<ProcessCounters> processes;  // by pid, then start time
  std::vector<RefusedFile> refused;        // by name
  size_t foreign_count = 0;                // files of other users, which were left out
  // Why processes of its owner, or of whoever reads it, keep no counters in it; empty: they do.
  std::string refusal;
  bool is_anothers = false;  // because it is another user's, whose own processes keep theirs there
};

// Reads every "*.counters" file of the folder. The error says why the folder itself cannot be read; a
// folder that does not exist is no error.
tl::expected<CountersFolder, std::string> read_counters_folder(const std::string& folder);

// Why a process of this user would keep no counters there, as the shim decides it; empty: it would. The folder need
// not exist.
std::string why_no_counters(const std::string& folder);

// A folder that may be anybody's: the default one lies where everybody can make names, and in one with
// the sticky bit every user may keep counters.
struct OpenFolder {
  FileDescriptor fd;  // invalid: the folder does not exist
  uid_t owner = 0;
  std::string change_fault;  // why nothing in it is changed and nobody asked; empty: it may be
  std::vector<std::string> names;  // of counters files, sorted

  // Whether files of this user are taken for what his processes wrote: our own, root's and those of
  // the folder's owner; by root, everybody's.
  bool is_read(uid_t file_owner) const;
};
tl::expected<OpenFolder, std::string> open_counters_folder(const std::string& folder);

// Whether a file of this user, in a folder that may be changed, is ours to change or remove.
bool is_ours_to_change(uid_t file_owner);

// One file of an open folder. Nothing when its process has not begun it yet.
tl::expected<std::optional<ProcessCounters>, std::string> read_counters_file(
    int folder_fd, const std::string& name);

// What one reading of a folder may still take, of all files together: whoever may write there may make
// any number of them, of any size. Tables and JSON take several times what is kept.
struct ReadingBudget {
  static constexpr uint64_t kMostReadBytes = uint64_t{2} << 30;  // of series and counters
  static constexpr uint64_t kMostKeptBytes = uint64_t{256} << 20;
  uint64_t read_left = kMostReadBytes;
  uint64_t kept_left = kMostKeptBytes;
};

// The same of a file that is open. `name` is what it goes by. What it takes goes off the budget.
tl::expected<std::optional<ProcessCounters>, std::string> read_open_counters_file(
    int fd, const std::string& name, ReadingBudget* budget = nullptr);

struct ProcessIdentity {
  uint64_t pid;
  uint64_t start_time;
};

// From "<pid>-<start time>.counters" or "<pid>-<start time>-<number>.counters"; nothing for others.
std::optional<ProcessIdentity> identity_in_file_name(std::string_view name);

// A process of this pid that started then is running now. A zombie is not.
bool is_process_alive(uint64_t pid, uint64_t start_time);

// Does any process have the file open for writing, or mapped? Its writer does, until it ends, and
// is found so in another container, too. `unknown`: not our file, or a file system without leases.
enum class Writer : uint8_t { none, some, unknown };
Writer find_writer(int fd);

uint64_t saturating_add(uint64_t a, uint64_t b);

// The text of a field that need not end in a zero.
template <size_t size>
std::string text_of(const char (&field)[size]) {
  return std::string(field, strnlen(field, size));
}

// The name of a mode; "mode_<n>" when the setting has none.
std::string mode_name(uint32_t mode);

// The name of an outcome; "outcome_<n>" when it is not in the table.
std::string outcome_name(uint32_t outcome);

}  // namespace fibshim::tools
