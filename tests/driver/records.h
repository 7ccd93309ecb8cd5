// Counts and records of launches and calls. Each thread writes its own counters and its own ring,
// and readers add them up. So launches of different threads share no lock.
#pragma once

#include <stdint.h>

#include <atomic>
#include <mutex>
#include <string>
#include <vector>

#include "tests/driver/simcuda.h"

namespace simcuda {

// One per exported function, in the order of symbols.def.
enum class Api : uint16_t {
#define SYMBOL(exported, base, version, form) exported,
#include "tests/driver/symbols.def"
#undef SYMBOL
  count
};
const char* api_name(Api api);

inline constexpr uint32_t kNamesPerBlock = 256;
inline constexpr uint32_t kNameBlocks = 64;
inline constexpr size_t kRingCapacity = 512;  // launches per thread

struct KernelCounts {
  std::atomic<uint64_t> launched{0};
  std::atomic<uint64_t> captured{0};
};

struct ThreadRecords {
  std::atomic<uint64_t> calls[static_cast<size_t>(Api::count)] = {};
  std::atomic<uint64_t> errors[static_cast<size_t>(Api::count)] = {};  // calls that returned one
  std::atomic<KernelCounts*> blocks[kNameBlocks] = {};  // by name id; allocated on first use
  std::mutex ring_lock;  // between the thread and readers; every thread has its own ring
  std::vector<SimcudaLaunch> ring;
  size_t ring_next = 0;
  bool is_in_use = false;  // by a living thread
};

// Returns records for a new thread. Reuses a dead thread's records, with their counts.
ThreadRecords* acquire_records();
void release_records(ThreadRecords* records);
// Called in the child after a fork. If a thread that the child does not have was changing the
// records, the child starts anew with those of its own thread (null: it has none).
void renew_records_in_child(ThreadRecords* own);

// Returns a number for a kernel's name, always the same for the same name.
uint32_t intern_name(const std::string& name);

KernelCounts* make_counts(ThreadRecords& records, uint32_t name_id);

// Single writer: no locked instruction.
inline void bump(std::atomic<uint64_t>& counter) {
  counter.store(counter.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
}

inline void count_call(ThreadRecords& records, Api api) {
  bump(records.calls[static_cast<size_t>(api)]);
}

inline void count_error(ThreadRecords& records, Api api) {
  bump(records.errors[static_cast<size_t>(api)]);
}

inline KernelCounts& counts_of(ThreadRecords& records, uint32_t name_id) {
  KernelCounts* block = records.blocks[name_id / kNamesPerBlock].load(std::memory_order_relaxed);
  if (block == nullptr) [[unlikely]]
    block = make_counts(records, name_id);
  return block[name_id % kNamesPerBlock];
}

// Settings from the environment that the launch path reads.
extern bool g_is_fast;
extern int g_log_fd;

// Returns the ring's next record with its sequence number set. The caller holds ring_lock and fills
// it.
SimcudaLaunch& next_record(ThreadRecords& records);
void write_log_line(const SimcudaLaunch& launch);

extern std::atomic<uint64_t> g_stale_launches;

}  // namespace simcuda
