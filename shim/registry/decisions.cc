#include "shim/registry/decisions.h"

#include <string.h>

#include "shim/base/mutex.h"
#include "shim/base/pool.h"

namespace fibshim {
namespace {

constexpr uint32_t kSmallestTable = 8;

Mutex g_lock;
Pool g_table_pool;
Pool g_decision_pool;
Decision* g_newest;  // of all cached decisions, linked by `older`

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

constinit const Decision g_undecided = [] {
  Decision undecided = {};
  undecided.way = Way::slow;  // its key may be a launch's
  return undecided;
}();

const Decision* find_decision(const Candidate& candidate, const int64_t* key, uint32_t count) {
  const DecisionTable* const table = candidate.decisions.load(std::memory_order_acquire);
  if (table == nullptr) return nullptr;
  for (uint32_t at = hash_key(key, count);; ++at) {
    const Decision* const found = table->slots()[at & table->mask].load(std::memory_order_acquire);
    if (found == nullptr || memcmp(found->key, key, count * sizeof key[0]) == 0) return found;
  }
}

const Decision* publish_decision(Candidate* candidate, const Decision& decision) {
  MutexGuard guard(g_lock);
  const Decision* const found = find_decision(*candidate, decision.key, decision.key_count);
  if (found != nullptr) return found;
  DecisionTable* const table = table_with_room(candidate);
  auto* copy = static_cast<Decision*>(g_decision_pool.allocate(sizeof(Decision)));
  if (table == nullptr || copy == nullptr) {
    g_decision_pool.release(copy, sizeof(Decision));
    return &decision;
  }
  memcpy(static_cast<void*>(copy), static_cast<const void*>(&decision), sizeof(Decision));
  link(copy);
  put(table, copy);
  const Decision* none = &g_undecided;
  candidate->first.compare_exchange_strong(none, copy, std::memory_order_release,
                                           std::memory_order_relaxed);
  return copy;
}

void release_decisions(Candidate* candidate) {
  MutexGuard guard(g_lock);
  DecisionTable* table = candidate->decisions.exchange(nullptr, std::memory_order_relaxed);
  for (uint32_t i = 0; table != nullptr && i <= table->mask; ++i) {
    auto* decision = const_cast<Decision*>(table->slots()[i].load(std::memory_order_relaxed));
    if (decision == nullptr) continue;
    unlink(decision);
    g_decision_pool.release(decision, sizeof(Decision));
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
    __atomic_store(&at->way, &slow, __ATOMIC_RELAXED);
  }
}

void lock_decisions_for_fork() {
  g_lock.lock();
  g_table_pool.lock_for_fork();
  g_decision_pool.lock_for_fork();
}

void unlock_decisions_after_fork(bool is_child) {
  g_decision_pool.unlock_after_fork(is_child);
  g_table_pool.unlock_after_fork(is_child);
  g_lock.unlock_after_fork(is_child);
}

}  // namespace fibshim
