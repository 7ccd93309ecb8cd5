#include "shim/base/pool.h"

#include <string.h>
#include <sys/mman.h>

namespace fibshim {
namespace {

constexpr size_t kSmallestBlock = Pool::kAlignment;
constexpr size_t kChunkBytes = 256 * 1024;
constexpr size_t kSmallChunks = 4;  // later chunks have the size of a huge page
constexpr size_t kHugePageBytes = 2 * 1024 * 1024;

void* map_pages(size_t bytes) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return memory == MAP_FAILED ? nullptr : memory;
}

// Maps memory aligned to huge pages, and on huge pages if the system has them. Otherwise tables of
// many handles, and decisions of many shapes, would miss the TLB.
void* map_huge_pages(size_t bytes) {
  auto* const begin = static_cast<char*>(map_pages(bytes + kHugePageBytes));
  if (begin == nullptr) return map_pages(bytes);
  const auto address = reinterpret_cast<uintptr_t>(begin);
  const size_t before = (kHugePageBytes - address % kHugePageBytes) % kHugePageBytes;
  char* const memory = begin + before;
  if (before != 0) munmap(begin, before);
  if (before != kHugePageBytes) munmap(memory + bytes, kHugePageBytes - before);
  madvise(memory, bytes, MADV_HUGEPAGE);
  return memory;
}

}  // namespace

int Pool::class_of(size_t bytes) {
  int index = 0;
  for (size_t size = kSmallestBlock; size < bytes; size *= 2) ++index;
  return index;
}

void* Pool::allocate(size_t bytes) { return allocate_block(bytes, true); }
void* Pool::allocate_unset(size_t bytes) { return allocate_block(bytes, false); }

void* Pool::allocate_block(size_t bytes, bool is_zeroed) {
  const int index = class_of(bytes);
  if (index >= kClassCount) return nullptr;
  const size_t block_bytes = kSmallestBlock << index;
  MutexGuard guard(mutex_);
  if (FreeBlock* block = free_[index]) {
    free_[index] = block->next;
    if (is_zeroed) memset(static_cast<void*>(block), 0, bytes);
    return block;
  }
  if (block_bytes > kChunkBytes / 4) {
    return block_bytes < kHugePageBytes ? map_pages(block_bytes) : map_huge_pages(block_bytes);
  }
  if (chunk_left_ < block_bytes) {
    // The rest of the old chunk is too small for this class and stays unused.
    const bool is_small = chunk_count_ < kSmallChunks;
    void* chunk = is_small ? map_pages(kChunkBytes) : map_huge_pages(kHugePageBytes);
    if (chunk == nullptr) return nullptr;
    ++chunk_count_;
    chunk_ = static_cast<char*>(chunk);
    chunk_left_ = is_small ? kChunkBytes : kHugePageBytes;
  }
  char* block = chunk_;
  chunk_ += block_bytes;
  chunk_left_ -= block_bytes;
  return block;
}

void Pool::release(void* block, size_t bytes) {
  if (block == nullptr) return;
  const int index = class_of(bytes);
  MutexGuard guard(mutex_);
  auto* free_block = static_cast<FreeBlock*>(block);
  free_block->next = free_[index];
  free_[index] = free_block;
}

}  // namespace fibshim
