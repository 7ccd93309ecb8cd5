#include "shim/record/recording_file.h"

#include <errno.h>
#include <stdio.h>
#include <unistd.h>

namespace fibshim {

Recorder g_recorder;

namespace {

constexpr uint64_t kGrowthBytes = 64 * 1024;

// Maps a file of `limit` bytes and reserves disk space for the first kGrowthBytes. Nothing beyond
// them is touched until the file has grown. Returns MAP_FAILED on failure, and `reason` says why.
void* map_new_file(int file, uint64_t limit, const char** reason) {
  void* base = MAP_FAILED;
  if (!is_within_file_limit(kGrowthBytes)) {
    *reason = "the file would exceed RLIMIT_FSIZE";
  } else if (!reserve_file_range(file, 0, kGrowthBytes) ||
             (base = mmap(nullptr, limit, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0)) ==
                 MAP_FAILED) {
    *reason = strerror(errno);
  }
  return base;
}

// Requires the lock. Returns null, or why there is no file.
const char* create_file(const RecordingSettings& settings) {
  Recorder& state = g_recorder;
  const uint64_t start_time = process_start_time();
  const char* reason = nullptr;
  // Only this user may read it, wherever it is: it holds the process's addresses and values.
  const int file = create_process_file(settings.folder, start_time, kRecordingSuffix, 0600,
                                       &state.file, &reason);
  if (file < 0) return reason;
  static_assert(sizeof(RecordingHeader) < kGrowthBytes && kGrowthBytes <= kSmallestBytes);
  void* const base = map_new_file(file, settings.limit_bytes, &reason);
  close(file);
  if (base != MAP_FAILED && !state.index.create(settings.limit_bytes / sizeof(RecordedGeometry))) {
    munmap(base, settings.limit_bytes);
    reason = strerror(ENOMEM);
  }
  if (reason != nullptr) {
    (void)unlink(state.file.path);
    return reason;
  }
  state.limit = settings.limit_bytes;
  state.reserved_bytes = kGrowthBytes;
  auto* header = static_cast<RecordingHeader*>(base);
  header->version = kRecordingVersion;
  header->header_bytes = sizeof(RecordingHeader);
  header->used_bytes = sizeof(RecordingHeader);
  header->limit_bytes = state.limit;
  header->pid = static_cast<uint64_t>(getpid());
  header->start_time = start_time;
  header->created_unix_ns = unix_time_ns();
  header->uid = geteuid();
  header->mode = static_cast<uint32_t>(settings.mode);
  header->timed_every = kTimedEvery;
  read_executable(header->executable, sizeof header->executable);
  read_command_line(header->command, sizeof header->command);
  snprintf(header->config, sizeof header->config, "%s", state.host->config);
  // The magic is written last: a reader ignores a header without it.
  __atomic_thread_fence(__ATOMIC_RELEASE);
  memcpy(header->magic, kRecordingMagic, sizeof header->magic);
  state.base.store(static_cast<char*>(base), std::memory_order_release);
  return nullptr;
}

// Requires the lock. Reserves disk space for the file up to `end`, if possible.
void grow_file(uint64_t end) {
  Recorder& state = g_recorder;
  uint64_t grown = (end + kGrowthBytes - 1) / kGrowthBytes * kGrowthBytes;
  if (grown > state.limit) grown = state.limit;
  const int file = is_within_file_limit(grown) ? reopen_process_file(state.file) : -1;
  if (file < 0) return;
  if (reserve_file_range(file, state.reserved_bytes, grown - state.reserved_bytes)) {
    state.reserved_bytes = grown;
  }
  close(file);
}

}  // namespace

char* ensure_file() {
  Recorder& state = g_recorder;
  char* const base = state.base.load(std::memory_order_relaxed);
  if (base != nullptr || state.has_failed) return base;
  static RecordingSettings settings;  // too large for some threads' stacks
  state.host->read_settings(&settings);
  if (const char* reason = create_file(settings)) {
    state.has_failed = true;
    state.host->log(LogLevel::warn, "FIBSHIM_RECORD %s: cannot record there: %s", settings.folder,
                    reason);
  }
  return state.base.load(std::memory_order_relaxed);
}

RecordedBlock* new_block(RecordedKind kind, uint64_t bytes) {
  Recorder& state = g_recorder;
  char* const base = state.base.load(std::memory_order_relaxed);
  const uint64_t at = header_at(base)->used_bytes;
  const uint64_t end = at + bytes;
  if (end > state.reserved_bytes && end <= state.limit) grow_file(end);
  if (end > state.reserved_bytes) {
    if (!state.is_full.exchange(true, std::memory_order_relaxed)) {
      state.host->log(LogLevel::warn,
                      "%s: the recording is full (%s); kernels and geometries in it are counted "
                      "on, new ones only in one sum",
                      state.file.path,
                      end > state.limit ? "FIBSHIM_RECORD_LIMIT" : "no space, or the file is gone");
    }
    return nullptr;
  }
  auto* block = reinterpret_cast<RecordedBlock*>(base + at);
  *block = {kind, static_cast<uint32_t>(bytes)};
  return block;
}

void publish(RecordedBlock* block, Index::Slot* slot) {
  RecordingHeader* const header = header_at(g_recorder.base.load(std::memory_order_relaxed));
  __atomic_store_n(&header->used_bytes, header->used_bytes + block->bytes, __ATOMIC_RELEASE);
  slot->store(block, std::memory_order_release);
}

void leave_file_to_parent() {
  Recorder& state = g_recorder;
  // It stays mapped, since handles point into it until they are launched in this process.
  state.base.store(nullptr, std::memory_order_relaxed);
  state.is_full.store(false, std::memory_order_relaxed);
  state.has_failed = false;
}

}  // namespace fibshim
