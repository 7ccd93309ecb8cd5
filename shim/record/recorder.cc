// libfibrecord.so: writes every launch of the process into a file (recording_format.h).
//
// A new kernel, geometry or value is added under a mutex; a known one is counted with atomic
// additions. When the file is full, known ones are still counted, and all others together. Each
// process writes its own file; a forked child begins one at its first launch. Nothing here waits
// for the GPU (except tensor_capture.cc, if the driver refuses a host function), and nothing is
// added to a stream that captures.
#include "shim/record/launch_timer.h"
#include "shim/record/recording_file.h"
#include "shim/record/run_tracer.h"
#include "shim/record/tensor_capture.h"

namespace fibshim {
namespace {

// Marks a handle for whose kernel the file had no room.
RecordedKernel g_dropped_kernel;

RecordedParam* params_of(RecordedKernel* kernel) {
  return reinterpret_cast<RecordedParam*>(kernel + 1);
}
RecordedParam* words_of(RecordedKernel* kernel) { return params_of(kernel) + kernel->param_count; }
RecordedValue* values_of(RecordedKernel* kernel) {
  return reinterpret_cast<RecordedValue*>(words_of(kernel) + kernel->word_count);
}
char* symbol_of(RecordedKernel* kernel) {
  return reinterpret_cast<char*>(values_of(kernel) + kernel->value_count);
}

struct KernelKey {
  const LaunchToRecord* launch;
  uint32_t symbol_bytes;  // with its NUL, cut to fit
  KernelOrigin origin;
};

uint64_t hash_of(const KernelKey& key) {
  uint64_t hash =
      mix(key.origin.image.file.low, hash_text(key.launch->symbol, key.symbol_bytes - 1));
  for (uint32_t i = 0; i < key.launch->param_count; ++i) {
    hash = mix(hash, key.launch->params[i].size);
  }
  return hash;
}

bool is_same(RecordedKernel* kernel, const KernelKey& key) {
  if (kernel->image_high != key.origin.image.file.high ||
      kernel->image_low != key.origin.image.file.low || kernel->symbol_bytes != key.symbol_bytes ||
      kernel->param_count != key.launch->param_count ||
      memcmp(symbol_of(kernel), key.launch->symbol, key.symbol_bytes - 1) != 0) {
    return false;
  }
  for (uint32_t i = 0; i < kernel->param_count; ++i) {
    const Param& param = key.launch->params[i];
    if (params_of(kernel)[i].offset != param.offset || params_of(kernel)[i].size != param.size) {
      return false;
    }
  }
  return true;
}

// Calls visit(offset in the packed buffer, size) for each word of the structs that is recorded.
template <class Visit>
void for_each_word(const LaunchToRecord& launch, const Visit& visit) {
  uint32_t left = kRecordedWords;
  for (uint32_t i = 0; i < launch.param_count; ++i) {
    const Param& param = launch.params[i];
    if (has_recorded_values(param.size)) continue;
    for (uint32_t at = 0; at < param.size && left != 0; --left) {
      const uint32_t size = recorded_word_size(param.size - at);
      visit(param.offset + at, size);
      at += size;
    }
  }
}

// Requires the lock. Null: no room.
RecordedKernel* add_kernel(const KernelKey& key, Index::Slot* slot) {
  const LaunchToRecord& launch = *key.launch;
  uint32_t word_count = 0;
  for_each_word(launch, [&](uint32_t, uint32_t) { ++word_count; });
  uint32_t value_count = word_count * kRecordedValues;
  for (uint32_t i = 0; i < launch.param_count; ++i) {
    if (has_recorded_values(launch.params[i].size)) value_count += kRecordedValues;
  }
  const uint64_t bytes =
      (sizeof(RecordedKernel) + (launch.param_count + word_count) * sizeof(RecordedParam) +
       value_count * sizeof(RecordedValue) + key.symbol_bytes + 7) /
      8 * 8;
  auto* kernel = slot == nullptr ? nullptr : new_block<RecordedKernel>(RecordedKind::kernel, bytes);
  if (kernel == nullptr) return nullptr;
  kernel->image_high = key.origin.image.file.high;
  kernel->image_low = key.origin.image.file.low;
  kernel->code_high = key.origin.image.code.high;
  kernel->code_low = key.origin.image.code.low;
  kernel->image_kind = key.origin.image_kind;
  kernel->sm = key.origin.sm;
  kernel->param_count = launch.param_count;
  kernel->word_count = word_count;
  kernel->value_count = value_count;
  kernel->symbol_bytes = key.symbol_bytes;
  kernel->has_params = launch.has_params;
  uint32_t first_value = 0;
  RecordedParam* next = params_of(kernel);
  const auto append = [&](uint32_t offset, uint32_t size) {
    const bool has_values = has_recorded_values(size);
    *next++ = {offset, size, has_values ? first_value : UINT32_MAX, {}, 0, 0};
    if (has_values) first_value += kRecordedValues;
  };
  for (uint32_t i = 0; i < launch.param_count; ++i) {
    append(launch.params[i].offset, launch.params[i].size);
  }
  for_each_word(launch, append);
  memcpy(symbol_of(kernel), launch.symbol, key.symbol_bytes - 1);
  publish(&kernel->block, slot);
  return kernel;
}

// Called for the first launch of a handle. Null: there is no recording.
RecordedKernel* find_or_add_kernel(const LaunchToRecord& launch) {
  KernelKey key = {};
  key.launch = &launch;
  key.symbol_bytes = static_cast<uint32_t>(strnlen(launch.symbol, kRecordedSymbolBytes - 1) + 1);
  g_recorder.host->find_origin(launch.record, &key.origin);
  const uint64_t hash = hash_of(key);

  MutexGuard guard(g_recorder.lock);
  char* const base = ensure_file();
  if (base == nullptr) return nullptr;
  auto* kernel = g_recorder.index.find<RecordedKernel>(
      RecordedKind::kernel, hash, [&](RecordedKernel* one) { return is_same(one, key); });
  if (kernel == nullptr) kernel = add_kernel(key, g_recorder.index.find_free(hash));
  if (kernel != nullptr) return kernel;
  add(&header_at(base)->dropped_kernels);
  return &g_dropped_kernel;
}

// Null: there is no recording.
RecordedKernel* kernel_of(const LaunchToRecord& launch) {
  RecordedKernel* kernel = launch.known_kernel->load(std::memory_order_acquire);
  if (__builtin_expect(kernel != nullptr, 1)) {
    // A forked child has its own file; the parent's is still mapped.
    const char* const base = g_recorder.base.load(std::memory_order_acquire);
    const auto* const at = reinterpret_cast<const char*>(kernel);
    const bool is_here = at > base && at < base + g_recorder.limit;
    if (base != nullptr && (is_here || kernel == &g_dropped_kernel)) return kernel;
  }
  kernel = find_or_add_kernel(launch);
  if (kernel != nullptr) launch.known_kernel->store(kernel, std::memory_order_release);
  return kernel;
}

// Null: no room.
RecordedGeometry* find_or_add_geometry(RecordedKernel* kernel, const uint32_t* geometry) {
  const uint64_t kernel_at = static_cast<uint64_t>(reinterpret_cast<char*>(kernel) -
                                                   g_recorder.base.load(std::memory_order_relaxed));
  uint64_t hash = mix(0, kernel_at);
  for (uint32_t i = 0; i < kRecordedGeometryCount; ++i) hash = mix(hash, geometry[i]);
  const auto find = [&] {
    return g_recorder.index.find<RecordedGeometry>(
        RecordedKind::geometry, hash, [&](const RecordedGeometry* one) {
          return one->kernel_at == kernel_at &&
                 memcmp(one->geometry, geometry, sizeof one->geometry) == 0;
        });
  };
  RecordedGeometry* found = find();
  if (__builtin_expect(found != nullptr, 1)) return found;
  if (g_recorder.is_full.load(std::memory_order_relaxed)) return nullptr;
  MutexGuard guard(g_recorder.lock);
  found = find();
  Index::Slot* const slot = g_recorder.index.find_free(hash);
  if (found != nullptr || kernel->geometry_count >= kRecordedGeometries || slot == nullptr) {
    return found;
  }
  found = new_block<RecordedGeometry>(RecordedKind::geometry, sizeof(RecordedGeometry));
  if (found == nullptr) return nullptr;
  found->kernel_at = kernel_at;
  memcpy(found->geometry, geometry, sizeof found->geometry);
  ++kernel->geometry_count;
  publish(&found->block, slot);
  return found;
}

// Returns the value's slot, or null. `free`: the first unused slot, if the value may use it.
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

// Two adjacent integers can look like an address, too, so the driver is asked. This query does not
// fail for other values; an error would be shown by tools that watch for errors.
RecordedMemory memory_at(uint64_t address) {
  static std::atomic<PFN_cuPointerGetAttributes_v7000> known;
  PFN_cuPointerGetAttributes_v7000 ask = known.load(std::memory_order_relaxed);
  if (ask == nullptr) {
    ask = reinterpret_cast<PFN_cuPointerGetAttributes_v7000>(
        g_recorder.host->find_driver_function("cuPointerGetAttributes"));
    known.store(ask, std::memory_order_relaxed);
  }
  CUpointer_attribute wanted = CU_POINTER_ATTRIBUTE_MEMORY_TYPE;
  unsigned type = 0;
  void* answers[] = {&type};
  if (ask == nullptr || ask(1, &wanted, answers, address) != CUDA_SUCCESS) {
    return RecordedMemory::unknown;
  }
  return type == 0 ? RecordedMemory::none : RecordedMemory::some;
}

// Records whether a new address-like value points to memory. Done for each new value until one
// does, since the first may be a stale pointer.
void record_memory(RecordedParam* word, uint64_t value) {
  RecordedMemory memory;
  __atomic_load(&word->memory, &memory, __ATOMIC_RELAXED);
  if (memory == RecordedMemory::some) return;
  memory = memory_at(value);
  if (memory != RecordedMemory::unknown) __atomic_store(&word->memory, &memory, __ATOMIC_RELAXED);
}

void record_value(RecordedParam* param, RecordedValue* values, uint64_t value, bool is_word) {
  if ((__atomic_load_n(&param->bits, __ATOMIC_RELAXED) & value) != value) {
    __atomic_fetch_or(&param->bits, value, __ATOMIC_RELAXED);
  }
  const bool is_address = param->size == 8 && is_like_address(value);
  RecordedValue* free = nullptr;
  RecordedValue* found = find_value(values, value, is_address, &free);
  if (found == nullptr && free != nullptr) {
    if (is_word && is_address) record_memory(param, value);
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
  RecordedParam* word = words_of(kernel);
  const RecordedParam* const words_end = word + kernel->word_count;
  for (uint32_t i = 0; i < kernel->param_count; ++i) {
    const RecordedParam& param = params[i];
    const auto* const argument = static_cast<const char*>(arguments[i]);
    uint64_t value = 0;
    if (param.first_value != UINT32_MAX) {
      if (argument == nullptr) continue;
      memcpy(&value, argument, param.size);
      record_value(&params[i], values_of(kernel) + param.first_value, value, false);
      continue;
    }
    for (; word < words_end && word->offset < param.offset + param.size; ++word, value = 0) {
      if (argument == nullptr) continue;
      memcpy(&value, argument + (word->offset - param.offset), word->size);
      record_value(word, values_of(kernel) + word->first_value, value, true);
    }
  }
}

bool is_timed(uint64_t launches_before) {
  return launches_before != 0 && (launches_before < 4 || launches_before % kTimedEvery == 0);
}

void count_unknown_launch() {
  MutexGuard guard(g_recorder.lock);
  char* const base = ensure_file();
  if (base != nullptr) add(&header_at(base)->unknown_launches);
}

void count_launch(const LaunchToRecord& launch) {
  RecordedKernel* const kernel = launch.kernel;
  RecordedGeometry* const geometry = launch.known_geometry;
  add(launch.is_node ? &kernel->nodes : &kernel->launches);
  if (geometry != nullptr) {
    add(launch.is_node ? &geometry->nodes : &geometry->launches);
  } else {
    add(launch.is_node ? &kernel->other_nodes : &kernel->other_launches);
  }
  static_assert(kOutcomeCount <= kRecordedOutcomeSlots);
  add(&kernel->outcomes[static_cast<uint32_t>(launch.outcome)]);
  record_values(kernel, launch.arguments);
}

// ---- the functions of RecorderApi

void start(const RecorderHost& host) {
  g_recorder.host = &host;
  start_timer(host);
  start_tracer(host);
  start_tensors(host);
}

void begin_launch(LaunchToRecord* launch) {
  launch->known_geometry = nullptr;
  launch->timing = nullptr;
  begin_tensors(launch);
  launch->kernel = launch->symbol == nullptr ? nullptr : kernel_of(*launch);
  RecordedKernel* const kernel = launch->kernel;
  if (kernel != nullptr) trace_launch(launch->is_node);
  if (kernel == nullptr || kernel == &g_dropped_kernel || launch->geometry == nullptr) return;
  launch->known_geometry = find_or_add_geometry(kernel, launch->geometry);
  if (launch->is_node || launch->has_captures) return;
  collect_times();
  if (!is_tracing() && is_timed(__atomic_load_n(&kernel->launches, __ATOMIC_RELAXED))) {
    launch->timing = begin_timing(launch->stream);
  }
}

void end_launch(LaunchToRecord* launch, bool has_succeeded) {
  RecordedKernel* const kernel = launch->kernel;
  EventPair* const timing = launch->timing;
  launch->timing = nullptr;
  end_tensors(launch, has_succeeded);
  if (!has_succeeded) {
    cancel_timing(timing);
    if (kernel != nullptr && !launch->is_node) uncount_traced_launch();
    if (kernel != nullptr && kernel != &g_dropped_kernel) add(&kernel->failed);
    return;
  }
  if (launch->symbol == nullptr) return count_unknown_launch();
  if (kernel == nullptr) return;
  if (kernel == &g_dropped_kernel) {
    return add(&header_at(g_recorder.base.load(std::memory_order_relaxed))->dropped_launches);
  }
  RecordedGeometry* const geometry = launch->known_geometry;
  end_timing(timing, geometry != nullptr ? &geometry->times : &kernel->other_times);
  count_launch(*launch);
}

void end_context() {
  drop_events();
  unpin_tensors();
}

void lock_for_fork() {
  g_recorder.lock.lock();
  lock_tensors_for_fork();
}

void unlock_after_fork(bool is_child) {
  unlock_tensors_after_fork(is_child);
  if (is_child) {
    leave_file_to_parent();
    forget_events_in_child();
    stop_tracing_in_child();
  }
  g_recorder.lock.unlock_after_fork(is_child);
}

constexpr RecorderApi kApi = {start,       begin_launch,  end_launch,
                              end_context, lock_for_fork, unlock_after_fork};

}  // namespace
}  // namespace fibshim

extern "C" __attribute__((visibility("default"))) const fibshim::RecorderApi* fibrecord_api(
    uint32_t version) {
  return version == fibshim::kRecorderApiVersion ? &fibshim::kApi : nullptr;
}
