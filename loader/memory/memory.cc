// operator new and delete of libfibloader.so. A load makes half a million small blocks, many of
// which one thread allocates and another frees, for which glibc's arenas wait for each other. Here
// every thread keeps the blocks that it frees, by size, and passes them on in batches.
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>

#include <algorithm>
#include <mutex>
#include <new>

namespace {

constexpr size_t kUnit = 16, kHeaderBytes = 8;
// A size class is the number of units of a block and its header. Larger blocks are malloc's.
constexpr size_t kLargest = 64;
constexpr size_t kPageBytes = 64 << 10;
constexpr size_t kBatch = 256;

// Before each block stands its size class, or 0 if the block is malloc's.
struct FreeBlock {
  FreeBlock* next;
  FreeBlock* next_batch;
};

uint64_t& class_of(void* block) { return static_cast<uint64_t*>(block)[-1]; }

// What a thread has of one size class.
struct Blocks {
  FreeBlock* first;
  FreeBlock* batch;  // kBatch more, or null
  size_t count;      // of those from `first` on
  char* fresh;       // the unused rest of a page
  char* page_end;
};

struct Cache {
  Blocks blocks[kLargest + 1];
  Cache* next;
};

std::mutex mutex;  // guards what follows
FreeBlock* batches[kLargest + 1];
Cache* unused;  // of threads that have ended

thread_local Cache* t_cache;
pthread_key_t key;
bool has_key;

void end_thread(void* ended) {
  auto* const cache = static_cast<Cache*>(ended);
  t_cache = nullptr;
  const std::lock_guard lock(mutex);
  cache->next = unused;
  unused = cache;
}

// Another thread may have held the mutex, so what it guards is given up. No lock is taken before
// a fork: the shim takes its t_cache there, some of which it holds while it calls this library.
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
  if (t_cache != nullptr) return t_cache;
  if (!has_key) return nullptr;
  mutex.lock();
  Cache* cache = unused;
  if (cache != nullptr) unused = cache->next;
  mutex.unlock();
  if (cache == nullptr) cache = static_cast<Cache*>(calloc(1, sizeof *cache));
  if (cache == nullptr || pthread_setspecific(key, cache) != 0) return nullptr;
  return t_cache = cache;
}

// Returns null where there are none.
FreeBlock* take_batch(size_t size_class) {
  const std::lock_guard lock(mutex);
  FreeBlock* const batch = batches[size_class];
  if (batch != nullptr) batches[size_class] = batch->next_batch;
  return batch;
}

void* from_malloc(size_t size) {
  char* const memory = size > SIZE_MAX - kUnit ? nullptr : static_cast<char*>(malloc(size + kUnit));
  if (memory == nullptr) throw std::bad_alloc();
  class_of(memory + kUnit) = 0;
  return memory + kUnit;
}

// The thread's list of this class is empty.
void* more(size_t size, size_t size_class) {
  Cache* const cache = cache_of_thread();
  if (cache == nullptr) return from_malloc(size);
  Blocks& blocks = cache->blocks[size_class];
  const size_t bytes = size_class * kUnit;
  if (static_cast<size_t>(blocks.page_end - blocks.fresh) < bytes) {
    FreeBlock* const batch = blocks.batch != nullptr ? blocks.batch : take_batch(size_class);
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
  class_of(block) = size_class;
  return block;
}

}  // namespace

void* operator new(size_t size) {
  if (size > kLargest * kUnit - kHeaderBytes) return from_malloc(size);
  const size_t size_class = (std::max(size, sizeof(FreeBlock)) + kHeaderBytes + kUnit - 1) / kUnit;
  if (Cache* const cache = t_cache) {
    Blocks& blocks = cache->blocks[size_class];
    if (FreeBlock* const block = blocks.first) {
      blocks.first = block->next;
      --blocks.count;
      return block;
    }
  }
  return more(size, size_class);
}

void operator delete(void* block) noexcept {
  if (block == nullptr) return;
  const uint64_t size_class = class_of(block);
  if (size_class == 0) return free(static_cast<char*>(block) - kUnit);
  Cache* const cache = cache_of_thread();
  if (cache == nullptr) return;  // no memory to keep it: it is lost
  Blocks& blocks = cache->blocks[size_class];
  auto* const freed = static_cast<FreeBlock*>(block);
  freed->next = blocks.first;
  blocks.first = freed;
  if (++blocks.count < kBatch) return;
  if (blocks.batch != nullptr) {
    const std::lock_guard lock(mutex);
    blocks.batch->next_batch = batches[size_class];
    batches[size_class] = blocks.batch;
  }
  blocks.batch = freed;
  blocks.first = nullptr;
  blocks.count = 0;
}

void operator delete(void* block, size_t) noexcept { operator delete(block); }
void* operator new[](size_t size) { return operator new(size); }
void operator delete[](void* block) noexcept { operator delete(block); }
void operator delete[](void* block, size_t) noexcept { operator delete(block); }
