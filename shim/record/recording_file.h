// The file of a recording: blocks that are added under a lock, found again without one.
//
// Blocks never move, and a block that is found stays; a forked child begins a file of its own, and its parent's
// stays mapped. Any thread may call these functions.
#pragma once

#include <string.h>
#include <sys/mman.h>

#include "shim/abi/recorder_api.h"
#include "shim/base/mutex.h"
#include "shim/base/process_file.h"

namespace fibshim {

// Blocks of the file by the hash of their key: open addressing of a fixed size. Readers take no lock.
// A slot changes once, from null to a block.
class Index {
 public:
  using Slot = std::atomic<RecordedBlock*>;

  // Room for at least that many blocks. False: no memory.
  bool create(uint64_t block_count) {
    uint64_t capacity = 1024;
    while (capacity < block_count * 2) capacity *= 2;
    void* const memory = mmap(nullptr, capacity * sizeof(Slot), PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) return false;
    mask_ = capacity - 1;
    slots_ = static_cast<Slot*>(memory);
    return true;
  }

  // Null: it is not there.
  template <class Block, class IsIt>
  Block* find(RecordedKind kind, uint64_t hash, const IsIt& is_it) const {
    for (uint32_t i = 0; i < kLongestProbe; ++i) {
      RecordedBlock* const block = slots_[(hash + i) & mask_].load(std::memory_order_acquire);
      if (block == nullptr) return nullptr;
      auto* const found = reinterpret_cast<Block*>(block);
      if (block->kind == kind && is_it(found)) return found;
    }
    return nullptr;
  }

  // Holding the lock: where a block of this hash goes. Null: too many have nearly this hash.
  Slot* find_free(uint64_t hash) const {
    for (uint32_t i = 0; i < kLongestProbe; ++i) {
      Slot& slot = slots_[(hash + i) & mask_];
      if (slot.load(std::memory_order_relaxed) == nullptr) return &slot;
    }
    return nullptr;
  }

 private:
  static constexpr uint32_t kLongestProbe = 64;  // slots that a search reads
  Slot* slots_ = nullptr;
  uint64_t mask_ = 0;
};

// `lock` guards everything that is not atomic, except that readers who have seen `base` read the index
// and `limit` without it.
struct Recorder {
  const RecorderHost* host;
  Mutex lock;
  std::atomic<char*> base;  // where the file is mapped; null until the first launch
  uint64_t limit;
  uint64_t reserved_bytes;  // of the file, with space
  bool has_failed;          // there is no file and will be none
  std::atomic<bool> is_full;
  ProcessFile file;
  Index index;
};
extern Recorder g_recorder;

inline RecordingHeader* header_at(char* base) { return reinterpret_cast<RecordingHeader*>(base); }
// Null: there is no file.
inline RecordingHeader* header() {
  return header_at(g_recorder.base.load(std::memory_order_acquire));
}

inline void add(uint64_t* counter) { __atomic_fetch_add(counter, 1, __ATOMIC_RELAXED); }

inline uint64_t mix(uint64_t hash, uint64_t value) {
  hash = (hash ^ value) * 0x9e3779b97f4a7c15;
  return hash ^ (hash >> 32);
}

// Holding the lock: makes the file at the first call. Null: there is no recording.
char* ensure_file();

// Holding the lock: room for a block, with space in the file, not yet published. Null: none is left.
RecordedBlock* new_block(RecordedKind kind, uint64_t bytes);

template <class Block>
Block* new_block(RecordedKind kind, uint64_t bytes) {
  return reinterpret_cast<Block*>(new_block(kind, bytes));
}

// Holding the lock. From here on readers of the file, and other threads, find the block.
void publish(RecordedBlock* block, Index::Slot* slot);

// In a forked child, holding the lock.
void leave_file_to_parent();

}  // namespace fibshim
