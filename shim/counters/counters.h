// Counters: one mapped file per process (counters_format.h), one shard per thread.
//
// The fast side, count(), is two loads and a store to memory that no other thread writes. A thread
// gets its shard at its first count and releases it when it ends; the shard's counts stay. If there
// is no shard (no space, no memory) the thread adds atomically to the shared shard 0. Without a
// file, shards are private memory, and no other process can read the counts.
//
// Processes that can write the file can falsify the counts and nothing else: the shim reads series
// and folders, and their numbers, only from private copies.
#pragma once

#include <atomic>
#include <stdint.h>

#include "shim/abi/counters_format.h"
#include "shim/abi/graph_reasons.h"
#include "shim/abi/outcomes.h"
#include "shim/base/own_word.h"

namespace fibshim {

struct Snapshot;

// At most this many threads have counters of their own at one time.
inline constexpr uint32_t kMaxShards = 4096;

// Index of a counter within a shard.
using CounterIndex = uint32_t;

// Returns the counter of launches; for the other kinds see counter_of_kind().
constexpr CounterIndex counter_of(uint32_t series, Outcome outcome) {
  return series * kCountersPerSeries + static_cast<uint32_t>(outcome);
}
constexpr uint32_t series_of_counter(CounterIndex index) { return index / kCountersPerSeries; }
constexpr Outcome outcome_of_counter(CounterIndex index) {
  return static_cast<Outcome>(index % kOutcomeSlots);
}
constexpr CounterIndex counter_of_kind(CounterIndex launches, CountKind kind) {
  return launches + static_cast<uint32_t>(kind) * kOutcomeSlots;
}
// Of nodes that keep their original, of the series of any counter.
static_assert(kGraphReasonCount <= kOutcomeSlots);
constexpr CounterIndex counter_of_kept_node(CounterIndex counter, GraphReason reason) {
  return series_of_counter(counter) * kCountersPerSeries +
         static_cast<uint32_t>(CountKind::kept) * kOutcomeSlots + static_cast<uint32_t>(reason);
}

// The calling thread's own shard; null: none yet, or it uses shard 0.
// __thread, not thread_local: C++ would check for a constructor at every use.
extern __thread uint64_t* t_counters __attribute__((tls_model("initial-exec")));

// Adds one for a thread without a shard: claims a shard, or adds to shard 0.
void count_slowly(CounterIndex index);

// Adds one to the calling thread's own shard.
inline void count_in(uint64_t* counters, CounterIndex index) { add_in_order(counters + index, 1); }

// Adds one. Never blocks; safe from any thread at any time.
inline void count(CounterIndex index) {
  uint64_t* const counters = t_counters;
  if (__builtin_expect(counters != nullptr, 1)) {
    count_in(counters, index);
  } else {
    count_slowly(index);
  }
}

// Adds `number`. For graphs, whose nodes are counted together.
void count_many_slowly(CounterIndex index, uint64_t number);
inline void count_many(CounterIndex index, uint64_t number) {
  uint64_t* const counters = t_counters;
  if (__builtin_expect(counters != nullptr, 1)) {
    add_in_order(counters + index, number);
  } else {
    count_many_slowly(index, number);
  }
}

// Subtracts one that this thread has added.
void uncount_slowly(CounterIndex index);
inline void uncount(CounterIndex index) {
  uint64_t* const counters = t_counters;
  if (__builtin_expect(counters != nullptr, 1)) {
    add_in_order(counters + index, -1);
  } else {
    uncount_slowly(index);
  }
}

// Creates the process's file for a snapshot that is about to be put in force. On failure it warns
// once, and counters are private. Called by runtime.cc at the start, by one thread at a time.
// Returns add_config().
uint32_t open_counters(const Snapshot& snapshot);

// Returns the index of a folder for its counts. A folder that was in force before keeps its index.
uint32_t add_config(const Snapshot& snapshot);

// Returns the series of (config, pattern label, definition name, solution name, device), and makes
// it if needed. Solution "": none; device -1: devices are not told apart. Slow path only. If the
// table is full, returns the series of (label, "(other)") or of ("(other)", "(other)").
uint32_t series_of(uint32_t config, const char* pattern, const char* definition,
                   const char* solution, int32_t device);

// The names of a series, cut to fit as in the file. Those of series 0 are empty.
struct SeriesNames {
  const char* pattern;
  const char* definition;
};
SeriesNames names_of_series(uint32_t series);

// Record what a series runs, for `stats --diff`: an image (SeriesEntry::image; 0: none), and the hash of a shape. Slow path
// only; a shape that is known costs no lock.
void add_image(uint32_t series, uint64_t image);
void add_shape(uint32_t series, uint64_t hash);

// Return the number of series, including series 0, and the folder of one, or "".
uint32_t series_count();
const char* folder_of_series(uint32_t series);

// Return the device of a series (-1: not told apart), and the number of its redirected launches and
// nodes so far.
int32_t device_of(uint32_t series);
uint64_t hits_of(uint32_t series);

// Returns the first series of the same folder, definition and solution. Returns 0 for series 0, and
// for a series that stands for several definitions for lack of room.
uint32_t first_series_like(uint32_t series);

// Reserves space in the file for the results of shadow checks, and sets `*count` to the number of
// entries in the file. Null: no file, or no space.
ShadowEntry* reserve_shadow_entries(std::atomic<uint32_t>** count);

// Describes the devices in the file's header, once.
void describe_device(uint32_t ordinal, uint32_t sm, const char* name);

// For the atfork handlers.
void lock_counters_for_fork();
void unlock_counters_after_fork(bool is_child);

}  // namespace fibshim
