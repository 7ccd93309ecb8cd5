// The control block of a counters file (counters_format.h): `fibshim swap` uses it to ask a running
// process to move to another config folder, and the process to describe the folder in force.
//
// Only those who can write the file can ask: its owner, and root. Both sides treat its content as
// untrusted data.
//
//   asking     Under the stats folder's lock: store `ask` with verb none and the next number; write
//              the request; store `ask` with the verb (release); wake its waiters.
//   reading    The process copies the request and accepts it if `ask` is still the same afterwards.
//   answering  Write `message`; store `answer` with the number of the ask (release); wake its waiters.
//
// Ranks of one job move together. Each is asked to `prepare` and given a decision word, which lies
// in the control block of one of them and is mapped by all. The first to change that word from
// undecided decides for all. The asker commits once all have prepared. The asker, or a process that
// was asked something else meanwhile or has waited too long, aborts. If the asker dies, the time
// limit ends the wait.
#pragma once

#include <stdint.h>

namespace fibshim {

enum class AskVerb : uint32_t {
  none,
  move,     // prepare, and move at once
  prepare,  // prepare, then follow the decision
  shadow,   // check one of `asked_interval` launches of definitions fitting the glob `asked_folder`
};

enum class AskTarget : uint32_t {
  folder,  // ControlBlock::asked_folder
  off,     // no folder: originals run
  on,      // the folder before off
  back,    // the folder before the last move; in state off, the folder before off
};

enum class AnswerState : uint32_t {
  none,
  working,
  prepared,  // waits for the decision
  moved,
  refused,  // `message` says why; the folder in force stays
  aborted,  // another process of the job refused, or the asker gave up or died
};

// The words `ask` and `answer`: a number, and a verb or state.
inline constexpr uint32_t kControlBits = 3;
template <class State>
constexpr uint32_t control_word(uint32_t number, State state) {
  return number << kControlBits | static_cast<uint32_t>(state);
}
constexpr uint32_t control_number(uint32_t word) { return word >> kControlBits; }
template <class State>
constexpr State control_state(uint32_t word) {
  return static_cast<State>(word & ((1u << kControlBits) - 1));
}

// The word `decision`: a random identity drawn by its asker, and a verdict.
enum class Verdict : uint64_t { undecided, commit, abort };
inline constexpr uint32_t kDecisionBits = 2;

inline constexpr uint32_t kMaxJobQuarantines = 64;
inline constexpr uint32_t kControlPathBytes = 4096;
inline constexpr uint32_t kControlTextBytes = 1024;

enum class FolderState : uint32_t {
  on,
  off,
  refused,  // the first folder was refused and none accepted since: kernels run unchanged
};

// The state of the process. A copy is consistent if `version` is even and did not change.
struct ControlStatus {
  uint32_t version;      // atomic; odd while the rest is written
  uint32_t has_watcher;  // 1: a thread waits for requests
  uint64_t swap_count;
  uint64_t refused_count;
  uint64_t image_count;  // images that the process has loaded, and the bytes of their files
  uint64_t image_bytes;
  uint64_t kept_image_count;  // the same of images that the folder in force has not used
  uint64_t kept_image_bytes;
  FolderState state;
  uint32_t reserved;
  uint64_t digest[2];
  char folder[kControlPathBytes];      // in force, links resolved; in state off, the one before off
  char previous[kControlPathBytes];    // the folder before `folder`; empty: there was none
  char configured[kControlPathBytes];  // FIBSHIM_CONFIG, absolute, links not resolved
  char refusal[kControlTextBytes];     // why the last folder was refused; empty: it was accepted
  char job[kControlTextBytes];  // FIBSHIM_JOB, or "SLURM_JOB_ID=17" and the like; may be empty
};

struct ControlBlock {
  ControlStatus status;

  uint32_t ask;  // atomic, futex; control_word(number, AskVerb)
  AskTarget asked_target;
  uint32_t hold_ms;      // prepare: how long to wait for the decision
  uint32_t times_steps;  // atomic; not 0: steps are timed; a new number assigns StepTimes anew
  uint64_t decision_id;
  char asked_folder[kControlPathBytes];
  char decider[256];  // name of the counters file that holds the decision

  uint32_t answer;          // atomic, futex; control_word(number of the ask, AnswerState)
  uint32_t moved_graphs;    // executable graphs prepared for the new folder
  uint32_t kept_graphs;     // executable graphs that run as before, since that failed
  uint32_t asked_interval;  // part of the request; shadow: 0 for none
  char message[kControlTextBytes];

  uint64_t decision;  // atomic; decision_id << kDecisionBits | Verdict

  // Solutions that processes of the job have found wrong. Atomic; filled from the front. Any
  // process of the job adds one and wakes the waiters of `ask`. A swap clears them.
  uint64_t quarantines[kMaxJobQuarantines];
};

}  // namespace fibshim
