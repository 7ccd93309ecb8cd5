// Decisions: for one handle and one set of const axis values, which kernel runs, or why none does.
//
// A candidate's decisions are in an open-addressed table of pointers. The first one lies in the
// candidate itself, as most kernels are launched with one shape. Its `way` is undecided until the
// rest is written: release on each store of it, and acquire on its load, which comes before that of
// the key. While it is undecided the key may be half-written; such a launch goes to the slow side.
// Readers take no lock and write nothing: a slot goes from null to a decision once and stays (release
// on the slot, acquire on its load). The table doubles at half load by copying the pointers and
// publishing the copy. Old tables stay until the handle dies, and everything is freed a grace period
// after that. If there is no memory for a decision, each launch makes it anew. Memory per shape but
// the first: at most 32 bytes of table, and a Decision; a choice adds a block with the decisions it
// chooses among.
// tests/model/decisions.pml models this and is checked exhaustively.
#pragma once

#include "shim/abi/hash.h"
#include "shim/registry/record.h"

namespace fibshim {

// Followed by its slots.
struct DecisionTable {
  using Slot = std::atomic<const Decision*>;
  uint32_t mask;  // capacity - 1
  uint32_t used;  // slots; for writers only
  DecisionTable* older;

  const Slot* slots() const { return reinterpret_cast<const Slot*>(this + 1); }
  Slot* slots() { return reinterpret_cast<Slot*>(this + 1); }
};

inline uint32_t hash_key(const int64_t* key, uint32_t count) {
  uint64_t hash = 0;
  for (uint32_t i = 0; i < count; ++i) {
    hash = mix(hash, static_cast<uint64_t>(key[i]));
  }
  return static_cast<uint32_t>(hash);
}

// Returns the cached decision for a key of one part or none, and its way. Null or Way::undecided:
// there is none. Hot: wait-free.
inline const Decision* find_decision_by_one(const Candidate& candidate, int64_t key, Way* way) {
  __atomic_load(&candidate.first.way, way, __ATOMIC_ACQUIRE);
  if (__builtin_expect(candidate.first.first_key == key, 1)) return &candidate.first;
  const DecisionTable* const table = candidate.decisions.load(std::memory_order_acquire);
  if (__builtin_expect(table == nullptr, 0)) return nullptr;
  for (uint32_t at = hash_key(&key, 1);; ++at) {
    const Decision* const found = table->slots()[at & table->mask].load(std::memory_order_acquire);
    if (found == nullptr) return nullptr;
    // With many shapes a decision misses the cache: load both of its lines at once.
    __builtin_prefetch(reinterpret_cast<const char*>(found) + 64);
    if (found->first_key == key) {
      *way = way_now(*found);
      return found;
    }
  }
}

// Returns the cached decision, or null. Wait-free.
const Decision* find_decision(const Candidate& candidate, const int64_t* key, uint32_t count);

inline bool has_key(const Decision& decision, const int64_t* key, uint32_t count) {
  for (uint32_t i = 0; i < count; ++i) {
    if (decision.key[i] != key[i]) return false;
  }
  return true;
}

// Caches a copy of a complete decision, and of those that it chooses among. Returns the copy, that
// of a thread that was faster, or `decision` itself if there is no memory. Slow path.
const Decision* publish_decision(Candidate* candidate, const Decision& decision);

// Initialises a new candidate, which has no decision.
inline void begin_decisions(Candidate* candidate) { candidate->first.way = Way::undecided; }

// Returns all decisions to the pool. The candidate's handle must be dead and without readers.
void release_decisions(Candidate* candidate);

// Marks the decisions of quarantined series, and moves them to the slow side.
void quarantine_decisions(bool (*is_quarantined)(uint32_t series));

// Checks one of `interval` launches of a decision from now on; 0: none.
void sample_decision(Decision* decision, uint32_t interval);
// The same for all decisions that may redirect.
void sample_decisions(uint32_t (*interval_of)(const Decision& decision));
// Draws the number of launches until the next check: at least 1, on average `interval`.
uint32_t draw_sample(uint32_t interval);
// Seeds the draws with values of this process. Otherwise all ranks and restarts would check the
// same launches, and each its first.
void seed_samples();

// For the atfork handlers.
void lock_decisions_for_fork();
void unlock_decisions_after_fork(bool is_child);

}  // namespace fibshim
