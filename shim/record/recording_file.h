// The file of a recording: blocks that are added under a lock and found without one.
//
// Blocks never move and are never removed. A forked child begins its own file, and its parent's
// stays mapped. Any thread may call these functions.
#pragma once

#include <string.h>
#include <sys/mman.h>

#include "shim/abi/hash.h"
#include "shim/abi/recorder_api.h"
#include "shim/base/mutex.h"
#include "shim/base/process_file.h"

namespace fibshim {

// The file's blocks by the hash of their key: open addressing with a fixed size. Readers take no
// lock. A slot changes once, from null to a block.
class Index {
 public:
  using Slot = std::atomic<RecordedBlock*>;

  // Makes room for at least this many blocks. False: no memory.
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

  // Returns null if there is no such block.
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

  // Requires the lock. Returns the slot for a new block of this hash. Null: too many have nearly
  // this hash.
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

// `lock` guards all members that are not atomic, except that readers that have loaded `base` read
// the index and `limit` without it.
struct Recorder {
  const RecorderHost* host;
  Mutex lock;
  std::atomic<char*> base;  // where the file is mapped; null until the first launch
  uint64_t limit;
  uint64_t reserved_bytes;  // of the file, for which there is disk space
  bool has_failed;          // there is no file and will be none
  std::atomic<bool> is_full;
  ProcessFile file;
  Index index;
};
extern Recorder g_recorder;

inline RecordingHeader* header_at(char* base) { return reinterpret_cast<RecordingHeader*>(base); }
// Returns null if there is no file.
inline RecordingHeader* header() {
  return header_at(g_recorder.base.load(std::memory_order_acquire));
}

inline void add(uint64_t* counter) { __atomic_fetch_add(counter, 1, __ATOMIC_RELAXED); }

// Requires the lock. Makes the file at the first call. Null: there is no recording.
char* ensure_file();

// Requires the lock. Makes an unpublished block, with disk space for it. Null: no room.
RecordedBlock* new_block(RecordedKind kind, uint64_t bytes);

template <class Block>
Block* new_block(RecordedKind kind, uint64_t bytes) {
  return reinterpret_cast<Block*>(new_block(kind, bytes));
}

// Requires the lock. Makes the block visible to readers of the file and to other threads.
void publish(RecordedBlock* block, Index::Slot* slot);

// Called in a forked child, with the lock held.
void leave_file_to_parent();

}  // namespace fibshim
