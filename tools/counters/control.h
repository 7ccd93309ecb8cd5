// Asks running processes to move to another config folder, through the control blocks of their
// counters files (shim/abi/control_format.h), and reads their answers.
#pragma once

#include <chrono>

#include "tools/counters/counters_files.h"

namespace fibshim::tools {

using ControlClock = std::chrono::steady_clock;

// What the processes are asked for.
struct Move {
  AskTarget target;
  std::string folder;  // absolute; used with AskTarget::folder only
  std::optional<uint32_t> shadow_interval =
      {};  // if set, no move: check one of so many launches; `folder` is a glob of definitions
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
  would_move,  // only in a dry run, as the next one
  would_stay
};
const char* move_state_name(MoveState state);

struct MoveResult {
  uint64_t pid;
  std::string file;  // its counters file
  MoveState state;
  std::string reason;  // why it has not moved
  // If it has moved: executable graphs that moved with it, and those that could not.
  uint32_t moved_graphs = 0;
  uint32_t kept_graphs = 0;
};

// The same for processes that were asked to check launches.
const char* shadow_state_name(MoveState state);

// The lock of a stats folder: only one `fibshim swap` at a time asks its processes.
class AskingRight {
 public:
  // Waits until `deadline` at most. The error says what prevents it.
  static tl::expected<AskingRight, std::string> acquire(const std::string& folder,
                                                        ControlClock::time_point deadline);
  int folder_fd() const { return folder_.get(); }

 private:
  explicit AskingRight(FileDescriptor folder) : folder_(std::move(folder)) {}
  FileDescriptor folder_;
};

// Has the shim of each process record StepTimes (step_times.h) anew, or stop recording them.
void time_steps(int folder_fd, const std::vector<ProcessCounters>& processes, bool is_wanted);

// Asks each process separately. Waits for answers until `deadline`, unless that is null.
std::vector<MoveResult> move_each(const AskingRight& right,
                                  const std::vector<ProcessCounters>& processes, const Move& move,
                                  const ControlClock::time_point* deadline);

// Asks each process to check one of `interval` launches of the definitions that the glob fits (0:
// none), and waits.
std::vector<MoveResult> ask_shadow(const AskingRight& right,
                                   const std::vector<ProcessCounters>& processes,
                                   const std::string& definition, uint32_t interval,
                                   ControlClock::time_point deadline);

// Asks each process of a stats folder to check at least one of `interval` launches of all definitions; kShadowUnset ends
// that. Returns "", or which living process does not answer.
std::string check_at_least(const std::string& folder, const std::vector<ProcessCounters>& processes,
                           uint32_t interval, ControlClock::time_point deadline);

// Moves all processes or none: first each prepares, then all move.
std::vector<MoveResult> move_together(const AskingRight& right,
                                      const std::vector<ProcessCounters>& processes,
                                      const Move& move, ControlClock::time_point deadline);

}  // namespace fibshim::tools
