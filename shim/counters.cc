#include "shim/counters.h"

#include <atomic>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "loader/snapshot.h"
#include "shim/log.h"
#include "shim/mutex.h"
#include "shim/read_section.h"
#include "shim/settings_in_force.h"

namespace fibshim {

__thread uint64_t* t_counters __attribute__((tls_model("initial-exec")));

namespace {

constexpr uint64_t kPageBytes = 4096;
constexpr uint64_t kSeriesAt = (sizeof(FileHeader) + kPageBytes - 1) / kPageBytes * kPageBytes;
constexpr uint64_t kShardsAt = kSeriesAt + sizeof(SeriesEntry) * kSeriesCapacity;
constexpr uint64_t kShardBytes = uint64_t{8} * kOutcomeSlots * kSeriesCapacity;
constexpr uint32_t kCountsBetweenClaims = 100'000;
static_assert(kShardsAt % kPageBytes == 0 && kShardBytes % kPageBytes == 0);

// Everything below is guarded by `lock`, but for what is atomic.
struct Counters {
  Mutex lock;
  std::atomic<FileHeader*> header;  // null until the first open_counters
  SeriesEntry* series;
  bool has_file;  // false: private memory
  bool warned_of_space;
  uint64_t series_pages;  // pages of the series table that surely have space
  uint64_t shard_pages;   // pages of every shard that surely have space
  dev_t device;           // identity of the file, to open it again by name
  ino_t inode;
  char path[4096];
  uint64_t* shards[kMaxShards];  // mapped shards; [0] is the shared one
  bool is_owned[kMaxShards];
  // In a forked child, until its first count: the parent's, still mapped, never written.
  FileHeader* parent_header;
  SeriesEntry* parent_series;
  uint32_t parent_series_count;  // at the fork
};
Counters g_counters;
pthread_key_t g_thread_exit_key;
std::atomic<bool> g_has_thread_exit_key;

// Field 22 of /proc/self/stat: with the pid it names this process for good.
uint64_t process_start_time() {
  char text[1024];
  const int file = open("/proc/self/stat", O_RDONLY | O_CLOEXEC);
  if (file < 0) return 0;
  const ssize_t length = read(file, text, sizeof text - 1);
  close(file);
  if (length <= 0) return 0;
  text[length] = 0;
  const char* at = strrchr(text, ')');  // the command's name may hold anything
  for (int field = 2; at != nullptr && field < 22; ++field) at = strchr(at + 1, ' ');
  return at == nullptr ? 0 : strtoull(at + 1, nullptr, 10);
}

void read_command_line(char* out, size_t out_size) {
  out[0] = 0;
  const int file = open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
  if (file < 0) return;
  const ssize_t length = read(file, out, out_size - 1);
  close(file);
  if (length <= 0) return;
  for (ssize_t i = 0; i + 1 < length; ++i) {
    if (out[i] == 0) out[i] = ' ';
  }
  out[length] = 0;
}

// Backs a range of the file with real pages: a store into a hole of a full file system would kill
// the process with SIGBUS.
bool reserve(int file, uint64_t at, uint64_t bytes) {
  int result;
  do {
    result = posix_fallocate(file, static_cast<off_t>(at), static_cast<off_t>(bytes));
  } while (result == EINTR);
  if (result != 0) errno = result;
  return result == 0;
}

// The file by name again, if it still is the one that this process made. No descriptor is kept:
// hosts close descriptors that they do not know, and the number would then be someone else's.
int reopen_file() {
  const int file = open(g_counters.path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
  if (file < 0) return -1;
  struct stat status;
  if (fstat(file, &status) != 0 || status.st_dev != g_counters.device ||
      status.st_ino != g_counters.inode) {
    close(file);
    return -1;
  }
  return file;
}

// Makes the folder, with its parents, if it is missing. It must be ours or root's, and no one
// else's to write in unless it is sticky, as /tmp is: others could swap the files under us. Null,
// or why not.
const char* make_stats_dir(const char* path) {
  if (mkdir(path, 0700) != 0 && errno == ENOENT) {
    char part[4096];
    snprintf(part, sizeof part, "%s", path);
    for (char* slash = strchr(part + 1, '/'); slash != nullptr; slash = strchr(slash + 1, '/')) {
      *slash = 0;
      (void)mkdir(part, 0755);
      *slash = '/';
    }
    (void)mkdir(path, 0700);
  }
  struct stat status;
  if (stat(path, &status) != 0) return strerror(errno);
  if (!S_ISDIR(status.st_mode)) return "not a folder";
  if (status.st_uid != geteuid() && status.st_uid != 0) return "it belongs to another user";
  if ((status.st_mode & 0022) != 0 && (status.st_mode & S_ISVTX) == 0) {
    return "other users may write there (chmod go-w, or set the sticky bit)";
  }
  return nullptr;
}

void fill_header(FileHeader* header, uint64_t start_time) {
  header->version = kCountersVersion;
  header->header_bytes = sizeof(FileHeader);
  header->outcome_slots = kOutcomeSlots;
  header->series_capacity = kSeriesCapacity;
  header->series_entry_bytes = sizeof(SeriesEntry);
  header->series_at = kSeriesAt;
  header->shards_at = kShardsAt;
  header->shard_stride = kShardBytes;
  header->series_count = 1;
  header->shard_count = 1;
  header->pid = static_cast<uint64_t>(getpid());
  header->start_time = start_time;
  timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  header->created_unix_ns =
      static_cast<uint64_t>(now.tv_sec) * 1000000000u + static_cast<uint64_t>(now.tv_nsec);
  header->uid = geteuid();
  header->mode = static_cast<uint32_t>(mode());
  const ssize_t length =
      readlink("/proc/self/exe", header->executable, sizeof header->executable - 1);
  if (length < 0) header->executable[0] = 0;
  read_command_line(header->command, sizeof header->command);
}

void add_config(FileHeader* header, const Snapshot& snapshot) {
  const uint32_t index = header->config_count;
  if (index == kMaxCountedConfigs) return;
  CountedConfig& config = header->configs[index];
  config.digest[0] = snapshot.digest[0];
  config.digest[1] = snapshot.digest[1];
  snprintf(config.path, sizeof config.path, "%s", snapshot.text(snapshot.root));
  __atomic_store_n(&header->config_count, index + 1, __ATOMIC_RELEASE);
}

// Growing a file past RLIMIT_FSIZE raises a signal that kills.
bool is_within_file_limit(uint64_t bytes) {
  rlimit limit;
  return getrlimit(RLIMIT_FSIZE, &limit) != 0 || bytes <= limit.rlim_cur;
}

// Maps header, series table and shard 0 of a new file. Null; or why not, and nothing is left
// behind.
const char* create_file(uint64_t start_time) {
  Counters& state = g_counters;
  if (!is_within_file_limit(kShardsAt + kShardBytes)) return "the file would exceed RLIMIT_FSIZE";
  if (const char* reason = make_stats_dir(stats_dir())) return reason;
  // exec keeps pid and start time: what an earlier program of this process has counted stays, and
  // this one's file is numbered.
  int file = -1;
  for (int program = 0; file < 0; ++program) {
    char number[16] = "";
    if (program > 0) snprintf(number, sizeof number, "-%d", program);
    snprintf(state.path, sizeof state.path, "%s/%d-%llu%s%s", stats_dir(),
             static_cast<int>(getpid()), static_cast<unsigned long long>(start_time), number,
             kCountersSuffix);
    file = open(state.path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0644);
    if (file < 0 && (errno != EEXIST || program == 1000)) return strerror(errno);
  }
  struct stat status;
  bool is_fine = fstat(file, &status) == 0 &&
                 ftruncate(file, static_cast<off_t>(kShardsAt + kShardBytes)) == 0 &&
                 reserve(file, 0, kSeriesAt + kPageBytes) && reserve(file, kShardsAt, kPageBytes);
  void* head = MAP_FAILED;
  void* shard = MAP_FAILED;
  if (is_fine) {
    head = mmap(nullptr, kShardsAt, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    shard = mmap(nullptr, kShardBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file,
                 static_cast<off_t>(kShardsAt));
    is_fine = head != MAP_FAILED && shard != MAP_FAILED;
  }
  const int failure = errno;
  close(file);
  if (!is_fine) {
    if (head != MAP_FAILED) munmap(head, kShardsAt);
    if (shard != MAP_FAILED) munmap(shard, kShardBytes);
    (void)unlink(state.path);
    return strerror(failure);
  }
  state.device = status.st_dev;
  state.inode = status.st_ino;
  state.has_file = true;
  state.series = reinterpret_cast<SeriesEntry*>(static_cast<char*>(head) + kSeriesAt);
  state.shards[0] = static_cast<uint64_t*>(shard);
  auto* header = static_cast<FileHeader*>(head);
  fill_header(header, start_time);
  // The magic comes last: a reader takes no half-made header for a file.
  __atomic_thread_fence(__ATOMIC_RELEASE);
  memcpy(header->magic, kCountersMagic, sizeof header->magic);
  state.header.store(header, std::memory_order_release);
  return nullptr;
}

void* map_private(size_t bytes) {
  return mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
              -1, 0);
}

// Counters that nobody outside can read, for when there is no file.
bool create_private() {
  void* memory = map_private(kShardsAt + kShardBytes);
  if (memory == MAP_FAILED) return false;
  Counters& state = g_counters;
  state.has_file = false;
  state.series = reinterpret_cast<SeriesEntry*>(static_cast<char*>(memory) + kSeriesAt);
  state.shards[0] = reinterpret_cast<uint64_t*>(static_cast<char*>(memory) + kShardsAt);
  auto* header = static_cast<FileHeader*>(memory);
  fill_header(header, 0);
  state.header.store(header, std::memory_order_release);
  return true;
}

void warn_of_space(const char* what) {
  if (g_counters.warned_of_space) return;
  g_counters.warned_of_space = true;
  log_message(LogLevel::warn, "%s: no space for %s; counts go on, less finely", g_counters.path,
              what);
}

// A new shard of the file, with space for all series that there are. MAP_FAILED: no space.
void* map_shard(uint32_t index) {
  const int file = reopen_file();
  if (file < 0) return MAP_FAILED;
  const uint64_t at = kShardsAt + index * kShardBytes;
  void* shard = MAP_FAILED;
  if (is_within_file_limit(at + kShardBytes) &&
      ftruncate(file, static_cast<off_t>(at + kShardBytes)) == 0 &&
      reserve(file, at, g_counters.shard_pages * kPageBytes)) {
    shard = mmap(nullptr, kShardBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file,
                 static_cast<off_t>(at));
  }
  close(file);
  return shard;
}

// A shard that no live thread owns, newly mapped if need be. Null: the thread shares shard 0.
uint64_t* claim_shard() {
  Counters& state = g_counters;
  FileHeader* header = state.header.load(std::memory_order_relaxed);
  if (header == nullptr) return nullptr;
  uint32_t index = 1;
  while (index < kMaxShards && state.shards[index] != nullptr && state.is_owned[index]) ++index;
  if (index == kMaxShards) return nullptr;
  if (state.shards[index] == nullptr) {
    void* const shard = state.has_file ? map_shard(index) : map_private(kShardBytes);
    if (shard == MAP_FAILED) {
      if (state.has_file) warn_of_space("a thread's counters");
      return nullptr;
    }
    __atomic_store_n(&state.shards[index], static_cast<uint64_t*>(shard), __ATOMIC_RELEASE);
    __atomic_store_n(&header->shard_count, index + 1, __ATOMIC_RELEASE);
  }
  state.is_owned[index] = true;
  return state.shards[index];
}

// Holding the lock.
void release_claim(const void* shard) {
  Counters& state = g_counters;
  for (uint32_t i = 1; i < kMaxShards && state.shards[i] != nullptr; ++i) {
    if (state.shards[i] == shard) state.is_owned[i] = false;
  }
}

// Runs when a thread ends: its shard, counts and all, goes to the next thread that asks.
void release_shard(void* shard) {
  t_counters = nullptr;
  leave_sections(static_cast<uint64_t*>(shard));
  MutexGuard guard(g_counters.lock);
  release_claim(shard);
}

// Space for one more series, in the table and in every shard. Holding the lock.
bool reserve_series(uint32_t series) {
  Counters& state = g_counters;
  if (!state.has_file) return true;
  const uint64_t series_pages = ((series + 1) * sizeof(SeriesEntry) + kPageBytes - 1) / kPageBytes;
  const uint64_t shard_pages =
      (uint64_t{8} * kOutcomeSlots * (series + 1) + kPageBytes - 1) / kPageBytes;
  if (series_pages <= state.series_pages && shard_pages <= state.shard_pages) return true;
  const int file = reopen_file();
  if (file < 0) return false;
  bool is_fine = reserve(file, kSeriesAt, series_pages * kPageBytes);
  for (uint32_t i = 0; is_fine && i < kMaxShards && state.shards[i] != nullptr; ++i) {
    is_fine = reserve(file, kShardsAt + i * kShardBytes, shard_pages * kPageBytes);
  }
  close(file);
  if (is_fine) {
    state.series_pages = series_pages;
    state.shard_pages = shard_pages;
  }
  return is_fine;
}

bool is_series(const SeriesEntry& entry, uint32_t config, const char* pattern,
               const char* definition) {
  return entry.config == config && strncmp(entry.pattern, pattern, sizeof entry.pattern - 1) == 0 &&
         strncmp(entry.definition, definition, sizeof entry.definition - 1) == 0;
}

constexpr char kOther[] = "(other)";

// Holding the lock. UINT32_MAX when the table has no room for it.
uint32_t find_or_add_series(const char* pattern, const char* definition, uint32_t room_kept) {
  Counters& state = g_counters;
  FileHeader* header = state.header.load(std::memory_order_relaxed);
  const uint32_t config = header->config_count == 0 ? 0 : header->config_count - 1;
  for (uint32_t i = 1; i < header->series_count; ++i) {
    if (is_series(state.series[i], config, pattern, definition)) return i;
  }
  const uint32_t index = header->series_count;
  if (index + room_kept >= kSeriesCapacity || !reserve_series(index)) return UINT32_MAX;
  SeriesEntry& entry = state.series[index];
  entry.config = static_cast<uint16_t>(config);
  entry.device = -1;
  snprintf(entry.pattern, sizeof entry.pattern, "%s", pattern);
  snprintf(entry.definition, sizeof entry.definition, "%s", definition);
  __atomic_store_n(&header->series_count, index + 1, __ATOMIC_RELEASE);
  return index;
}

// The child has counters of its own. It lets go of the parent's here, and makes its file when it
// first counts: most children never do.
void start_over_in_child() {
  Counters& state = g_counters;
  FileHeader* header = state.header.load(std::memory_order_relaxed);
  if (header != nullptr) {
    state.parent_header = header;
    state.parent_series = state.series;
    state.parent_series_count = header->series_count;
  }
  t_counters = nullptr;
  memset(state.shards, 0, sizeof state.shards);
  memset(state.is_owned, 0, sizeof state.is_owned);
  state.header.store(nullptr, std::memory_order_relaxed);
}

// Makes this process's counters if it has none, with the series of the process that it was forked
// from, so that indexes remembered by decisions stay right. Holding the lock.
bool ensure_open() {
  Counters& state = g_counters;
  if (state.header.load(std::memory_order_relaxed) != nullptr) return true;
  if (state.parent_header == nullptr && config_path()[0] == 0) return false;
  state.series_pages = 1;
  state.shard_pages = 1;
  if (const char* reason = create_file(process_start_time())) {
    log_message(LogLevel::warn,
                "%s: cannot keep counters there: %s; launches are redirected all the same, but "
                "`fibshim stats` will not show them",
                stats_dir(), reason);
    if (!create_private()) return false;
  }
  const FileHeader* parent = state.parent_header;
  if (parent != nullptr) {
    FileHeader* header = state.header.load(std::memory_order_relaxed);
    memcpy(header->configs, parent->configs, sizeof header->configs);
    header->config_count = parent->config_count;
    memcpy(header->devices, parent->devices, sizeof header->devices);
    header->device_count = parent->device_count;
    const uint32_t count = state.parent_series_count;
    if (count > 1 && !reserve_series(count - 1)) {
      // No room even for what the parent had: count in private, where there is.
      (void)unlink(state.path);
      memset(state.shards, 0, sizeof state.shards);
      if (!create_private()) return false;
      header = state.header.load(std::memory_order_relaxed);
    }
    memcpy(state.series, state.parent_series, count * sizeof(SeriesEntry));
    __atomic_store_n(&header->series_count, count, __ATOMIC_RELEASE);
    state.parent_header = nullptr;
  }
  return true;
}

}  // namespace

void open_counters(const Snapshot& snapshot) {
  Counters& state = g_counters;
  MutexGuard guard(state.lock);
  if (!g_has_thread_exit_key.load(std::memory_order_relaxed)) {
    if (pthread_key_create(&g_thread_exit_key, release_shard) == 0) {
      g_has_thread_exit_key.store(true, std::memory_order_release);
    }
  }
  if (!ensure_open()) return;
  add_config(state.header.load(std::memory_order_relaxed), snapshot);
}

void count_slowly(CounterIndex index) {
  Counters& state = g_counters;
  // A thread that got no shard asks again only after many more counts: asking takes the lock and,
  // where space is short, system calls.
  static __thread uint32_t left_without_asking __attribute__((tls_model("initial-exec")));
  uint64_t* shared = __atomic_load_n(&state.shards[0], __ATOMIC_ACQUIRE);
  if (left_without_asking > 0 && shared != nullptr) {
    --left_without_asking;
    __atomic_fetch_add(shared + index, 1, __ATOMIC_RELAXED);
    return;
  }
  MutexGuard guard(state.lock);
  if (!ensure_open()) return;
  uint64_t* shard = g_has_thread_exit_key.load(std::memory_order_relaxed) ? claim_shard() : nullptr;
  if (shard != nullptr && pthread_setspecific(g_thread_exit_key, shard) != 0) {
    release_claim(shard);
    shard = nullptr;
  }
  t_counters = shard;
  if (shard == nullptr) {
    left_without_asking = kCountsBetweenClaims;
    shard = state.shards[0];
  }
  __atomic_fetch_add(shard + index, 1, __ATOMIC_RELAXED);
}

uint32_t series_of(const char* pattern, const char* definition) {
  Counters& state = g_counters;
  MutexGuard guard(state.lock);
  if (!ensure_open()) return 0;
  // Room is kept for one "(other)" per pattern, and for the last one.
  uint32_t series = find_or_add_series(pattern, definition, kSeriesCapacity / 8);
  if (series == UINT32_MAX) series = find_or_add_series(pattern, kOther, 1);
  if (series == UINT32_MAX) series = find_or_add_series(kOther, kOther, 0);
  if (series == UINT32_MAX) {
    warn_of_space("another series");
    series = 0;
  }
  return series;
}

void names_of_series(uint32_t series, const char** pattern, const char** definition) {
  MutexGuard guard(g_counters.lock);
  const bool is_known = g_counters.series != nullptr && series < kSeriesCapacity;
  *pattern = is_known ? g_counters.series[series].pattern : "";
  *definition = is_known ? g_counters.series[series].definition : "";
}

const uint64_t* shard_at(uint32_t index) {
  return index < kMaxShards ? __atomic_load_n(&g_counters.shards[index], __ATOMIC_ACQUIRE)
                            : nullptr;
}

void note_device(uint32_t ordinal, uint32_t sm, const char* name) {
  Counters& state = g_counters;
  MutexGuard guard(state.lock);
  FileHeader* header = state.header.load(std::memory_order_relaxed);
  if (header == nullptr || ordinal >= kMaxCountedDevices) return;
  header->devices[ordinal].sm = sm;
  snprintf(header->devices[ordinal].name, sizeof header->devices[ordinal].name, "%s", name);
  if (header->device_count <= ordinal) {
    __atomic_store_n(&header->device_count, ordinal + 1, __ATOMIC_RELEASE);
  }
}

void lock_counters_for_fork() { g_counters.lock.lock(); }

void unlock_counters_after_fork(bool is_child) {
  if (is_child) start_over_in_child();
  g_counters.lock.unlock_after_fork(is_child);
}

}  // namespace fibshim
