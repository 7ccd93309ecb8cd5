// Decisions: for one handle and one set of const axis values, which kernel runs, or why none does.
//
// A candidate's decisions lie in an open-addressed table of pointers. Readers take no lock and
// write nothing: a slot goes from null to a decision once and stays, and decisions never change
// after they are published (release on the slot, acquire on its load). The table doubles at half
// load by copying the pointers and publishing the copy; old tables stay in the pool until the
// handle dies. Memory per shape: at most 32 bytes of table, and a Decision of 256 bytes.
#ifndef FIBSHIM_SHIM_DECISIONS_H_
#define FIBSHIM_SHIM_DECISIONS_H_

#include <atomic>
#include "shim/cuda_names.h"
#include <stdint.h>

#include "shim/handles.h"

namespace fibshim {

enum class DecisionKind : uint8_t {
  ready,  // `kernel` runs, if the solution's where holds
  no_solution,
  arch,
  refused,
  in_capture,  // never cached
  failed,      // `error`
};

// The const axis values of one launch; the device class is added where GPUs of unlike SM are
// present.
inline constexpr uint32_t kMaxKey = kMaxKeyParts + 1;

struct Decision {
  DecisionKind kind;
  uint8_t key_count;
  std::atomic<bool> is_reported;  // a failed launch was logged
  // Taken out of the binding once, for the fast side of a launch (launch_path.cc). `is_fast`: the
  // replacement has no cluster and few arguments. `has_dynamic` bit i: geometry[i] is not constant.
  bool is_fast;
  bool is_identity;
  bool reads_geometry;  // an expression of where, an argument or a geometry value does
  uint16_t has_dynamic;
  uint32_t series;
  uint32_t fallback_counter;  // of the kinds no_solution, arch and refused
  CUresult error;
  CUfunction kernel;
  const Step* where;
  const ArgumentMap* arguments;
  uint32_t where_count;
  uint32_t argument_count;
  uint32_t constants[kSharedMem + 1];
  const Snapshot* snapshot;
  const Binding* binding;  // null unless ready
  int64_t key[kMaxKey];
};

// Arguments that the fast side of a launch has room for.
inline constexpr uint32_t kMaxFastArguments = 24;

// Followed by its slots.
struct DecisionTable {
  uint32_t mask;
  uint32_t used;
  DecisionTable* older;  // replaced by this one

  using Slot = std::atomic<const Decision*>;
  const Slot* slots() const { return reinterpret_cast<const Slot*>(this + 1); }
  Slot* slots() { return reinterpret_cast<Slot*>(this + 1); }
};

inline uint32_t hash_key(const int64_t* key, uint32_t count) {
  uint64_t hash = 0;
  for (uint32_t i = 0; i < count; ++i) {
    hash = (hash ^ static_cast<uint64_t>(key[i])) * 0x9e3779b97f4a7c15u;
    hash ^= hash >> 32;
  }
  return static_cast<uint32_t>(hash);
}

// find_decision for a key of one part.
inline const Decision* find_decision_by_one(const Candidate& candidate, int64_t key) {
  const DecisionTable* table = candidate.decisions.load(std::memory_order_acquire);
  if (__builtin_expect(table == nullptr, 0)) return nullptr;
  for (uint32_t at = hash_key(&key, 1);; ++at) {
    const Decision* found = table->slots()[at & table->mask].load(std::memory_order_acquire);
    if (found == nullptr || found->key[0] == key) return found;
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
                       uint32_t count, CUstream stream, bool is_per_thread_stream,
                       Decision* scratch);

// The series under which launches of a candidate are counted whose definition cannot be computed.
uint32_t unresolved_series(const Candidate& candidate);

// True when a step reads the launch's geometry.
bool reads_geometry(const Snapshot& snapshot, Program program);

// True when everything that the steps read lies within the parameters.
bool program_fits(const Snapshot& snapshot, Program program, const Param* params, uint32_t count);

// Back to the pool, with the tables. The candidate's handle has died.
void release_decisions(Candidate* candidate);

// For the atfork handlers.
void lock_decisions_for_fork();
void unlock_decisions_after_fork(bool is_child);

}  // namespace fibshim

#endif  // FIBSHIM_SHIM_DECISIONS_H_
