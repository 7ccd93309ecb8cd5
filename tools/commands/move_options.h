// Shared by `swap` and `rollout`: chooses the processes to move, and checks the folder.
#pragma once

#include "tools/base/command_line.h"
#include "tools/counters/counters_folder.h"

namespace fibshim::tools {

struct MoveOptions {
  std::string folder;  // the folder to move to: absolute, links not resolved; may be empty
  std::string from;    // only processes that use this folder; empty: any
  std::vector<uint64_t> pids;
  bool wants_all = false;
  std::string job;
  bool is_unchecked = false;
  bool is_forced = false;
  std::string stats_dir;
};

// --pid, --all and --from.
void add_choice_options(CommandLine* line, MoveOptions* options);
// --no-check, --force, --json and --stats-dir. Refuses options that exclude each other, and a
// folder with a path that is too long.
void add_folder_options(CommandLine* line, MoveOptions* options, bool* wants_json);

// What is wrong with the folder, or "": errors, for which processes would refuse it, or mistakes
// without --force. Prints every error to stderr, or one line if --force accepts mistakes.
std::string fault_of(const char* command, const MoveOptions& options);

// The resolved path of the folder that a process uses, for comparison. If none is in use:
// FIBSHIM_CONFIG of its start.
std::string folder_in(const ProcessCounters& process);

// The processes that the options choose. *has_all: every --pid was found.
std::vector<ProcessCounters> choose_processes(const char* command, CountersFolder folder,
                                              const MoveOptions& options, bool* has_all);

// A message if no processes were chosen and they use different folders; else empty.
std::string difference_in(const std::vector<ProcessCounters>& processes,
                          const MoveOptions& options);

}  // namespace fibshim::tools
