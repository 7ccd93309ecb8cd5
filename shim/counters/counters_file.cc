#include "shim/counters/counters_file.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "shim/abi/control_format.h"
#include "shim/base/log.h"
#include "shim/base/process_file.h"
#include "shim/base/settings_in_force.h"

namespace fibshim {
namespace {

constexpr uint64_t kPageBytes = 4096;
constexpr uint64_t to_pages(uint64_t bytes) {
  return (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
}
constexpr uint64_t kControlAt = to_pages(sizeof(FileHeader));
constexpr uint64_t kStepsAt = kControlAt + to_pages(sizeof(ControlBlock));
constexpr uint64_t kShadowAt = kStepsAt + to_pages(sizeof(StepTimes) * kTimedGraphs);
constexpr uint64_t kShadowBytes = to_pages(sizeof(ShadowEntry) * kShadowCapacity);
constexpr uint64_t kSeriesAt = kShadowAt + kShadowBytes;
constexpr uint64_t kShardsAt = kSeriesAt + sizeof(SeriesEntry) * kSeriesCapacity;
constexpr uint64_t kShardBytes = uint64_t{8} * kCountersPerSeries * kSeriesCapacity;
static_assert(kShardsAt % kPageBytes == 0 && kShardBytes % kPageBytes == 0);

// Guarded by counters.cc's lock, except the atomic members.
struct File {
  std::atomic<FileHeader*> header;  // null: there is no file
  SeriesEntry* series;
  bool warned_of_space;
  uint64_t series_pages;  // pages of the series table for which space is reserved
  uint64_t shard_pages;   // pages of every shard for which space is reserved
  ProcessFile file;
};
constinit File g_file = {};

uint64_t pages_of_series(uint32_t count) {
  return to_pages(count * sizeof(SeriesEntry)) / kPageBytes;
}
uint64_t pages_of_shard(uint32_t series_count) {
  return to_pages(uint64_t{8} * kCountersPerSeries * series_count) / kPageBytes;
}

}  // namespace

FileHeader* file_header() { return g_file.header.load(std::memory_order_relaxed); }

void describe_process(FileHeader* described) {
  FileHeader& head = *described;
  head.version = kCountersVersion;
  head.header_bytes = sizeof(FileHeader);
  head.outcome_slots = kOutcomeSlots;
  head.count_kinds = kCountKinds;
  head.series_capacity = kSeriesCapacity;
  head.series_entry_bytes = sizeof(SeriesEntry);
  head.series_at = kSeriesAt;
  head.control_at = kControlAt;
  head.steps_at = kStepsAt;
  head.shadow_at = kShadowAt;
  head.shadow_capacity = kShadowCapacity;
  head.shadow_entry_bytes = sizeof(ShadowEntry);
  head.shards_at = kShardsAt;
  head.shard_stride = kShardBytes;
  head.shard_count = 1;
  head.pid = static_cast<uint64_t>(getpid());
  head.start_time = process_start_time();
  head.created_unix_ns = unix_time_ns();
  head.uid = geteuid();
  head.mode = static_cast<uint32_t>(mode());
  read_executable(head.executable, sizeof head.executable);
  read_command_line(head.command, sizeof head.command);
}

const char* create_counters_file(const FileHeader& described, const SeriesEntry* series,
                                 uint32_t series_count, void** first_shard) {
  File& state = g_file;
  if (!is_within_file_limit(kShardsAt + kShardBytes)) return "the file would exceed RLIMIT_FSIZE";
  const char* reason = nullptr;
  const int file = create_process_file(stats_dir(), described.start_time, kCountersSuffix, 0644,
                                       &state.file, &reason);
  if (file < 0) return reason;
  state.series_pages = pages_of_series(series_count);
  state.shard_pages = pages_of_shard(series_count);
  bool is_fine = ftruncate(file, static_cast<off_t>(kShardsAt + kShardBytes)) == 0 &&
                 reserve_file_range(file, 0, kShadowAt) &&
                 reserve_file_range(file, kSeriesAt, state.series_pages * kPageBytes) &&
                 reserve_file_range(file, kShardsAt, state.shard_pages * kPageBytes);
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
    (void)unlink(state.file.path);
    return strerror(failure);
  }
  state.series = reinterpret_cast<SeriesEntry*>(static_cast<char*>(head) + kSeriesAt);
  memcpy(state.series, series, series_count * sizeof(SeriesEntry));
  auto* const header = static_cast<FileHeader*>(head);
  *header = described;
  header->series_count = series_count;
  // The magic is written last, so that no reader accepts an unfinished header.
  __atomic_thread_fence(__ATOMIC_RELEASE);
  memcpy(header->magic, kCountersMagic, sizeof header->magic);
  *first_shard = shard;
  state.header.store(header, std::memory_order_release);
  return nullptr;
}

void forget_counters_file() { g_file.header.store(nullptr, std::memory_order_relaxed); }

void* map_private_shard() {
  return mmap(nullptr, kShardBytes, PROT_READ | PROT_WRITE,
              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
}

void warn_of_space(const char* what) {
  if (g_file.warned_of_space) return;
  g_file.warned_of_space = true;
  log_message(LogLevel::warn, "%s: no space for %s; counts go on, less finely", g_file.file.path,
              what);
}

void* map_shard(uint32_t index) {
  const int file = reopen_process_file(g_file.file);
  if (file < 0) return MAP_FAILED;
  const uint64_t at = kShardsAt + index * kShardBytes;
  void* shard = MAP_FAILED;
  if (is_within_file_limit(at + kShardBytes) &&
      ftruncate(file, static_cast<off_t>(at + kShardBytes)) == 0 &&
      reserve_file_range(file, at, g_file.shard_pages * kPageBytes)) {
    shard = mmap(nullptr, kShardBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file,
                 static_cast<off_t>(at));
  }
  close(file);
  return shard;
}

bool reserve_series(uint32_t series, uint32_t shard_count) {
  File& state = g_file;
  if (file_header() == nullptr) return true;
  const uint64_t series_pages = pages_of_series(series + 1);
  const uint64_t shard_pages = pages_of_shard(series + 1);
  if (series_pages <= state.series_pages && shard_pages <= state.shard_pages) return true;
  const int file = reopen_process_file(state.file);
  if (file < 0) return false;
  bool is_fine = reserve_file_range(file, kSeriesAt, series_pages * kPageBytes);
  for (uint32_t i = 0; is_fine && i < shard_count; ++i) {
    is_fine = reserve_file_range(file, kShardsAt + i * kShardBytes, shard_pages * kPageBytes);
  }
  close(file);
  if (is_fine) {
    state.series_pages = series_pages;
    state.shard_pages = shard_pages;
  }
  return is_fine;
}

void write_series(uint32_t series, const SeriesEntry& entry) {
  if (FileHeader* const file = file_header()) {
    g_file.series[series] = entry;
    __atomic_store_n(&file->series_count, series + 1, __ATOMIC_RELEASE);
  }
}

SeriesEntry* series_in_file(uint32_t series) {
  return file_header() == nullptr ? nullptr : g_file.series + series;
}

ShadowEntry* reserve_shadow_space(std::atomic<uint32_t>** count) {
  FileHeader* const header = file_header();
  if (header == nullptr) return nullptr;
  const int file = reopen_process_file(g_file.file);
  const bool is_fine = file >= 0 && reserve_file_range(file, kShadowAt, kShadowBytes);
  if (file >= 0) close(file);
  if (!is_fine) {
    warn_of_space("what shadow checks find");
    return nullptr;
  }
  *count = reinterpret_cast<std::atomic<uint32_t>*>(&header->shadow_count);
  return reinterpret_cast<ShadowEntry*>(reinterpret_cast<char*>(header) + kShadowAt);
}

void publish_mode(Mode mode) {
  FileHeader* const file = g_file.header.load(std::memory_order_acquire);
  if (file != nullptr) __atomic_store_n(&file->mode, static_cast<uint32_t>(mode), __ATOMIC_RELAXED);
}

ControlBlock* own_control() {
  FileHeader* const file = g_file.header.load(std::memory_order_acquire);
  return file == nullptr
             ? nullptr
             : reinterpret_cast<ControlBlock*>(reinterpret_cast<char*>(file) + kControlAt);
}

uint64_t control_offset() { return kControlAt; }

StepTimes* own_step_times() {
  FileHeader* const file = g_file.header.load(std::memory_order_acquire);
  return file == nullptr ? nullptr
                         : reinterpret_cast<StepTimes*>(reinterpret_cast<char*>(file) + kStepsAt);
}

}  // namespace fibshim
