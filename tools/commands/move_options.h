// What `swap` and `rollout` share: which processes are moved, and whether the folder is fit for it.
#pragma once

#include "tools/base/command_line.h"
#include "tools/counters/counters_files.h"

namespace fibshim::tools {

struct MoveOptions {
  std::string folder;  // where to go: absolute, with links as they are; may be empty
  std::string from;    // only processes in this folder; empty: of any
  std::vector<uint64_t> pids;
  bool wants_all = false;
  std::string job;
  bool is_unchecked = false;
  bool is_forced = false;
  std::string stats_dir;
};

// --pid, --all and --from; --no-check and --force.
void add_choice_options(CommandLine* line, MoveOptions* options);
void add_check_options(CommandLine* line, MoveOptions* options);

// What does not go together; empty: nothing.
const char* conflict_in(const MoveOptions& options);

// Empty, or what is wrong with the folder: the processes would refuse it, or take it with its mistakes. Every error is on
// stderr then; where mistakes are taken, one line is.
std::string fault_of(const char* command, const MoveOptions& options);

// The folder that a process is in, as others are compared with it; that of the start where it was refused.
std::string folder_in(const ProcessCounters& process);

// The processes that are meant. *has_all: every --pid has counters.
std::vector<ProcessCounters> choose_processes(const char* command, CountersFolder folder,
                                              const MoveOptions& options, bool* has_all);

// Why a folder that was named for all is not meant for all of these; empty: it may be.
std::string difference_in(const std::vector<ProcessCounters>& processes,
                          const MoveOptions& options);

}  // namespace fibshim::tools
