// The folder of counters files, FIBSHIM_STATS_DIR: whose it is, whether others could write in it, and whose files in it
// are read or changed. What is in one file is counters_files.h's.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <tl/expected.hpp>

#include "tools/base/file_descriptor.h"
#include "tools/counters/counters_files.h"

namespace fibshim::tools {

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

struct ProcessIdentity {
  uint64_t pid;
  uint64_t start_time;
};

// From "<pid>-<start time>.counters" or "<pid>-<start time>-<number>.counters"; nothing for others.
std::optional<ProcessIdentity> identity_in_file_name(std::string_view name);

}  // namespace fibshim::tools
