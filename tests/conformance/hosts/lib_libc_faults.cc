// libconform_libc_faults.so: libc functions that fail if the shim, its loader or their libelf call
// them; calls of the host and the driver succeed. Preloaded before the shim.
//
//   CONFORM_LIBC="mmap:3"     the third call fails; "mmap:3+": and all later ones
//   CONFORM_LIBC="clock:wall" CLOCK_REALTIME jumps by years, back and forth; "clock:all": and
//                             CLOCK_MONOTONIC goes forward by an hour at every call
//   conform_mapped_bytes()    how much memory the shim and its loader have mapped
//   CONFORM_LIBC_COUNTS       a file; at exit the numbers of calls are appended to it: "mmap 7"
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>

#define EXPORTED extern "C" __attribute__((visibility("default")))

namespace {

enum Function {
#define FUNCTION(name, code) k_##name,
#include "tests/conformance/hosts/libc_faults.def"
#undef FUNCTION
  kFunctionCount
};

struct Row {
  const char* name;
  int code;  // errno, or the function's return value
  std::atomic<long> calls;
};
Row g_rows[] = {
#define FUNCTION(name, code) {#name, code, {0}},
#include "tests/conformance/hosts/libc_faults.def"
#undef FUNCTION
};

int g_target = -1;
long g_first = 0;
bool g_is_lasting = false;
bool g_wall_jumps = false;
bool g_all_jumps = false;

struct Range {
  std::atomic<uintptr_t> begin;
  std::atomic<uintptr_t> end;
};
Range g_ours[4];  // the shim, its loader, their libelf and the recorder

int find_ranges(dl_phdr_info* info, size_t, void*) {
  const char* slash = strrchr(info->dlpi_name, '/');
  const char* name = slash == nullptr ? info->dlpi_name : slash + 1;
  const int place = strcmp(name, "libfibshim.so") == 0       ? 0
                    : strcmp(name, "libfibloader.so") == 0   ? 1
                    : strcmp(name, "libfibshim-elf.so") == 0 ? 2
                    : strcmp(name, "libfibrecord.so") == 0   ? 3
                                                             : -1;
  if (place < 0) return 0;
  uintptr_t end = 0;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const uintptr_t at = info->dlpi_phdr[i].p_vaddr + info->dlpi_phdr[i].p_memsz;
    if (info->dlpi_phdr[i].p_type == PT_LOAD && at > end) end = at;
  }
  g_ours[place].end.store(info->dlpi_addr + end);
  g_ours[place].begin.store(info->dlpi_addr);
  return 0;
}

bool is_ours(const void* caller) {
  const auto at = reinterpret_cast<uintptr_t>(caller);
  for (const Range& range : g_ours) {
    const uintptr_t begin = range.begin.load(std::memory_order_relaxed);
    if (begin != 0 && at >= begin && at < range.end.load(std::memory_order_relaxed)) return true;
  }
  return false;
}

bool strikes(Function function, const void* caller) {
  if (!is_ours(caller)) return false;
  const long number = g_rows[function].calls.fetch_add(1, std::memory_order_relaxed) + 1;
  if (function != g_target || number < g_first || (number > g_first && !g_is_lasting)) return false;
  errno = g_rows[function].code;
  return true;
}

template <class Type>
Type* next(const char* name) {
  return reinterpret_cast<Type*>(dlsym(RTLD_NEXT, name));
}

__attribute__((constructor)) void begin() {
  dl_iterate_phdr(find_ranges, nullptr);
  const char* text = getenv("CONFORM_LIBC");
  if (text == nullptr) return;
  const char* colon = strchr(text, ':');
  if (colon == nullptr) abort();
  g_wall_jumps = strncmp(text, "clock:", 6) == 0;
  g_all_jumps = strcmp(text, "clock:all") == 0;
  if (g_wall_jumps) return;
  for (int i = 0; i < kFunctionCount; ++i) {
    if (strlen(g_rows[i].name) == static_cast<size_t>(colon - text) &&
        strncmp(g_rows[i].name, text, static_cast<size_t>(colon - text)) == 0) {
      g_target = i;
    }
  }
  if (g_target < 0) abort();
  char* end = nullptr;
  g_first = strtol(colon + 1, &end, 10);
  g_is_lasting = *end == '+';
}

__attribute__((destructor)) void end() {
  const char* path = getenv("CONFORM_LIBC_COUNTS");
  FILE* file = path == nullptr ? nullptr : fopen(path, "a");
  if (file == nullptr) return;
  for (const Row& row : g_rows) fprintf(file, "%s %ld\n", row.name, row.calls.load());
  fclose(file);
}

}  // namespace

#define CALLER __builtin_return_address(0)

#define DEFINE(result, name, parameters, arguments, failed)  \
  EXPORTED result name parameters {                          \
    static const auto real = next<result parameters>(#name); \
    if (strikes(k_##name, CALLER)) return failed;            \
    return real arguments;                                   \
  }

// How much the shim and its loader have mapped and not unmapped.
std::atomic<long> g_mapped_bytes{0};
EXPORTED long conform_mapped_bytes() { return g_mapped_bytes.load(std::memory_order_relaxed); }

EXPORTED void* mmap(void* at, size_t bytes, int protection, int flags, int file, off_t offset) {
  static const auto real = next<decltype(::mmap)>("mmap");
  if (strikes(k_mmap, CALLER)) return MAP_FAILED;
  void* const mapped = real(at, bytes, protection, flags, file, offset);
  if (mapped != MAP_FAILED && is_ours(CALLER)) g_mapped_bytes.fetch_add(static_cast<long>(bytes));
  return mapped;
}

EXPORTED int munmap(void* at, size_t bytes) {
  static const auto real = next<decltype(::munmap)>("munmap");
  const int result = real(at, bytes);
  if (result == 0 && is_ours(CALLER)) g_mapped_bytes.fetch_sub(static_cast<long>(bytes));
  return result;
}

DEFINE(int, fstat, (int file, struct stat* out), (file, out), -1)
DEFINE(int, stat, (const char* path, struct stat* out), (path, out), -1)
DEFINE(int, lstat, (const char* path, struct stat* out), (path, out), -1)
DEFINE(int, fstatat, (int folder, const char* path, struct stat* out, int flags),
       (folder, path, out, flags), -1)
DEFINE(ssize_t, read, (int file, void* out, size_t bytes), (file, out, bytes), -1)
DEFINE(ssize_t, write, (int file, const void* text, size_t bytes), (file, text, bytes), -1)
DEFINE(int, ftruncate, (int file, off_t bytes), (file, bytes), -1)
DEFINE(int, posix_fallocate, (int file, off_t at, off_t bytes), (file, at, bytes), ENOSPC)
DEFINE(int, mkdir, (const char* path, mode_t mode), (path, mode), -1)
DEFINE(ssize_t, readlink, (const char* path, char* out, size_t bytes), (path, out, bytes), -1)
DEFINE(char*, realpath, (const char* path, char* out), (path, out), nullptr)
DEFINE(DIR*, fdopendir, (int file), (file), nullptr)
DEFINE(int, pthread_key_create, (pthread_key_t * key, void (*end)(void*)), (key, end), EAGAIN)
DEFINE(int, pthread_setspecific, (pthread_key_t key, const void* value), (key, value), ENOMEM)
DEFINE(int, getrlimit, (__rlimit_resource_t resource, rlimit* out), (resource, out), -1)

// dlsym itself may call malloc, so these are called by another name and not looked up.
extern "C" void* __libc_malloc(size_t bytes);
extern "C" void* __libc_realloc(void* block, size_t bytes);
EXPORTED void* malloc(size_t bytes) {
  return strikes(k_malloc, CALLER) ? nullptr : __libc_malloc(bytes);
}
EXPORTED void* realloc(void* block, size_t bytes) {
  return strikes(k_realloc, CALLER) ? nullptr : __libc_realloc(block, bytes);
}

EXPORTED int open(const char* path, int flags, ...) {
  static const auto real = next<int(const char*, int, ...)>("open");
  va_list arguments;
  va_start(arguments, flags);
  const auto mode = (flags & O_CREAT) != 0 ? va_arg(arguments, mode_t) : 0;
  va_end(arguments);
  // The shim opens its loader before it opens the config folder, so from then on the loader's
  // address is known.
  if (g_ours[1].begin.load(std::memory_order_relaxed) == 0) dl_iterate_phdr(find_ranges, nullptr);
  return strikes(k_open, CALLER) ? -1 : real(path, flags, mode);
}

EXPORTED int openat(int folder, const char* path, int flags, ...) {
  static const auto real = next<int(int, const char*, int, ...)>("openat");
  va_list arguments;
  va_start(arguments, flags);
  const auto mode = (flags & O_CREAT) != 0 ? va_arg(arguments, mode_t) : 0;
  va_end(arguments);
  if (g_ours[1].begin.load(std::memory_order_relaxed) == 0) dl_iterate_phdr(find_ranges, nullptr);
  return strikes(k_openat, CALLER) ? -1 : real(folder, path, flags, mode);
}

// libc has no function for openat2.
EXPORTED long syscall(long number, ...) {
  static const auto real = next<long(long, ...)>("syscall");
  va_list arguments;
  va_start(arguments, number);
  long values[6];
  for (long& value : values) value = va_arg(arguments, long);
  va_end(arguments);
  if (number == SYS_openat2 && strikes(k_openat2, CALLER)) return -1;
  return real(number, values[0], values[1], values[2], values[3], values[4], values[5]);
}

EXPORTED int clock_gettime(clockid_t clock, timespec* out) {
  static const auto real = next<int(clockid_t, timespec*)>("clock_gettime");
  static std::atomic<long> calls{0};
  const int result = real(clock, out);
  if (result != 0 || !g_wall_jumps || !is_ours(CALLER)) return result;
  const long number = calls.fetch_add(1) + 1;
  constexpr long kYear = 365L * 24 * 3600;
  if (clock == CLOCK_REALTIME) out->tv_sec += number % 2 == 0 ? 30 * kYear : -30 * kYear;
  if (clock == CLOCK_MONOTONIC && g_all_jumps) out->tv_sec += number * 3600;
  return result;
}
