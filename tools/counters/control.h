// Asks running processes to move to another config folder, through the control blocks of their
// counters files (shim/abi/control_format.h), and learns what became of it.
#pragma once

#include <chrono>

#include "tools/counters/counters_files.h"

namespace fibshim::tools {

using ControlClock = std::chrono::steady_clock;

// Where to go.
struct Move {
  AskTarget target;
  std::string folder;  // absolute; of `folder` alone
  std::optional<uint32_t> shadow_interval =
      {};  // no move: launches of `folder`, a glob, are to be checked
};

enum class MoveState : uint8_t {
  asked,
  moved,
  refused,
  aborted,
  dead,
  no_watcher,
  no_access,
  timed_out,
  would_move,  // of a dry run, this and the next
  would_stay
};
const char* move_state_name(MoveState state);

struct MoveResult {
  uint64_t pid;
  std::string file;  // its counters file
  MoveState state;
  std::string reason;  // where it has not moved
  // Of one that has moved: executable graphs that went with it, and that could not.
  uint32_t moved_graphs = 0;
  uint32_t kept_graphs = 0;
};

// The same of processes that were asked to check launches.
const char* shadow_state_name(MoveState state);

// The lock of a stats folder: one `fibshim swap` at a time asks its processes.
class AskingRight {
 public:
  // Waits until `deadline`. The error says who is in the way.
  static tl::expected<AskingRight, std::string> acquire(const std::string& folder,
                                                        ControlClock::time_point deadline);
  int folder_fd() const { return folder_.get(); }

 private:
  explicit AskingRight(FileDescriptor folder) : folder_(std::move(folder)) {}
  FileDescriptor folder_;
};

// Has the shim of each process keep StepTimes (step_times.h), from the first launch on, or no longer.
void time_steps(int folder_fd, const std::vector<ProcessCounters>& processes, bool is_wanted);

// Asks each process for itself. Until `deadline` it waits for them, unless it is null.
std::vector<MoveResult> move_each(const AskingRight& right,
                                  const std::vector<ProcessCounters>& processes, const Move& move,
                                  const ControlClock::time_point* deadline);

// Asks each to check one of `interval` launches of these definitions, none where that is 0, and waits.
std::vector<MoveResult> ask_shadow(const AskingRight& right,
                                   const std::vector<ProcessCounters>& processes,
                                   const std::string& definition, uint32_t interval,
                                   ControlClock::time_point deadline);

// All of them or none: each prepares, then all go.
std::vector<MoveResult> move_together(const AskingRight& right,
                                      const std::vector<ProcessCounters>& processes,
                                      const Move& move, ControlClock::time_point deadline);

}  // namespace fibshim::tools
