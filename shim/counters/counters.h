// Counters: one mapped file per process (counters_format.h), one shard per thread.
//
// The fast side, count(), is two loads and a store to memory that no other thread writes. A thread
// gets its shard at its first count and gives it back when it ends; a shard's counts stay. When
// no shard can be had (no space, no memory) the thread adds atomically to the shared shard 0; when
// there is no file, shards are private memory and only the host's own process knows the counts.
//
// Whoever may write the file can falsify the counts, and nothing else: what a series or a folder is, and how
// many there are, is read from private copies.
#pragma once

#include <atomic>
#include <stdint.h>

#include "shim/abi/counters_format.h"
#include "shim/abi/outcomes.h"
#include "shim/base/own_word.h"

namespace fibshim {

struct Snapshot;

// Threads that have counters of their own at one time.
inline constexpr uint32_t kMaxShards = 4096;

// Index of a counter within a shard.
using CounterIndex = uint32_t;

// Of launches; for the other kinds of what is counted see counter_of_kind().
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

// The calling thread's own shard, or null: none yet, or it shares shard 0.
// __thread, not thread_local: C++ would check for a constructor at every use.
extern __thread uint64_t* t_counters __attribute__((tls_model("initial-exec")));

// Adds one where the thread has no shard of its own: claims one, or adds to shard 0.
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

// Adds several: for graphs, whose nodes are counted together.
void count_many_slowly(CounterIndex index, uint64_t number);
inline void count_many(CounterIndex index, uint64_t number) {
  uint64_t* const counters = t_counters;
  if (__builtin_expect(counters != nullptr, 1)) {
    add_in_order(counters + index, number);
  } else {
    count_many_slowly(index, number);
  }
}

// Takes one back that this thread has added.
void take_back_slowly(CounterIndex index);
inline void take_back(CounterIndex index) {
  uint64_t* const counters = t_counters;
  if (__builtin_expect(counters != nullptr, 1)) {
    add_in_order(counters + index, -1);
  } else {
    take_back_slowly(index);
  }
}

// Creates the process's file for a snapshot that is about to be used. Failure warns once and leaves
// private counters. Called under runtime.cc's start, never twice at a time. Returns add_config()'s index.
uint32_t open_counters(const Snapshot& snapshot);

// The index under which a folder's counts go: the one that it had before, if it was in force then.
uint32_t add_config(const Snapshot& snapshot);

// The series of (config, pattern label, definition name, solution name, device), made at first need; solution "":
// none, device -1: not told. Slow path only. When the table is full: the one of (label, "(other)"), or of ("(other)",
// "(other)").
uint32_t series_of(uint32_t config, const char* pattern, const char* definition,
                   const char* solution, int32_t device);

// The names that a series was made with; cut to fit, like the file's. Series 0 has empty ones.
void names_of_series(uint32_t series, const char** pattern, const char** definition);

// What a series runs, for `stats --diff`: an image (SeriesEntry::image; 0: none), and the hash of a shape. Slow path only;
// a shape that is known costs no lock.
void add_image(uint32_t series, uint64_t image);
void add_shape(uint32_t series, uint64_t hash);

// How many there are, with series 0; and the folder that one is of, "" where there is none.
uint32_t series_count();
const char* folder_of_series(uint32_t series);

// The device that it is counted for (-1: not told), and its launches and nodes that were redirected so far.
int32_t device_of(uint32_t series);
uint64_t hits_of(uint32_t series);

// The first series of the same folder, definition and solution. 0 for series 0, and for one that stands for several
// definitions, for lack of room.
uint32_t first_series_like(uint32_t series);

// Space in the file for what shadow checks find, and where it says how many entries there are. Null: no file, or no
// space.
ShadowEntry* reserve_shadow_entries(std::atomic<uint32_t>** count);

// Describes the devices in the file's header, once.
void describe_device(uint32_t ordinal, uint32_t sm, const char* name);

// For the atfork handlers.
void lock_counters_for_fork();
void unlock_counters_after_fork(bool is_child);

}  // namespace fibshim
