#include "shim/counters/shadow_counts.h"

#include <stdio.h>
#include <string.h>

#include "shim/base/mutex.h"

namespace fibshim {
namespace {

constexpr char kOther[] = "(other)";
constexpr uint32_t kMostShapes = 64;             // of one series
constexpr uint32_t kKept = kShadowCapacity / 4;  // entries that are reserved for "(other)"

struct ShadowCounts {
  Mutex lock;
  std::atomic<uint32_t> count;
  // Written before `count`.
  struct {
    uint32_t series;
    char shape[sizeof ShadowEntry::shape];
  } keys[kShadowCapacity];
  std::atomic<ShadowEntry*> entries;  // null until the first
  std::atomic<uint32_t>* published;
  ShadowEntry own[kShadowCapacity];
  std::atomic<uint32_t> own_published;
};
constinit ShadowCounts g_counts = {};

// Requires the lock. UINT32_MAX: no room.
uint32_t find_or_add(uint32_t series, const char* shape, uint32_t room_kept) {
  const uint32_t count = g_counts.count.load(std::memory_order_relaxed);
  uint32_t of_series = 0;
  for (uint32_t i = 0; i < count; ++i) {
    if (g_counts.keys[i].series != series) continue;
    ++of_series;
    if (strncmp(g_counts.keys[i].shape, shape, sizeof g_counts.keys[i].shape - 1) == 0) return i;
  }
  const bool has_room =
      count + room_kept < kShadowCapacity && (room_kept == 0 || of_series < kMostShapes);
  if (!has_room) return UINT32_MAX;
  auto& key = g_counts.keys[count];
  key.series = series;
  snprintf(key.shape, sizeof key.shape, "%s", shape);
  ShadowEntry& entry = g_counts.entries.load(std::memory_order_relaxed)[count];
  entry.series = series;
  memcpy(entry.shape, key.shape, sizeof entry.shape);
  g_counts.count.store(count + 1, std::memory_order_release);
  g_counts.published->store(count + 1, std::memory_order_release);
  return count;
}

ShadowEntry* entry_at(uint32_t index) {
  if (index >= g_counts.count.load(std::memory_order_acquire)) return nullptr;
  return g_counts.entries.load(std::memory_order_relaxed) + index;
}

void add(uint64_t* to, uint64_t number) { __atomic_fetch_add(to, number, __ATOMIC_RELAXED); }

// Raises `*to` to `value`. Neither is negative, so their bits compare like their values.
void raise(double* to, double value) {
  uint64_t bits;
  memcpy(&bits, &value, sizeof bits);
  auto* const word = reinterpret_cast<uint64_t*>(to);
  uint64_t seen = __atomic_load_n(word, __ATOMIC_RELAXED);
  while (seen < bits && !__atomic_compare_exchange_n(word, &seen, bits, true, __ATOMIC_RELAXED,
                                                     __ATOMIC_RELAXED)) {
  }
}

}  // namespace

uint32_t find_shadow_entry(uint32_t series, const char* shape) {
  MutexGuard guard(g_counts.lock);
  if (g_counts.entries.load(std::memory_order_relaxed) == nullptr) {
    ShadowEntry* entries = reserve_shadow_entries(&g_counts.published);
    if (entries == nullptr) {
      entries = g_counts.own;
      g_counts.published = &g_counts.own_published;
    }
    g_counts.entries.store(entries, std::memory_order_relaxed);
  }
  const uint32_t entry = find_or_add(series, shape, kKept);
  return entry != UINT32_MAX ? entry : find_or_add(series, kOther, 0);
}

uint32_t series_of_shadow_entry(uint32_t entry) {
  return entry_at(entry) == nullptr ? 0 : g_counts.keys[entry].series;
}

const char* shape_of_shadow_entry(uint32_t entry) {
  return entry_at(entry) == nullptr ? "" : g_counts.keys[entry].shape;
}

void count_shadow_miss(uint32_t entry, ShadowMiss miss) {
  ShadowEntry* const at = entry_at(entry);
  if (at != nullptr) add(&at->not_checked[static_cast<uint32_t>(miss)], 1);
}

void count_shadow_check(uint32_t entry, const ShadowFinding& finding) {
  ShadowEntry* const at = entry_at(entry);
  if (at == nullptr) return;
  uint32_t bucket = 0;
  while (bucket + 1 < kShadowBuckets && finding.worst > kShadowBounds[bucket]) ++bucket;
  add(&at->buckets[bucket], 1);
  add(&at->elements, finding.elements);
  add(&at->wrong_elements, finding.wrong_elements);
  add(&at->nans, finding.nans);
  add(&at->infinities, finding.infinities);
  raise(&at->largest_difference, finding.largest_difference);
  raise(&at->largest_mean, finding.mean_difference);
  if (finding.is_mismatch) add(&at->mismatches, 1);
  add(&at->checks, 1);
}

void lock_shadow_counts_for_fork() { g_counts.lock.lock(); }

void unlock_shadow_counts_after_fork(bool is_child) {
  if (is_child) {
    g_counts.count.store(0, std::memory_order_relaxed);
    g_counts.entries.store(nullptr, std::memory_order_relaxed);
    memset(static_cast<void*>(g_counts.own), 0, sizeof g_counts.own);
  }
  g_counts.lock.unlock_after_fork(is_child);
}

}  // namespace fibshim
