// Memory for objects that the launch path reads: records, decisions, tables.
//
// Blocks come from mapped chunks. A released block goes to a list of its size class, never to the
// system and never to another pool: a thread that still reads it (a launch that races with its
// module's unload) reads stale data, not unmapped memory. Returns null if the system has no memory;
// every caller handles that.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "shim/base/mutex.h"

namespace fibshim {

class Pool {
 public:
  static constexpr size_t kAlignment = 64;  // of blocks: a cache line

  constexpr Pool() = default;

  // Returns zeroed memory.
  void* allocate(size_t bytes);
  // Returns uninitialised memory.
  void* allocate_unset(size_t bytes);
  // `bytes`: the size given to allocate.
  void release(void* block, size_t bytes);

  // For the atfork handlers.
  void lock_for_fork() { mutex_.lock(); }
  void unlock_after_fork(bool is_child) { mutex_.unlock_after_fork(is_child); }

 private:
  static constexpr int kClassCount = 40;  // powers of two from kAlignment on
  struct FreeBlock {
    FreeBlock* next;
  };
  static int class_of(size_t bytes);
  void* allocate_block(size_t bytes, bool is_zeroed);

  Mutex mutex_;
  FreeBlock* free_[kClassCount] = {};
  char* chunk_ = nullptr;
  size_t chunk_left_ = 0;
  size_t chunk_count_ = 0;
};

}  // namespace fibshim
