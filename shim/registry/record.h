// The registry's record of a kernel handle, and the decisions for its launches. Plain structs: the
// registry owns them, plan/ reads them.
//
// A launch reads them within a read section (base/read_section.h). Once published, a Record and a
// Candidate change only in their atomic members and in the first decision, and a Decision only in
// `way` (by sampling and quarantine), `sample_in` and `is_quarantined`.
#pragma once

#include <atomic>
#include <stddef.h>
#include <stdint.h>

#include "shim/abi/param.h"
#include "shim/abi/recording_format.h"
#include "shim/abi/settings.h"
#include "shim/abi/snapshot.h"
#include "shim/driver/cuda_names.h"

namespace fibshim {

struct DecisionTable;
struct Generation;
struct HandleEntry;
struct Record;

enum class HandleKind : uint8_t { function, kernel };

enum class DecisionKind : uint8_t {
  ready,  // `kernel` runs if the solution's `where` holds
  no_solution,
  arch,
  refused,
  in_capture,  // never cached
  failed,      // `error`
  choice,      // each launch chooses one of `choices`, or none
};

// True if the original is launched unchanged, and counted.
inline bool keeps_original(DecisionKind kind) {
  return kind == DecisionKind::no_solution || kind == DecisionKind::arch ||
         kind == DecisionKind::refused;
}

// Key parts: the const axis values of a launch, and the device if devices are told apart
// (devices.h).
inline constexpr uint32_t kMaxKey = kMaxKeyParts + 1;

// How the fast side executes a decision.
enum class Way : uint8_t {
  original,    // counts and launches the original, if the checks hold
  direct,      // launches the replacement by its fast form, if the checks hold
  remembered,  // launches the replacement by a plan that the thread remembers (plan/remembered.h)
  slow,        // passes the launch to the slow side
  sampled,     // follows `fast.way`, but passes launches that are to be checked to the slow side
  chosen,      // follows the decision that the launch chooses
  undecided,   // a candidate's first decision, until there is one: as slow
};

struct Choices;

struct Decision {
  // A direct launch reads this part.
  int64_t first_key;  // key[0], or 0 if the key is empty
  union {
    CUfunction kernel;       // ready: in the form for cuLaunchKernel
    const Choices* choices;  // choice
  };
  uint32_t counter;  // of a hit, or of the outcome of `kind`; choice: of launches without one
  Way way;
  DecisionKind kind;
  OnError on_error;  // what a failure does to the call
  uint8_t is_quarantined;
  FastForm fast;       // ready: the binding's; otherwise it holds only the pattern's checks
  uint32_t sample_in;  // launches until the next one that is checked: 1 is the next; 0: none is

  // Computed and slow launches read this part, too.
  const Snapshot* snapshot;
  const Binding* binding;  // null unless one solution was found
  union {
    CUkernel node_kernel;  // ready: `kernel` in the form for graph nodes
    CUresult error;        // failed
  };
  uint32_t series;
  uint32_t key_count;
  int64_t key[kMaxKey];
  // The list of all cached decisions. Only writers use it.
  Decision* newer;
  Decision* older;
};
static_assert(offsetof(Decision, fast) == 24 && sizeof(Decision) == 256);

// The solutions of a definition, in the order of trial: a launch chooses the first whose `when`
// holds. Those that cannot serve this pattern or this GPU come last.
struct Choices {
  struct Choice {
    int64_t low;  // is_fast: the range of values that it serves, as in FastRange
    uint64_t span;
    const Decision* decision;
    Program when;
  };
  uint32_t count;
  bool is_fast;     // every `when` is a range of the same value, or always holds
  FastRange value;  // where that value is read
  Choice list[kMaxChoices];
};

// Members that change after a decision is published.
inline Way way_now(const Decision& decision) {
  Way way;
  __atomic_load(&decision.way, &way, __ATOMIC_RELAXED);
  return way;
}
inline bool is_quarantined(const Decision& decision) {
  return __atomic_load_n(&decision.is_quarantined, __ATOMIC_RELAXED) != 0;
}

// The way of a decision whose launches are not checked.
inline Way plain_way(const FastForm& form) {
  switch (form.way) {
    case FastWay::direct: return Way::direct;
    case FastWay::computed:
    case FastWay::clustered: return Way::remembered;
    case FastWay::slow: break;
  }
  return Way::slow;
}

// Counts a launch towards the next check. False: this launch is to be checked, or sampling is off.
// Does not overwrite a count that was set meanwhile.
inline bool skip_sample(const Decision& decision) {
  uint32_t* const sample_in = &const_cast<Decision&>(decision).sample_in;
  uint32_t left = __atomic_load_n(sample_in, __ATOMIC_RELAXED);
  while (left > 1) {
    if (__atomic_compare_exchange_n(sample_in, &left, left - 1, true, __ATOMIC_RELAXED,
                                    __ATOMIC_RELAXED)) {
      return true;
    }
  }
  return false;
}

// A pattern that fits a handle's symbol and layout.
struct alignas(64) Candidate {
  // A direct launch reads these, of the decision its first part: two cache lines, with more than 16
  // arguments three.
  FastKey fast_key;
  Decision first;  // the one that was cached first, usually the only one (decisions.h)

  std::atomic<DecisionTable*> decisions;  // null until the first
  const Record* record;
  const Generation* generation;
  const Snapshot* snapshot;  // the generation's
  const Pattern* pattern;
  int64_t captures[kMaxCaptures];
  SymbolMatch match;
};

// What the plans of a kernel's launches depend on: the inputs of its candidates, without repetitions.
struct LaunchInputs {
  LaunchInput* list;  // sorted by kind
  uint8_t count;
  bool are_whole;                   // false: they do not tell it all
  uint8_t ends[kLaunchInputKinds];  // the end of each kind in `list`
};

// A kernel that a pattern or a member of a rewrite fits, or, while recording, any kernel.
struct alignas(64) Record {
  HandleKind kind;
  uint8_t candidate_count;  // 0: no pattern fits this kernel
  uint8_t param_count;      // at most kMaxParams
  uint8_t member_count;     // of rewrites
  bool has_params;          // the driver has reported them
  uint32_t params_bytes;    // end of the last parameter in a packed buffer
  Candidate* candidates;    // in order of trial
  Param* params;
  LaunchInputs inputs;
  uint32_t* members;             // the member patterns that fit, as indices in `generation`
  const Generation* generation;  // null without members
  char* symbol;
  HandleEntry* entry;
  CUcontext context;                      // of a CUfunction; null: unknown
  std::atomic<RecordedKernel*> recorded;  // owned by the recorder (abi/recorder_api.h)
};

}  // namespace fibshim
