#include "shim/record/recorder.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "shim/graphs/captures.h"
#include "shim/registry/decisions.h"
#include "shim/registry/image_identity.h"
#include "shim/registry/images.h"
#include "shim/base/log.h"
#include "shim/base/mutex.h"
#include "shim/base/process_file.h"
#include "shim/base/settings_in_force.h"

namespace fibshim {

constinit std::atomic<bool> g_is_recording{false};

namespace {

constexpr uint64_t kGrowthBytes = 64 * 1024;
constexpr uint32_t kLongestProbe = 64;  // slots of an index that are looked at

// What a kernel's handle is marked with when the file had no room for the kernel.
RecordedKernel g_dropped_kernel;

// Blocks of the file by their key's hash: open addressing of a fixed size, read without a lock. A slot
// goes from null to a block once and stays.
template <class Block>
class Index {
 public:
  // Room for at least that many; false: no memory.
  bool create(uint64_t block_count) {
    uint64_t capacity = 1024;
    while (capacity < block_count * 2) capacity *= 2;
    void* const memory = mmap(nullptr, capacity * sizeof(Slot), PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) return false;
    bytes_ = capacity * sizeof(Slot);
    mask_ = capacity - 1;
    slots_ = static_cast<Slot*>(memory);
    return true;
  }

  void destroy() {
    if (slots_ != nullptr) munmap(slots_, bytes_);
    slots_ = nullptr;
  }

  template <class IsIt>
  Block* find(uint64_t hash, const IsIt& is_it) const {
    for (uint32_t i = 0; i < kLongestProbe; ++i) {
      Block* const block = slots_[(hash + i) & mask_].load(std::memory_order_acquire);
      if (block == nullptr || is_it(*block)) return block;
    }
    return nullptr;
  }

  // Holding the recorder's lock. False: too many of nearly this hash.
  bool has_room(uint64_t hash) const { return free_slot(hash) != nullptr; }
  void insert(uint64_t hash, Block* block) {
    free_slot(hash)->store(block, std::memory_order_release);
  }

 private:
  using Slot = std::atomic<Block*>;
  Slot* free_slot(uint64_t hash) const {
    for (uint32_t i = 0; i < kLongestProbe; ++i) {
      Slot& slot = slots_[(hash + i) & mask_];
      if (slot.load(std::memory_order_relaxed) == nullptr) return &slot;
    }
    return nullptr;
  }

  Slot* slots_ = nullptr;
  uint64_t mask_ = 0;
  size_t bytes_ = 0;
};

// Everything below is guarded by `lock`, but for what is atomic and the indexes, which are read without
// it once `base` is seen.
struct Recorder {
  Mutex lock;
  std::atomic<char*> base;  // where the file is mapped; null until the first launch
  uint64_t limit;
  uint64_t reserved_bytes;  // of the file, with space
  bool has_failed;          // there is no file and will be none
  std::atomic<bool> is_full;
  ProcessFile file;
  Index<RecordedKernel> kernels;
  Index<RecordedGeometry> geometries;
  char config[sizeof RecordingHeader::config];
};
Recorder g_recorder;

RecordingHeader* header_at(char* base) { return reinterpret_cast<RecordingHeader*>(base); }

void add(uint64_t* counter, uint64_t by = 1) { __atomic_fetch_add(counter, by, __ATOMIC_RELAXED); }

RecordedParam* params_of(RecordedKernel* kernel) {
  return reinterpret_cast<RecordedParam*>(kernel + 1);
}
RecordedValue* values_of(RecordedKernel* kernel) {
  return reinterpret_cast<RecordedValue*>(params_of(kernel) + kernel->param_count);
}
const char* symbol_of(RecordedKernel* kernel) {
  return reinterpret_cast<const char*>(values_of(kernel) + kernel->value_count);
}

uint64_t mix(uint64_t hash, uint64_t value) {
  hash = (hash ^ value) * kHashFactor;
  return hash ^ (hash >> 32);
}

// Holding the lock. Null, or why there is no file.
const char* create_file() {
  Recorder& state = g_recorder;
  char folder[PATH_MAX];
  expand_path(record_folder(), folder, sizeof folder);
  const uint64_t start_time = process_start_time();
  const char* reason = nullptr;
  // Addresses and values of the process' own: not for others to read, wherever the folder lies.
  const int file =
      create_process_file(folder, start_time, kRecordingSuffix, 0600, &state.file, &reason);
  if (file < 0) return reason;
  state.limit = record_limit();
  state.reserved_bytes = kGrowthBytes;
  static_assert(sizeof(RecordingHeader) < kGrowthBytes && kGrowthBytes <= kSmallestRecordLimit);
  void* base = MAP_FAILED;
  const bool has_space =
      is_within_file_limit(kGrowthBytes) && reserve_file_range(file, 0, kGrowthBytes);
  if (has_space) {
    // Beyond the file's end nothing is touched until the file has grown.
    base = mmap(nullptr, state.limit, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  }
  reason = has_space || errno != 0 ? strerror(errno) : "the file would exceed RLIMIT_FSIZE";
  close(file);
  const bool has_indexes = base != MAP_FAILED &&
                           state.kernels.create(state.limit / (sizeof(RecordedKernel) + 64)) &&
                           state.geometries.create(state.limit / sizeof(RecordedGeometry));
  if (!has_indexes) {
    if (base != MAP_FAILED) munmap(base, state.limit);
    state.kernels.destroy();
    state.geometries.destroy();
    (void)unlink(state.file.path);
    return base == MAP_FAILED ? reason : strerror(ENOMEM);
  }
  auto* header = static_cast<RecordingHeader*>(base);
  header->version = kRecordingVersion;
  header->header_bytes = sizeof(RecordingHeader);
  header->used_bytes = sizeof(RecordingHeader);
  header->limit_bytes = state.limit;
  header->pid = static_cast<uint64_t>(getpid());
  header->start_time = start_time;
  header->created_unix_ns = unix_time_ns();
  header->uid = geteuid();
  header->mode = static_cast<uint32_t>(mode());
  header->timed_every = kTimedEvery;
  read_executable(header->executable, sizeof header->executable);
  read_command_line(header->command, sizeof header->command);
  memcpy(header->config, state.config, sizeof header->config);
  // The magic comes last: a reader takes no half-made header for a file.
  __atomic_thread_fence(__ATOMIC_RELEASE);
  memcpy(header->magic, kRecordingMagic, sizeof header->magic);
  state.base.store(static_cast<char*>(base), std::memory_order_release);
  return nullptr;
}

// Holding the lock. Null: there is no recording.
char* ensure_file() {
  Recorder& state = g_recorder;
  char* const base = state.base.load(std::memory_order_relaxed);
  if (base != nullptr || state.has_failed) return base;
  if (const char* reason = create_file()) {
    state.has_failed = true;
    log_message(LogLevel::warn, "FIBSHIM_RECORD %s: cannot record there: %s", record_folder(),
                reason);
  }
  return state.base.load(std::memory_order_relaxed);
}

// Holding the lock. Room for a block, with space in the file, not yet published. Null: none is left.
template <class Block>
Block* new_block(RecordedKind kind, uint64_t bytes) {
  Recorder& state = g_recorder;
  char* const base = state.base.load(std::memory_order_relaxed);
  const uint64_t at = header_at(base)->used_bytes;
  const uint64_t end = at + bytes;
  if (end > state.reserved_bytes && end <= state.limit) {
    uint64_t grown = (end + kGrowthBytes - 1) / kGrowthBytes * kGrowthBytes;
    if (grown > state.limit) grown = state.limit;
    const int file = is_within_file_limit(grown) ? reopen_process_file(state.file) : -1;
    if (file >= 0) {
      if (reserve_file_range(file, state.reserved_bytes, grown - state.reserved_bytes)) {
        state.reserved_bytes = grown;
      }
      close(file);
    }
  }
  if (end > state.reserved_bytes) {
    if (!state.is_full.exchange(true, std::memory_order_relaxed)) {
      log_message(LogLevel::warn,
                  "%s: the recording is full (%s); what is in it is counted on, new kernels and "
                  "geometries together",
                  state.file.path,
                  end > state.limit ? "FIBSHIM_RECORD_LIMIT" : "no space, or the file is gone");
    }
    return nullptr;
  }
  auto* block = reinterpret_cast<Block*>(base + at);
  block->block = {kind, static_cast<uint32_t>(bytes)};
  return block;
}

// Holding the lock. Readers of the file find the block from here on.
void publish(const RecordedBlock& block) {
  RecordingHeader* const header = header_at(g_recorder.base.load(std::memory_order_relaxed));
  __atomic_store_n(&header->used_bytes, header->used_bytes + block.bytes, __ATOMIC_RELEASE);
}

struct KernelKey {
  const char* symbol;
  uint32_t symbol_bytes;  // with its NUL, cut to fit
  ImageIdentity image;
  uint32_t sm;  // of the GPU that its first launch goes to
  const Record* record;
};

bool is_same(RecordedKernel* kernel, const KernelKey& key) {
  if (kernel->image_high != key.image.hash.high || kernel->image_low != key.image.hash.low ||
      kernel->symbol_bytes != key.symbol_bytes || kernel->param_count != key.record->param_count ||
      memcmp(symbol_of(kernel), key.symbol, key.symbol_bytes - 1) != 0) {
    return false;
  }
  for (uint32_t i = 0; i < kernel->param_count; ++i) {
    const Param& param = key.record->params[i];
    if (params_of(kernel)[i].offset != param.offset || params_of(kernel)[i].size != param.size) {
      return false;
    }
  }
  return true;
}

bool has_values(uint32_t size) { return size == 1 || size == 2 || size == 4 || size == 8; }

// Holding the lock. Null: no room.
RecordedKernel* add_kernel(const KernelKey& key) {
  const Record& record = *key.record;
  uint32_t value_count = 0;
  for (uint32_t i = 0; i < record.param_count; ++i) {
    if (has_values(record.params[i].size)) value_count += kRecordedValues;
  }
  const uint64_t bytes = (sizeof(RecordedKernel) + record.param_count * sizeof(RecordedParam) +
                          value_count * sizeof(RecordedValue) + key.symbol_bytes + 7) /
                         8 * 8;
  auto* kernel = new_block<RecordedKernel>(RecordedKind::kernel, bytes);
  if (kernel == nullptr) return nullptr;
  kernel->image_high = key.image.hash.high;
  kernel->image_low = key.image.hash.low;
  kernel->image_kind = key.image.kind;
  kernel->sm = key.sm;
  kernel->param_count = record.param_count;
  kernel->value_count = value_count;
  kernel->symbol_bytes = key.symbol_bytes;
  kernel->has_params = record.has_params;
  uint32_t first_value = 0;
  for (uint32_t i = 0; i < record.param_count; ++i) {
    RecordedParam& param = params_of(kernel)[i];
    param.offset = record.params[i].offset;
    param.size = record.params[i].size;
    param.first_value = UINT32_MAX;
    if (!has_values(param.size)) continue;
    param.first_value = first_value;
    first_value += kRecordedValues;
  }
  memcpy(const_cast<char*>(symbol_of(kernel)), key.symbol, key.symbol_bytes - 1);
  publish(kernel->block);
  return kernel;
}

// The kernel of a handle that is launched for the first time. Null: there is no recording.
RecordedKernel* find_or_add_kernel(const Record& record) {
  KernelKey key = {};
  key.symbol = record.symbol;
  const size_t symbol_bytes = strlen(record.symbol) + 1;
  key.symbol_bytes = symbol_bytes > kRecordedSymbolBytes ? kRecordedSymbolBytes
                                                         : static_cast<uint32_t>(symbol_bytes);
  key.record = &record;
  // Both may call the driver, or read an image.
  find_image_of(record, &key.image);
  key.sm = sm_of_device_class(current_device_class());
  uint64_t hash = mix(record.name_hash, key.image.hash.low);
  for (uint32_t i = 0; i < record.param_count; ++i) hash = mix(hash, record.params[i].size);

  MutexGuard guard(g_recorder.lock);
  char* const base = ensure_file();
  if (base == nullptr) return nullptr;
  RecordedKernel* kernel =
      g_recorder.kernels.find(hash, [&](RecordedKernel& one) { return is_same(&one, key); });
  if (kernel != nullptr) return kernel;
  kernel = g_recorder.kernels.has_room(hash) ? add_kernel(key) : nullptr;
  if (kernel == nullptr) {
    add(&header_at(base)->dropped_kernels);
    return &g_dropped_kernel;
  }
  g_recorder.kernels.insert(hash, kernel);
  return kernel;
}

// Null: nothing is recorded of this handle.
RecordedKernel* kernel_of(const Record& record) {
  std::atomic<RecordedKernel*>& known = recorded_kernel_of(record);
  RecordedKernel* kernel = known.load(std::memory_order_acquire);
  if (__builtin_expect(kernel != nullptr, 1)) {
    // A forked child has a file of its own; the parent's is still mapped.
    const char* const base = g_recorder.base.load(std::memory_order_acquire);
    const auto* const at = reinterpret_cast<const char*>(kernel);
    const bool is_here = at > base && at < base + g_recorder.limit;
    if (base != nullptr && (is_here || kernel == &g_dropped_kernel)) return kernel;
  }
  kernel = find_or_add_kernel(record);
  if (kernel != nullptr) known.store(kernel, std::memory_order_release);
  return kernel;
}

RecordedGeometry* find_or_add_geometry(RecordedKernel* kernel, const uint32_t* geometry) {
  const uint64_t kernel_at = static_cast<uint64_t>(reinterpret_cast<char*>(kernel) -
                                                   g_recorder.base.load(std::memory_order_relaxed));
  uint64_t hash = mix(0, kernel_at);
  for (uint32_t i = 0; i < kGeometryCount; ++i) hash = mix(hash, geometry[i]);
  const auto is_it = [&](const RecordedGeometry& one) {
    return one.kernel_at == kernel_at && memcmp(one.geometry, geometry, sizeof one.geometry) == 0;
  };
  RecordedGeometry* found = g_recorder.geometries.find(hash, is_it);
  if (__builtin_expect(found != nullptr, 1)) return found;
  if (g_recorder.is_full.load(std::memory_order_relaxed)) return nullptr;
  MutexGuard guard(g_recorder.lock);
  found = g_recorder.geometries.find(hash, is_it);
  if (found != nullptr) return found;
  if (kernel->geometry_count >= kRecordedGeometries || !g_recorder.geometries.has_room(hash)) {
    return nullptr;
  }
  found = new_block<RecordedGeometry>(RecordedKind::geometry, sizeof(RecordedGeometry));
  if (found == nullptr) return nullptr;
  found->kernel_at = kernel_at;
  memcpy(found->geometry, geometry, sizeof found->geometry);
  publish(found->block);
  ++kernel->geometry_count;
  g_recorder.geometries.insert(hash, found);
  return found;
}
static_assert(kRecordedGeometryCount == kGeometryCount);

uint64_t read_value(const void* at, uint32_t size) {
  uint64_t value = 0;
  __builtin_memcpy(&value, at, size);
  return value;
}

// The value's slot, or null. `free` is the first one that has no value yet, if one may be taken.
RecordedValue* find_value(RecordedValue* values, uint64_t value, bool is_address,
                          RecordedValue** free) {
  *free = nullptr;
  uint32_t addresses = 0;
  for (uint32_t i = 0; i < kRecordedValues; ++i) {
    RecordedValue& one = values[i];
    if (__atomic_load_n(&one.count, __ATOMIC_ACQUIRE) == 0) {
      if (!is_address || addresses < kRecordedAddresses) *free = &one;
      return nullptr;
    }
    if (one.value == value) return &one;
    addresses += is_like_address(one.value);
  }
  return nullptr;
}

void record_value(RecordedParam* param, RecordedValue* values, uint64_t value) {
  if ((__atomic_load_n(&param->bits, __ATOMIC_RELAXED) & value) != value) {
    __atomic_fetch_or(&param->bits, value, __ATOMIC_RELAXED);
  }
  const bool is_address = param->size == 8 && is_like_address(value);
  RecordedValue* free = nullptr;
  RecordedValue* found = find_value(values, value, is_address, &free);
  if (found == nullptr && free != nullptr) {
    MutexGuard guard(g_recorder.lock);
    found = find_value(values, value, is_address, &free);
    if (found == nullptr && free != nullptr) {
      free->value = value;
      __atomic_store_n(&free->count, 1, __ATOMIC_RELEASE);
      return;
    }
  }
  add(found == nullptr ? &param->others : &found->count);
}

void record_values(RecordedKernel* kernel, void* const* arguments) {
  if (arguments == nullptr) return;
  RecordedParam* const params = params_of(kernel);
  RecordedValue* const values = values_of(kernel);
  for (uint32_t i = 0; i < kernel->param_count; ++i) {
    if (params[i].first_value == UINT32_MAX || arguments[i] == nullptr) continue;
    record_value(&params[i], values + params[i].first_value,
                 read_value(arguments[i], params[i].size));
  }
}

bool is_to_be_timed(uint64_t launches_before) {
  return launches_before != 0 && (launches_before < 4 || launches_before % kTimedEvery == 0);
}

void count_unknown_launch() {
  MutexGuard guard(g_recorder.lock);
  char* const base = ensure_file();
  if (base != nullptr) add(&header_at(base)->unknown_launches);
}

void count_dropped_launch() {
  add(&header_at(g_recorder.base.load(std::memory_order_relaxed))->dropped_launches);
}

void count_launch(RecordedKernel* kernel, RecordedGeometry* geometry, bool is_node,
                  Outcome outcome) {
  add(is_node ? &kernel->nodes : &kernel->launches);
  if (geometry != nullptr) {
    add(is_node ? &geometry->nodes : &geometry->launches);
  } else {
    add(is_node ? &kernel->other_nodes : &kernel->other_launches);
  }
  static_assert(kOutcomeCount <= kRecordedOutcomeSlots);
  add(&kernel->outcomes[static_cast<uint32_t>(outcome)]);
}

}  // namespace

void start_recording(const Snapshot& snapshot) {
  snprintf(g_recorder.config, sizeof g_recorder.config, "%s", snapshot.text(snapshot.root));
  g_slow_reasons.fetch_add(1, std::memory_order_relaxed);
  g_is_recording.store(true, std::memory_order_relaxed);
}

void LaunchRecording::begin(const LaunchRequest& request, const LaunchPlan& plan) {
  plan_ = &plan;
  if (plan.record == nullptr) return;
  kernel_ = kernel_of(*plan.record);
  if (kernel_ == nullptr || kernel_ == &g_dropped_kernel) return;
  geometry_ = find_or_add_geometry(kernel_, request.view.geometry);
  is_node_ = g_active_captures.load(std::memory_order_relaxed) != 0 &&
             is_capturing(request.stream, request.is_per_thread_stream);
  if (is_node_) return;
  collect_times();
  if (is_to_be_timed(__atomic_load_n(&kernel_->launches, __ATOMIC_RELAXED))) {
    timer_.begin(request.stream, request.is_per_thread_stream);
  }
}

void LaunchRecording::finish(CUresult result) {
  if (result != CUDA_SUCCESS) {
    timer_.cancel();
    if (kernel_ != nullptr && kernel_ != &g_dropped_kernel) add(&kernel_->failed);
    return;
  }
  if (plan_->record == nullptr) return count_unknown_launch();
  if (kernel_ == nullptr) return;
  if (kernel_ == &g_dropped_kernel) return count_dropped_launch();
  timer_.end(geometry_ != nullptr ? &geometry_->times : &kernel_->other_times);
  count_launch(kernel_, geometry_, is_node_, plan_->outcome);
  record_values(kernel_, plan_->arguments);
}

void record_node(const NodeParams& original, const LaunchPlan& plan) {
  if (!is_recording()) return;
  if (plan.record == nullptr) return count_unknown_launch();
  RecordedKernel* const kernel = kernel_of(*plan.record);
  if (kernel == nullptr) return;
  if (kernel == &g_dropped_kernel) return count_dropped_launch();
  const uint32_t geometry[kGeometryCount] = {original.gridDimX,
                                             original.gridDimY,
                                             original.gridDimZ,
                                             original.blockDimX,
                                             original.blockDimY,
                                             original.blockDimZ,
                                             1,
                                             1,
                                             1,
                                             original.sharedMemBytes};
  count_launch(kernel, find_or_add_geometry(kernel, geometry), true, plan.outcome);
  record_values(kernel, plan.arguments);
}

void record_bare_launch(const Record& record) {
  if (!is_recording()) return;
  RecordedKernel* const kernel = kernel_of(record);
  if (kernel == nullptr) return;
  if (kernel == &g_dropped_kernel) return count_dropped_launch();
  count_launch(kernel, nullptr, false,
               record.candidate_count == 0 ? Outcome::untracked : Outcome::fallback_refused);
}

void lock_recorder_for_fork() { g_recorder.lock.lock(); }

void unlock_recorder_after_fork(bool is_child) {
  Recorder& state = g_recorder;
  if (is_child) {
    // The parent's file stays mapped: handles point into it until they are launched here.
    state.base.store(nullptr, std::memory_order_relaxed);
    state.is_full.store(false, std::memory_order_relaxed);
    state.has_failed = false;
    forget_events_in_child();
  }
  state.lock.unlock_after_fork(is_child);
}

}  // namespace fibshim
