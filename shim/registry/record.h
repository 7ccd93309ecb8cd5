// What the registry keeps of a kernel handle, and what was decided for its launches. Plain structs: the
// registry owns them, plan/ reads them.
//
// A launch reads them within a read section (base/read_section.h). A Record and a Candidate never change once
// their handle's slot is published, but for what is atomic; a Decision never changes once it is published,
// but for its way, which may become `slow` or `sampled`, `sample_in` and
// `is_quarantined`.
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
  ready,  // `kernel` runs, if the solution's where holds
  no_solution,
  arch,
  refused,
  in_capture,  // never cached
  failed,      // `error`
  choice,      // each launch has one of `choices`, or none
};

// Whether the launch goes on as it is, and is counted.
inline bool keeps_original(DecisionKind kind) {
  return kind == DecisionKind::no_solution || kind == DecisionKind::arch ||
         kind == DecisionKind::refused;
}

// The const axis values of one launch; the device is added where devices are told apart (devices.h).
inline constexpr uint32_t kMaxKey = kMaxKeyParts + 1;

// How the fast side carries a decision out.
enum class Way : uint8_t {
  original,   // counts, and lets the launch go on as it is, if the checks hold
  direct,     // launches the replacement by its fast form, if the checks hold
  computed,   // launches the replacement, with expressions
  clustered,  // the same, with a cluster
  slow,       // on the slow side
  sampled,    // as `fast` says, but for launches that are to be checked: those are on the slow side
  chosen,     // as the decision does that the launch chooses
};

struct Choices;

struct alignas(64) Decision {
  // A direct launch reads this part: two cache lines.
  int64_t first_key;  // key[0], 0 where the key is empty
  union {
    CUfunction kernel;       // ready: as cuLaunchKernel takes it for this handle
    const Choices* choices;  // choice
  };
  uint32_t counter;  // of a hit, or of what `kind` means; choice: of a launch that no `when` is for
  Way way;
  DecisionKind kind;
  OnError on_error;  // what a failure does to the call
  uint8_t is_quarantined;
  FastForm fast;       // the binding's; of another kind than `ready` the pattern's checks alone
  uint32_t sample_in;  // the launch that is checked next: 1 for the next one; 0: none is

  // Computed and slow launches read this part, too.
  const Snapshot* snapshot;
  const Binding* binding;  // null unless one solution was found
  union {
    CUkernel node_kernel;  // ready: `kernel`, as nodes of graphs take it
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

// The solutions of a definition, in the order of trial: a launch has the first whose `when` holds. Those that
// cannot serve this pattern, or this GPU, come last.
struct Choices {
  struct Choice {
    int64_t low;  // of is_fast: the values that it is for, as in FastRange
    uint64_t span;
    const Decision* decision;
    Program when;
  };
  uint32_t count;
  bool is_fast;     // every `when` is a range of one value, or for all launches
  FastRange value;  // which one
  Choice list[kMaxChoices];
};

// What changes after a decision is published.
inline Way way_now(const Decision& decision) {
  Way way;
  __atomic_load(&decision.way, &way, __ATOMIC_RELAXED);
  return way;
}
inline bool is_quarantined(const Decision& decision) {
  return __atomic_load_n(&decision.is_quarantined, __ATOMIC_RELAXED) != 0;
}

// The way of a decision of which no launch is checked.
inline Way plain_way(const FastForm& form) {
  switch (form.way) {
    case FastWay::direct: return Way::direct;
    case FastWay::computed: return Way::computed;
    case FastWay::clustered: return Way::clustered;
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
struct Candidate {
  // The fast side reads this at every launch: the decision that was cached first, most often the
  // only one; the others; and where the key is.
  std::atomic<const Decision*> first;     // never null (decisions.h)
  std::atomic<DecisionTable*> decisions;  // null until the first
  FastKey fast_key;

  const Record* record;
  const Generation* generation;
  const Snapshot* snapshot;  // the generation's
  const Pattern* pattern;
  int64_t captures[kMaxCaptures];
  SymbolMatch match;
};

// A kernel that some pattern fits, or a member of a rewrite, or, while launches are recorded, any kernel.
struct Record {
  HandleKind kind;
  uint8_t candidate_count;  // 0: no pattern knows a launch of this kernel
  uint8_t param_count;      // at most kMaxParams
  uint8_t member_count;     // of rewrites
  bool has_params;          // the driver has told them
  uint32_t params_bytes;    // end of the last parameter in a packed buffer
  Candidate* candidates;    // in order of trial
  Param* params;
  uint32_t* members;             // patterns of rewrites' members that fit, of `generation`
  const Generation* generation;  // null without members
  char* symbol;
  HandleEntry* entry;
  CUcontext context;                      // a CUfunction's; null: not known
  std::atomic<RecordedKernel*> recorded;  // the recorder's word (abi/recorder_api.h)
};

}  // namespace fibshim
