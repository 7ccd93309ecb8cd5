// libconform_malloc.so: an allocator that looks up the next one with dlsym from inside malloc, as
// jemalloc, tcmalloc, heap profilers and ASan do. A dlsym that allocates, logs or takes a lock that
// it already holds would call itself: then this library says so and ends the process.
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define EXPORTED extern "C" __attribute__((visibility("default")))

namespace {

__thread int t_depth __attribute__((tls_model("initial-exec")));

alignas(16) char g_early[4 << 20];  // for allocations of libc's own dlsym
size_t g_early_used;

void* allocate_early(size_t bytes) {
  const size_t at = __atomic_fetch_add(&g_early_used, (bytes + 15) & ~size_t{15}, __ATOMIC_RELAXED);
  if (at + bytes > sizeof g_early) abort();
  return g_early + at;
}

bool is_early(const void* block) { return block >= g_early && block < g_early + sizeof g_early; }

// A real driver allocates millions of times.
constexpr int kLookups = 20000;

// Looks the function up again at each of the first calls, so that dlsym runs inside malloc at any
// time.
template <class Function>
Function find_next(const char* name) {
  static Function last;
  static int lookups_of_this;
  if (__atomic_load_n(&lookups_of_this, __ATOMIC_RELAXED) >= kLookups) {
    return __atomic_load_n(&last, __ATOMIC_RELAXED);
  }
  ++t_depth;
  if (t_depth > 8) {
    const char text[] = "libconform_malloc.so: dlsym allocates without end\n";
    (void)!write(STDERR_FILENO, text, sizeof text - 1);
    _exit(1);
  }
  const auto next = reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
  // And names that begin as the driver's do. A lookup that fails allocates its message, so only a
  // few.
  static int lookups;
  if (__atomic_fetch_add(&lookups, 1, __ATOMIC_RELAXED) < 64) {
    (void)dlsym(RTLD_DEFAULT, "cuMallocHook");
    (void)dlvsym(RTLD_NEXT, "cuLaunchKernel", "libcuda.so.1");
  }
  --t_depth;
  __atomic_store_n(&last, next, __ATOMIC_RELAXED);
  __atomic_fetch_add(&lookups_of_this, 1, __ATOMIC_RELEASE);
  return next;
}

}  // namespace

EXPORTED void* malloc(size_t bytes) {
  if (t_depth > 0) return allocate_early(bytes);
  return find_next<void* (*)(size_t)>("malloc")(bytes);
}

EXPORTED void* calloc(size_t count, size_t bytes) {
  if (t_depth > 0) return allocate_early(count * bytes);
  return find_next<void* (*)(size_t, size_t)>("calloc")(count, bytes);
}

EXPORTED void* realloc(void* block, size_t bytes) {
  if (t_depth > 0 || is_early(block)) {
    void* moved = t_depth > 0 ? allocate_early(bytes) : malloc(bytes);
    if (block != nullptr && moved != nullptr) {
      const size_t room = static_cast<size_t>(g_early + sizeof g_early - static_cast<char*>(block));
      memcpy(moved, block, bytes < room ? bytes : room);
    }
    return moved;
  }
  return find_next<void* (*)(void*, size_t)>("realloc")(block, bytes);
}

EXPORTED void free(void* block) {
  // Memory that dlsym itself frees is leaked: looking up free() would be a lookup within a lookup.
  if (block == nullptr || is_early(block) || t_depth > 0) return;
  find_next<void (*)(void*)>("free")(block);
}
