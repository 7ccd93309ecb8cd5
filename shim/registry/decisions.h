// Decisions: for one handle and one set of const axis values, which kernel runs, or why none does.
//
// A candidate's decisions lie in an open-addressed table of pointers, and the first of them beside it:
// most kernels are launched with one shape. Readers take no lock and write nothing: a slot goes from
// null to a decision once and stays, and decisions never change after they are published (release on
// the slot, acquire on its load), but for their way, which may become the slow one. The table doubles at half load by copying the pointers and
// publishing the copy; old tables stay in the pool until the handle dies, and all of it ends a grace
// period after that (read_section.h). Without memory for another one the decision is made anew at
// each launch. Memory per shape: at most 32 bytes of table, and a Decision of 256 bytes, of which a
// launch reads 128. tests/model/decisions.pml is a model of this that is checked exhaustively.
#ifndef FIBSHIM_SHIM_REGISTRY_DECISIONS_H_
#define FIBSHIM_SHIM_REGISTRY_DECISIONS_H_

#include <atomic>
#include "shim/driver/cuda_names.h"
#include <stddef.h>
#include <stdint.h>

#include "shim/registry/handles.h"
#include "shim/abi/settings.h"

namespace fibshim {

struct LaunchRequest;

enum class DecisionKind : uint8_t {
  ready,  // `kernel` runs, if the solution's where holds
  no_solution,
  arch,
  refused,
  in_capture,  // never cached
  failed,      // `error`
};

// The const axis values of one launch; the device is added where they are told apart (devices_in_use.h).
inline constexpr uint32_t kMaxKey = kMaxKeyParts + 1;

// How the fast side carries a decision out.
enum class Way : uint8_t {
  original,  // counts, and lets the launch go on as it is, if the checks hold
  direct,    // launches the replacement, if the checks hold, from what lies in the first 128 bytes
  computed,  // launches the replacement, with expressions
  slow,      // on the slow side
};

// A geometry value of the replacement that the launch supplies: min(ceil_div(value, divisor), most).
struct Dimension {
  enum class Source : uint8_t { frame, param };
  Source source;
  uint8_t at;        // param: index of an int32 or uint32; frame: byte offset in LaunchFrame
  uint8_t target;    // in Decision::geometry
  uint8_t shift;     // kNotComputed: the value as it is; else of a divisor that is a power of two
  uint32_t divisor;  // 0: `shift` says it
  uint32_t most;

  static constexpr uint8_t kNotComputed = 255;
};
static_assert(sizeof(Dimension) == 12);

// Of pointers among the parameters. Those that must be aligned, all alike, come in pairs, the last one
// again where they are odd.
struct Checks {
  uint8_t aligned[8];
  uint8_t aligned_count;
  uint8_t alignment_mask;
  uint8_t not_null_count;
  uint8_t not_null[5];
};
static_assert(sizeof(Checks) == 16);

inline constexpr uint32_t kMaxDimensions = 2;

struct alignas(64) Decision {
  // What a direct launch reads.
  int64_t first_key;  // key[0], 0 where the key is empty
  CUfunction kernel;
  uint32_t counter;  // of a hit, or of what `kind` means
  DecisionKind kind;
  Way way;
  uint8_t argument_count;  // in eights, filled up; 0: the arguments go through as they are
  uint8_t dimension_count;
  Checks checks;
  Dimension dimensions[kMaxDimensions];
  uint32_t geometry[kPlainGeometryCount];  // where it is constant
  bool waits_for_previous;                 // the solution's "pdl"
  uint8_t key_count;
  uint16_t has_dynamic;                  // bit i: geometry value i is not constant
  uint8_t arguments[kMaxFastArguments];  // the original's parameter for each; filled up with 0

  // What computed and slow launches read.
  const Snapshot* snapshot;
  const Binding* binding;  // null unless ready
  CUresult error;
  uint32_t series;
  int64_t key[kMaxKey];
  OnError on_error;  // what a failure does to the call
  // Of all cached decisions; the writers'.
  Decision* newer;
  Decision* older;
};
static_assert(offsetof(Decision, snapshot) == 128 && sizeof(Decision) <= 256);

// Followed by its slots.
struct DecisionTable {
  uint32_t mask;
  uint32_t used;
  DecisionTable* older;  // replaced by this one

  using Slot = std::atomic<const Decision*>;
  const Slot* slots() const { return reinterpret_cast<const Slot*>(this + 1); }
  Slot* slots() { return reinterpret_cast<Slot*>(this + 1); }
};

// How a decision is carried out. The one thing of it that may change: to slow.
inline Way way_now(const Decision& decision) {
  Way way;
  __atomic_load(&decision.way, &way, __ATOMIC_RELAXED);
  return way;
}

inline uint32_t hash_key(const int64_t* key, uint32_t count) {
  uint64_t hash = 0;
  for (uint32_t i = 0; i < count; ++i) {
    hash = (hash ^ static_cast<uint64_t>(key[i])) * 0x9e3779b97f4a7c15u;
    hash ^= hash >> 32;
  }
  return static_cast<uint32_t>(hash);
}

// What stands for a candidate's first decision before there is one.
extern const Decision g_undecided;

// find_decision for a key of one part, or of none; may give g_undecided.
inline const Decision* find_decision_by_one(const Candidate& candidate, int64_t key) {
  const Decision* const first = candidate.first.load(std::memory_order_acquire);
  if (__builtin_expect(first->first_key == key, 1)) return first;
  const DecisionTable* table = candidate.decisions.load(std::memory_order_acquire);
  if (__builtin_expect(table == nullptr, 0)) return nullptr;
  for (uint32_t at = hash_key(&key, 1);; ++at) {
    const Decision* found = table->slots()[at & table->mask].load(std::memory_order_acquire);
    // A kernel with many shapes misses the cache: both lines at once.
    __builtin_prefetch(reinterpret_cast<const char*>(found) + 64);
    if (found == nullptr || found->first_key == key) return found;
  }
}

// The cached decision, or null. Hot: wait-free.
inline const Decision* find_decision(const Candidate& candidate, const int64_t* key,
                                     uint32_t count) {
  const DecisionTable* table = candidate.decisions.load(std::memory_order_acquire);
  if (__builtin_expect(table == nullptr, 0)) return nullptr;
  for (uint32_t at = hash_key(key, count);; ++at) {
    const Decision* found = table->slots()[at & table->mask].load(std::memory_order_acquire);
    if (found == nullptr) return nullptr;
    uint32_t i = 0;
    while (i < count && found->key[i] == key[i]) ++i;
    if (i == count) return found;
  }
}

// Makes the decision and caches it where it will hold. `scratch` is used for one that is not
// cached. May load images. Slow path only; never null.
const Decision* decide(const Record& record, Candidate* candidate, const int64_t* key,
                       uint32_t count, const LaunchRequest& request, Decision* scratch);

// Whether what goes into the stream becomes nodes of a graph. Asks the driver.
bool is_capturing(CUstream stream, bool is_per_thread_stream);

// The series under which launches of a candidate are counted whose definition cannot be computed.
uint32_t unresolved_series(const Candidate& candidate);

// True when everything that the steps read lies within the parameters.
bool program_fits(const Snapshot& snapshot, Program program, const Param* params, uint32_t count);

// Back to the pool, with the tables. The candidate's handle has died.
void release_decisions(Candidate* candidate);

// Launches that a quarantined solution served take the slow side from now on.
void leave_fast_side_to_quarantined();

// For the atfork handlers.
void lock_decisions_for_fork();
void unlock_decisions_after_fork(bool is_child);

}  // namespace fibshim

#endif  // FIBSHIM_SHIM_REGISTRY_DECISIONS_H_
