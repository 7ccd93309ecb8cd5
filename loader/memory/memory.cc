// operator new and delete of libfibloader.so. A load makes half a million small blocks, many of
// which one thread allocates and another frees, for which glibc's arenas wait for each other. Here
// every thread keeps the blocks that it frees, by size, and gives them on in batches.
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>

#include <algorithm>
#include <mutex>
#include <new>

namespace {

constexpr size_t kUnit = 16, kHeaderBytes = 8;
constexpr size_t kLargest = 64;  // class: a block's units with its header; others are malloc's
constexpr size_t kPageBytes = 64 << 10;
constexpr size_t kBatch = 256;

// A free block. Before each block stands its class, 0 if it is malloc's.
struct Free {
  Free* next;
  Free* next_batch;
};

uint64_t& class_of(void* block) { return static_cast<uint64_t*>(block)[-1]; }

// The free blocks of one size.
struct Blocks {
  Free* first;
  Free* batch;  // kBatch of them, or null
  size_t count;
  char* fresh;  // the rest of a page
  char* page_end;
};

struct Cache {
  Blocks blocks[kLargest + 1];
  Cache* next;
};

std::mutex mutex;  // guards what follows
Free* batches[kLargest + 1];
Cache* unused;  // of threads that have ended

thread_local Cache* own;
pthread_key_t key;
bool has_key;

void end_thread(void* ended) {
  auto* const cache = static_cast<Cache*>(ended);
  own = nullptr;
  const std::lock_guard lock(mutex);
  cache->next = unused;
  unused = cache;
}

// Another thread may have held the mutex, so what it guards is left alone. No lock is taken before
// a fork: the shim takes its own there, some of which it holds while it calls this library.
void start_over_in_child() {
  new (&mutex) std::mutex;
  std::ranges::fill(batches, nullptr);
  unused = nullptr;
}

__attribute__((constructor)) void start() {
  if (pthread_atfork(nullptr, nullptr, start_over_in_child) != 0) return;
  has_key = pthread_key_create(&key, end_thread) == 0;
}

// Returns null where there is none.
Cache* cache_of_thread() {
  if (own != nullptr) return own;
  if (!has_key) return nullptr;
  mutex.lock();
  Cache* cache = unused;
  if (cache != nullptr) unused = cache->next;
  mutex.unlock();
  if (cache == nullptr) cache = static_cast<Cache*>(calloc(1, sizeof *cache));
  if (cache == nullptr || pthread_setspecific(key, cache) != 0) return nullptr;
  return own = cache;
}

// Returns null where there are none.
Free* take_batch(size_t place) {
  const std::lock_guard lock(mutex);
  Free* const batch = batches[place];
  if (batch != nullptr) batches[place] = batch->next_batch;
  return batch;
}

void* from_malloc(size_t size) {
  char* const memory = size > SIZE_MAX - kUnit ? nullptr : static_cast<char*>(malloc(size + kUnit));
  if (memory == nullptr) throw std::bad_alloc();
  class_of(memory + kUnit) = 0;
  return memory + kUnit;
}

// The thread's list of this class is empty.
void* more(size_t size, size_t place) {
  Cache* const cache = cache_of_thread();
  if (cache == nullptr) return from_malloc(size);
  Blocks& blocks = cache->blocks[place];
  const size_t bytes = place * kUnit;
  if (static_cast<size_t>(blocks.page_end - blocks.fresh) < bytes) {
    Free* const batch = blocks.batch != nullptr ? blocks.batch : take_batch(place);
    if (batch != nullptr) {
      blocks.batch = nullptr;
      blocks.first = batch->next;
      blocks.count = kBatch - 1;
      return batch;
    }
    char* const page = static_cast<char*>(malloc(kPageBytes));
    if (page == nullptr) return from_malloc(size);
    blocks.fresh = page + kUnit - kHeaderBytes;
    blocks.page_end = page + kPageBytes;
  }
  char* const block = blocks.fresh + kHeaderBytes;
  blocks.fresh += bytes;
  class_of(block) = place;
  return block;
}

}  // namespace

void* operator new(size_t size) {
  if (size > kLargest * kUnit - kHeaderBytes) return from_malloc(size);
  // A free block is a Free.
  const size_t place = (std::max(size, sizeof(Free)) + kHeaderBytes + kUnit - 1) / kUnit;
  if (Cache* const cache = own) {
    Blocks& blocks = cache->blocks[place];
    if (Free* const block = blocks.first) {
      blocks.first = block->next;
      --blocks.count;
      return block;
    }
  }
  return more(size, place);
}

void operator delete(void* block) noexcept {
  if (block == nullptr) return;
  const uint64_t place = class_of(block);
  if (place == 0) return free(static_cast<char*>(block) - kUnit);
  Cache* const cache = cache_of_thread();
  if (cache == nullptr) return;  // lost
  Blocks& blocks = cache->blocks[place];
  auto* const freed = static_cast<Free*>(block);
  freed->next = blocks.first;
  blocks.first = freed;
  if (++blocks.count < kBatch) return;
  if (blocks.batch != nullptr) {
    const std::lock_guard lock(mutex);
    blocks.batch->next_batch = batches[place];
    batches[place] = blocks.batch;
  }
  blocks.batch = freed;
  blocks.first = nullptr;
  blocks.count = 0;
}

void operator delete(void* block, size_t) noexcept { operator delete(block); }
void* operator new[](size_t size) { return operator new(size); }
void operator delete[](void* block) noexcept { operator delete(block); }
void operator delete[](void* block, size_t) noexcept { operator delete(block); }
