#include "shim/counters/counters.h"

#include <atomic>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "shim/abi/snapshot.h"
#include "shim/base/log.h"
#include "shim/base/mutex.h"
#include "shim/base/read_section.h"
#include "shim/base/settings_in_force.h"
#include "shim/base/upcalls.h"
#include "shim/counters/counters_file.h"

namespace fibshim {

__thread uint64_t* t_counters __attribute__((tls_model("initial-exec")));

namespace {

constexpr uint32_t kCountsBetweenClaims = 100'000;

// All members are guarded by `lock`, except the atomic ones. Nothing that matters is read from the
// file: it is only written, except for the counts themselves and requests in the control block.
struct Counters {
  Mutex lock;
  FileHeader head;  // private copy of the file's header
  SeriesEntry series[kSeriesCapacity];
  std::atomic<uint32_t> series_count;
  std::atomic<bool> is_open;  // shards[0] is mapped
  bool warned_of_file;
  uint64_t* shards[kMaxShards];  // mapped shards; [0] is the shared one
  bool is_owned[kMaxShards];
};
constinit Counters g_counters = {};
pthread_key_t g_thread_exit_key;
std::atomic<bool> g_has_thread_exit_key;

constexpr char kOther[] = "(other)";

uint32_t find_or_add_config(const Snapshot& snapshot) {
  FileHeader& head = g_counters.head;
  const uint32_t count = head.config_count;
  CountedConfig added = {};
  added.digest[0] = snapshot.digest[0];
  added.digest[1] = snapshot.digest[1];
  snprintf(added.path, sizeof added.path, "%s", snapshot.text(snapshot.root));
  for (uint32_t i = 0; i < count; ++i) {
    if (memcmp(&head.configs[i], &added, sizeof added) == 0) return i;
  }
  if (added.path[0] == 0) return count;  // without a folder nothing is counted for it
  if (count == kMaxCountedConfigs) return count - 1;
  if (count == kMaxCountedConfigs - 1) {
    added = {};
    memcpy(added.path, kOther, sizeof kOther);
  }
  head.configs[count] = added;
  head.config_count = count + 1;
  if (FileHeader* const file = file_header()) {
    file->configs[count] = added;
    __atomic_store_n(&file->config_count, count + 1, __ATOMIC_RELEASE);
  }
  return count;
}

// Claims a shard that no live thread owns, and maps it if needed. Null: the thread uses shard 0.
uint64_t* claim_shard() {
  Counters& state = g_counters;
  uint32_t index = 1;
  while (index < kMaxShards && state.shards[index] != nullptr && state.is_owned[index]) ++index;
  if (index == kMaxShards) return nullptr;
  if (state.shards[index] == nullptr) {
    void* const shard = file_header() != nullptr ? map_shard(index) : map_private_shard();
    if (shard == MAP_FAILED) {
      if (file_header() != nullptr) warn_of_space("a thread's counters");
      return nullptr;
    }
    __atomic_store_n(&state.shards[index], static_cast<uint64_t*>(shard), __ATOMIC_RELEASE);
    state.head.shard_count = index + 1;
    if (FileHeader* const file = file_header()) {
      __atomic_store_n(&file->shard_count, index + 1, __ATOMIC_RELEASE);
    }
  }
  state.is_owned[index] = true;
  return state.shards[index];
}

// Requires the lock.
void release_claim(const void* shard) {
  Counters& state = g_counters;
  for (uint32_t i = 1; i < kMaxShards && state.shards[i] != nullptr; ++i) {
    if (state.shards[i] == shard) state.is_owned[i] = false;
  }
}

// Runs when a thread ends. Its shard, with its counts, goes to the next thread that needs one.
void release_shard(void* shard) {
  // In a child that has not counted yet, `shard` is the parent's.
  if (shard != t_counters) return;
  t_counters = nullptr;
  set_reader_counters(nullptr);
  MutexGuard guard(g_counters.lock);
  release_claim(shard);
}

bool is_series(const SeriesEntry& entry, uint32_t config, const char* pattern,
               const char* definition, const char* solution, int32_t device) {
  return entry.config == config && entry.device == device &&
         strncmp(entry.pattern, pattern, sizeof entry.pattern - 1) == 0 &&
         strncmp(entry.definition, definition, sizeof entry.definition - 1) == 0 &&
         strncmp(entry.solution, solution, sizeof entry.solution - 1) == 0;
}

// Requires the lock. Returns UINT32_MAX if the table has no room.
uint32_t find_or_add_series(uint32_t config, const char* pattern, const char* definition,
                            const char* solution, int32_t device, uint32_t room_kept) {
  Counters& state = g_counters;
  const uint32_t index = state.series_count.load(std::memory_order_relaxed);
  for (uint32_t i = 1; i < index; ++i) {
    if (is_series(state.series[i], config, pattern, definition, solution, device)) return i;
  }
  if (index + room_kept >= kSeriesCapacity || !reserve_series(index, state.head.shard_count))
    return UINT32_MAX;
  SeriesEntry& entry = state.series[index];
  entry.config = static_cast<uint16_t>(config);
  entry.device = static_cast<int16_t>(device);
  snprintf(entry.pattern, sizeof entry.pattern, "%s", pattern);
  snprintf(entry.definition, sizeof entry.definition, "%s", definition);
  snprintf(entry.solution, sizeof entry.solution, "%s", solution);
  state.series_count.store(index + 1, std::memory_order_release);
  write_series(index, entry);
  return index;
}

// A child gets its own file when it first counts, as most children never do. Its series are those
// of its parent, so that the indexes in decisions remain valid.
void start_over_in_child() {
  Counters& state = g_counters;
  t_counters = nullptr;
  set_reader_counters(nullptr);
  memset(state.shards, 0, sizeof state.shards);
  memset(state.is_owned, 0, sizeof state.is_owned);
  state.is_open.store(false, std::memory_order_relaxed);
  forget_counters_file();
}

// Makes this process's counters if it has none. Requires the lock.
bool ensure_open() {
  Counters& state = g_counters;
  if (state.is_open.load(std::memory_order_relaxed)) return true;
  const bool is_first = state.series_count.load(std::memory_order_relaxed) == 0;
  if (is_first && !is_active()) return false;
  if (is_first) state.series_count.store(1, std::memory_order_relaxed);
  describe_process(&state.head);
  void* shard = nullptr;
  if (const char* reason = create_counters_file(
          state.head, state.series, state.series_count.load(std::memory_order_relaxed), &shard)) {
    if (!state.warned_of_file) {
      state.warned_of_file = true;
      log_message(LogLevel::warn,
                  "%s: cannot keep counters there: %s; launches are redirected all the same, but "
                  "`fibshim stats` will not show them",
                  stats_dir(), reason);
    }
    shard = map_private_shard();
    if (shard == MAP_FAILED) return false;
  }
  __atomic_store_n(&state.shards[0], static_cast<uint64_t*>(shard), __ATOMIC_RELEASE);
  state.is_open.store(true, std::memory_order_release);
  return true;
}

}  // namespace

uint32_t open_counters(const Snapshot& snapshot) {
  Counters& state = g_counters;
  MutexGuard guard(state.lock);
  if (!g_has_thread_exit_key.load(std::memory_order_relaxed)) {
    if (pthread_key_create(&g_thread_exit_key, release_shard) == 0) {
      g_has_thread_exit_key.store(true, std::memory_order_release);
    }
  }
  if (!ensure_open()) return 0;
  return find_or_add_config(snapshot);
}

uint32_t add_config(const Snapshot& snapshot) {
  MutexGuard guard(g_counters.lock);
  return ensure_open() ? find_or_add_config(snapshot) : 0;
}

ShadowEntry* reserve_shadow_entries(std::atomic<uint32_t>** count) {
  MutexGuard guard(g_counters.lock);
  return reserve_shadow_space(count);
}

namespace {

// A thread that got no shard tries again only after many more counts: that takes the lock and, if
// space is short, system calls.
__thread uint32_t t_left_without_asking __attribute__((tls_model("initial-exec")));

// Claims a shard for the thread. Adds to it, or else to shard 0.
void count_in_claimed(CounterIndex index, uint64_t number) {
  Counters& state = g_counters;
  MutexGuard guard(state.lock);
  if (!ensure_open()) return;
  uint64_t* shard = g_has_thread_exit_key.load(std::memory_order_relaxed) ? claim_shard() : nullptr;
  if (shard != nullptr && pthread_setspecific(g_thread_exit_key, shard) != 0) {
    release_claim(shard);
    shard = nullptr;
  }
  t_counters = shard;
  set_reader_counters(shard);
  if (shard == nullptr) {
    t_left_without_asking = kCountsBetweenClaims;
    shard = state.shards[0];
  }
  __atomic_fetch_add(shard + index, number, __ATOMIC_RELAXED);
}

}  // namespace

void count_slowly(CounterIndex index) { count_many_slowly(index, 1); }

void count_many_slowly(CounterIndex index, uint64_t number) {
  uint64_t* const shared = __atomic_load_n(&g_counters.shards[0], __ATOMIC_ACQUIRE);
  if (t_left_without_asking > 0 && shared != nullptr) {
    --t_left_without_asking;
    __atomic_fetch_add(shared + index, number, __ATOMIC_RELAXED);
    return;
  }
  count_in_claimed(index, number);
  // In a forked child this is the first sign of activity.
  upcalls().ensure_watcher();
}

// Only the sum over all shards matters, so shard 0 may go below zero.
void uncount_slowly(CounterIndex index) {
  uint64_t* const shared = __atomic_load_n(&g_counters.shards[0], __ATOMIC_ACQUIRE);
  if (shared != nullptr) __atomic_fetch_sub(shared + index, 1, __ATOMIC_RELAXED);
}

uint32_t series_of(uint32_t config, const char* pattern, const char* definition,
                   const char* solution, int32_t device) {
  Counters& state = g_counters;
  MutexGuard guard(state.lock);
  if (!ensure_open()) return 0;
  // Room is reserved for one "(other)" per pattern, and for the last one.
  uint32_t series =
      find_or_add_series(config, pattern, definition, solution, device, kSeriesCapacity / 8);
  if (series == UINT32_MAX) series = find_or_add_series(config, pattern, kOther, "", -1, 1);
  if (series == UINT32_MAX) series = find_or_add_series(config, kOther, kOther, "", -1, 0);
  if (series == UINT32_MAX) {
    warn_of_space("another series");
    series = 0;
  }
  return series;
}

SeriesNames names_of_series(uint32_t series) {
  if (series >= series_count()) return {"", ""};
  return {g_counters.series[series].pattern, g_counters.series[series].definition};
}

void add_image(uint32_t series, uint64_t image) {
  MutexGuard guard(g_counters.lock);
  if (series == 0 || series >= series_count() || g_counters.series[series].image >= image) return;
  g_counters.series[series].image = image;
  if (SeriesEntry* const entry = series_in_file(series)) {
    __atomic_store_n(&entry->image, image, __ATOMIC_RELAXED);
  }
}

void add_shape(uint32_t series, uint64_t hash) {
  if (series == 0 || series >= series_count()) return;
  uint64_t* const known = g_counters.series[series].shapes;
  uint64_t bits[kShapeWords] = {};
  for (uint32_t i = 0; i < kShapeBits; ++i) {
    const uint64_t bit = hash >> (8 * i) & (64 * kShapeWords - 1);
    bits[bit / 64] |= uint64_t{1} << (bit % 64);
  }
  bool is_known = true;
  for (uint32_t i = 0; i < kShapeWords; ++i) {
    is_known = is_known && (bits[i] & ~__atomic_load_n(&known[i], __ATOMIC_RELAXED)) == 0;
  }
  if (is_known) return;
  MutexGuard guard(g_counters.lock);
  SeriesEntry* const entry = series_in_file(series);
  for (uint32_t i = 0; i < kShapeWords; ++i) {
    const uint64_t all = known[i] | bits[i];
    __atomic_store_n(&known[i], all, __ATOMIC_RELAXED);
    if (entry != nullptr) __atomic_store_n(&entry->shapes[i], all, __ATOMIC_RELAXED);
  }
}

uint32_t series_count() { return g_counters.series_count.load(std::memory_order_acquire); }

const char* folder_of_series(uint32_t series) {
  MutexGuard guard(g_counters.lock);
  if (series >= series_count()) return "";
  const uint32_t config = g_counters.series[series].config;
  return config < g_counters.head.config_count ? g_counters.head.configs[config].path : "";
}

int32_t device_of(uint32_t series) {
  return series < series_count() ? g_counters.series[series].device : -1;
}

uint64_t hits_of(uint32_t series) {
  uint64_t hits = 0;
  for (uint32_t i = 0; i < kMaxShards; ++i) {
    const uint64_t* const shard = __atomic_load_n(&g_counters.shards[i], __ATOMIC_ACQUIRE);
    if (shard == nullptr) break;
    const CounterIndex launches = counter_of(series, Outcome::hit);
    for (const CountKind kind : {CountKind::launch, CountKind::node}) {
      hits += __atomic_load_n(shard + counter_of_kind(launches, kind), __ATOMIC_RELAXED);
    }
  }
  return hits;
}

uint32_t first_series_like(uint32_t series) {
  if (series == 0 || series >= series_count()) return 0;
  const SeriesEntry* const entries = g_counters.series;
  const SeriesEntry& entry = entries[series];
  if (strcmp(entry.definition, kOther) == 0) return 0;
  uint32_t first = 1;
  while (entries[first].config != entry.config ||
         strcmp(entries[first].definition, entry.definition) != 0 ||
         strcmp(entries[first].solution, entry.solution) != 0) {
    ++first;
  }
  return first;
}

void describe_device(uint32_t ordinal, uint32_t sm, const char* name) {
  Counters& state = g_counters;
  MutexGuard guard(state.lock);
  if (!state.is_open.load(std::memory_order_relaxed) || ordinal >= kMaxCountedDevices) return;
  CountedDevice& device = state.head.devices[ordinal];
  device.sm = sm;
  snprintf(device.name, sizeof device.name, "%s", name);
  if (state.head.device_count <= ordinal) state.head.device_count = ordinal + 1;
  if (FileHeader* const file = file_header()) {
    file->devices[ordinal] = device;
    __atomic_store_n(&file->device_count, state.head.device_count, __ATOMIC_RELEASE);
  }
}

void lock_counters_for_fork() { g_counters.lock.lock(); }

void unlock_counters_after_fork(bool is_child) {
  if (is_child) start_over_in_child();
  g_counters.lock.unlock_after_fork(is_child);
}

}  // namespace fibshim
