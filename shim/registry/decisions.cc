#include "shim/registry/decisions.h"

#include <string.h>
#include <unistd.h>

#include "shim/base/mutex.h"
#include "shim/base/pool.h"
#include "shim/base/process_file.h"

namespace fibshim {
namespace {

constexpr uint32_t kSmallestTable = 8;

Mutex g_lock;
Pool g_table_pool;
Pool g_decision_pool;
Pool g_choice_pool;
Decision* g_newest;  // of all cached decisions, linked by `older`
std::atomic<uint64_t> g_sample_state{0};

// Holding g_lock.
void link(Decision* decision) {
  decision->newer = nullptr;
  decision->older = g_newest;
  if (g_newest != nullptr) g_newest->newer = decision;
  g_newest = decision;
}

// Holding g_lock.
void unlink(Decision* decision) {
  (decision->newer == nullptr ? g_newest : decision->newer->older) = decision->older;
  if (decision->older != nullptr) decision->older->newer = decision->newer;
}

// What a decision chooses among, in one block.
struct KeptChoices {
  alignas(64) Choices choices;

  Decision* decisions() { return reinterpret_cast<Decision*>(this + 1); }
  static size_t bytes(uint32_t count) { return sizeof(KeptChoices) + count * sizeof(Decision); }
};

KeptChoices* kept_choices(const Decision& decision) {
  if (decision.kind != DecisionKind::choice) return nullptr;
  return reinterpret_cast<KeptChoices*>(const_cast<Choices*>(decision.choices));
}

// Holding g_lock. Makes the copy of a choice choose among copies. False: no memory.
bool keep_choices(Decision* copy) {
  if (copy->kind != DecisionKind::choice) return true;
  const Choices& given = *copy->choices;
  auto* const kept =
      static_cast<KeptChoices*>(g_choice_pool.allocate(KeptChoices::bytes(given.count)));
  if (kept == nullptr) return false;
  kept->choices = given;
  for (uint32_t i = 0; i < given.count; ++i) {
    Decision* const decision = &kept->decisions()[i];
    memcpy(static_cast<void*>(decision), static_cast<const void*>(given.list[i].decision),
           sizeof(Decision));
    kept->choices.list[i].decision = decision;
    link(decision);
  }
  copy->choices = &kept->choices;
  return true;
}

size_t table_bytes(uint32_t capacity) {
  return sizeof(DecisionTable) + capacity * sizeof(DecisionTable::Slot);
}

void put(DecisionTable* table, const Decision* decision) {
  uint32_t at = hash_key(decision->key, decision->key_count);
  while (table->slots()[at & table->mask].load(std::memory_order_relaxed) != nullptr) ++at;
  table->slots()[at & table->mask].store(decision, std::memory_order_release);
  ++table->used;
}

// Holding g_lock. A table with room for one more; null: no memory.
DecisionTable* table_with_room(Candidate* candidate) {
  DecisionTable* const old = candidate->decisions.load(std::memory_order_relaxed);
  if (old != nullptr && (old->used + 1) * 2 <= old->mask + 1) return old;
  const uint32_t capacity = old == nullptr ? kSmallestTable : (old->mask + 1) * 2;
  auto* table = static_cast<DecisionTable*>(g_table_pool.allocate(table_bytes(capacity)));
  if (table == nullptr) return nullptr;
  table->mask = capacity - 1;
  table->older = old;
  for (uint32_t i = 0; old != nullptr && i <= old->mask; ++i) {
    const Decision* const decision = old->slots()[i].load(std::memory_order_relaxed);
    if (decision != nullptr) put(table, decision);
  }
  candidate->decisions.store(table, std::memory_order_release);
  return table;
}

}  // namespace

const Decision* find_decision(const Candidate& candidate, const int64_t* key, uint32_t count) {
  const DecisionTable* const table = candidate.decisions.load(std::memory_order_acquire);
  if (table == nullptr) return nullptr;
  for (uint32_t at = hash_key(key, count);; ++at) {
    const Decision* const found = table->slots()[at & table->mask].load(std::memory_order_acquire);
    if (found == nullptr || has_key(*found, key, count)) return found;
  }
}

const Decision* publish_decision(Candidate* candidate, const Decision& decision) {
  MutexGuard guard(g_lock);
  const Decision* const found = find_decision(*candidate, decision.key, decision.key_count);
  if (found != nullptr) return found;
  DecisionTable* const table = table_with_room(candidate);
  if (table == nullptr) return &decision;
  const bool is_first = table->used == 0;
  auto* const copy = is_first ? &candidate->first
                              : static_cast<Decision*>(g_decision_pool.allocate(sizeof(Decision)));
  Decision whole = decision;
  if (copy == nullptr || !keep_choices(&whole)) {
    if (!is_first) g_decision_pool.release(copy, sizeof(Decision));
    return &decision;
  }
  Way way = whole.way;
  whole.way = Way::undecided;
  memcpy(static_cast<void*>(copy), static_cast<const void*>(&whole), sizeof(Decision));
  link(copy);
  __atomic_store(&copy->way, &way, __ATOMIC_RELEASE);
  put(table, copy);
  return copy;
}

void release_decisions(Candidate* candidate) {
  MutexGuard guard(g_lock);
  DecisionTable* table = candidate->decisions.exchange(nullptr, std::memory_order_relaxed);
  for (uint32_t i = 0; table != nullptr && i <= table->mask; ++i) {
    auto* decision = const_cast<Decision*>(table->slots()[i].load(std::memory_order_relaxed));
    if (decision == nullptr) continue;
    if (KeptChoices* const kept = kept_choices(*decision)) {
      const uint32_t count = kept->choices.count;
      for (uint32_t k = 0; k < count; ++k) unlink(&kept->decisions()[k]);
      g_choice_pool.release(kept, KeptChoices::bytes(count));
    }
    unlink(decision);
    if (decision != &candidate->first) g_decision_pool.release(decision, sizeof(Decision));
  }
  while (table != nullptr) {
    DecisionTable* const older = table->older;
    g_table_pool.release(table, table_bytes(table->mask + 1));
    table = older;
  }
}

void quarantine_decisions(bool (*is_quarantined)(uint32_t series)) {
  MutexGuard guard(g_lock);
  for (Decision* at = g_newest; at != nullptr; at = at->older) {
    if (at->binding == nullptr || !is_quarantined(at->series)) continue;
    Way slow = Way::slow;
    __atomic_store_n(&at->is_quarantined, 1, __ATOMIC_RELAXED);
    __atomic_store(&at->way, &slow, __ATOMIC_RELEASE);
  }
}

void seed_samples() {
  g_sample_state.store(unix_time_ns() ^ static_cast<uint64_t>(getpid()) << 40,
                       std::memory_order_relaxed);
}

uint32_t draw_sample(uint32_t interval) {
  const uint64_t bits = scramble(g_sample_state.fetch_add(kHashFactor, std::memory_order_relaxed));
  return static_cast<uint32_t>(bits % (uint64_t{interval} * 2 - 1)) + 1;
}

void sample_decision(Decision* decision, uint32_t interval) {
  __atomic_store_n(&decision->sample_in, interval == 0 ? 0 : draw_sample(interval),
                   __ATOMIC_RELAXED);
  Way way = plain_way(decision->fast);
  if (interval != 0 && way != Way::slow) way = Way::sampled;
  __atomic_store(&decision->way, &way, __ATOMIC_RELEASE);
}

void sample_decisions(uint32_t (*interval_of)(const Decision& decision)) {
  MutexGuard guard(g_lock);
  for (Decision* at = g_newest; at != nullptr; at = at->older) {
    if (at->kind != DecisionKind::ready || at->is_quarantined != 0) continue;
    sample_decision(at, interval_of(*at));
  }
}

void lock_decisions_for_fork() {
  g_lock.lock();
  g_table_pool.lock_for_fork();
  g_decision_pool.lock_for_fork();
  g_choice_pool.lock_for_fork();
}

void unlock_decisions_after_fork(bool is_child) {
  g_choice_pool.unlock_after_fork(is_child);
  g_decision_pool.unlock_after_fork(is_child);
  g_table_pool.unlock_after_fork(is_child);
  g_lock.unlock_after_fork(is_child);
  if (is_child) seed_samples();
}

}  // namespace fibshim
