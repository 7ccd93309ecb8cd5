// The control block of a counters file (counters_format.h): how `fibshim swap` asks a running process
// to move to another config folder, and what the process says of the folder that it is in.
//
// Whoever can write the file can do this: its owner, and root. Both sides treat its content as untrusted
// data.
//
//   asking     Under the stats folder's lock: store `ask` with verb none and the next number; write what
//              is asked; store `ask` with the verb (release); wake its waiters.
//   reading    The process copies what is asked, and takes it if `ask` is still the same afterwards.
//   answering  Write `message`; store `answer` with the number of the ask (release); wake its waiters.
//
// Ranks of one job move together. Each is asked to `prepare`, and told a decision: a word in the control
// block of one of them, which all map. Whoever changes that word first from undecided decides for all:
// the asker, once all have prepared, for commit; the asker, or a process that was asked something else
// meanwhile or has waited too long, for abort. An asker that dies leaves them with a time limit.
#pragma once

#include <stdint.h>

namespace fibshim {

enum class AskVerb : uint32_t {
  none,
  move,     // prepare, and go at once
  prepare,  // then do as the decision says
  shadow,  // check one of `asked_interval` launches of the definitions that the glob in `asked_folder` fits
};

enum class AskTarget : uint32_t {
  folder,  // ControlBlock::asked_folder
  off,     // no folder: originals run
  on,      // the folder before off
  back,    // the folder before the last move; of state off, that before off
};

enum class AnswerState : uint32_t {
  none,
  working,
  prepared,  // and waits for the decision
  moved,
  refused,  // `message` says why; the folder before stays
  aborted,  // another process of the job refused, or the asker gave up or died
};

// `ask` and `answer`: a number and what it is about.
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

// `decision`: an identity that its asker has drawn, and one of these.
enum class Verdict : uint64_t { undecided, commit, abort };
inline constexpr uint32_t kDecisionBits = 2;

inline constexpr uint32_t kMaxJobQuarantines = 64;
inline constexpr uint32_t kControlPathBytes = 4096;
inline constexpr uint32_t kControlTextBytes = 1024;

enum class FolderState : uint32_t {
  on,
  off,
  refused,  // that of the start was, and none has been accepted since: kernels run unchanged
};

// What the process says of itself. Read as a whole when `version` is even and the same afterwards.
struct ControlStatus {
  uint32_t version;      // atomic; odd while the rest is written
  uint32_t has_watcher;  // 1: a thread looks at what is asked
  uint64_t swap_count;
  uint64_t refused_count;
  uint64_t image_count;  // images that the process has loaded, and the bytes of their files
  uint64_t image_bytes;
  uint64_t kept_image_count;  // of those the ones that the folder in force has not used
  uint64_t kept_image_bytes;
  FolderState state;
  uint32_t reserved;
  uint64_t digest[2];
  char folder[kControlPathBytes];      // in force, links resolved; of state off the one before
  char previous[kControlPathBytes];    // the one before that; empty: there was none
  char configured[kControlPathBytes];  // FIBSHIM_CONFIG, absolute, links not resolved
  char refusal[kControlTextBytes];     // why the last folder was refused; empty: it was not
  char job[kControlTextBytes];  // FIBSHIM_JOB, or "SLURM_JOB_ID=17" and the like; may be empty
};

struct ControlBlock {
  ControlStatus status;

  uint32_t ask;  // atomic, futex; control_word(number, AskVerb)
  AskTarget asked_target;
  uint32_t hold_ms;  // prepare: how long to wait for the decision
  uint32_t
      times_steps;  // atomic; not 0: StepTimes are kept, with another number from the first graph on
  uint64_t decision_id;
  char asked_folder[kControlPathBytes];
  char decider[256];  // name of the counters file that holds the decision

  uint32_t answer;  // atomic, futex; control_word(number of the ask, AnswerState)
  // Executable graphs: made ready for the folder that was moved to; and that keep what they run, as that failed.
  uint32_t moved_graphs;
  uint32_t kept_graphs;
  uint32_t asked_interval;  // of the ask: shadow: 0 for none
  char message[kControlTextBytes];

  uint64_t decision;  // atomic; decision_id << kDecisionBits | Verdict

  // Solutions that processes of the job have found wrong; atomic, filled from the first. Any of them adds one, and wakes
  // `ask`; the process itself empties it at a swap.
  uint64_t quarantines[kMaxJobQuarantines];
};

}  // namespace fibshim
