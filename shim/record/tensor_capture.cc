#include "shim/record/tensor_capture.h"

#include <limits.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "shim/abi/counters_format.h"
#include "shim/abi/program.h"
#include "shim/base/mutex.h"
#include "shim/base/process_file.h"
#include "shim/driver/cuda_names.h"
#include "shim/record/tensor_file.h"
#include "shim/record/tensor_statistics.h"

namespace fibshim {

// The tensors of one launch, from its beginning until they are written. Slots are reserved and
// released in the same order.
struct KeptTensors {
  enum State : uint32_t { idle, under_way, ready };
  std::atomic<uint32_t> state;
  bool is_discarded;
  uint32_t entry;
  uint64_t number, unix_ns;
  int64_t values[kMostTensorValues];
  KeptTensor tensors[kMostTensors];
  uint64_t at[kMostTensors];  // in the pool
  CUdeviceptr address[kMostTensors];
  uint32_t tensor_count;
  uint64_t kept_bytes;  // counted against the limit
  uint64_t end;         // of its part of the pool, where the next one begins
};

namespace {

constexpr uint32_t kSlots = 64;
constexpr uint32_t kHashes = 1 << 16;   // of written inputs
constexpr uint32_t kTallies = 1 << 14;  // of combinations that a policy counts
constexpr uint64_t kAlignment = 256;
constexpr uint32_t kExitPatienceMs = 5000;

using MemGetAddressRange = PFN_cuMemGetAddressRange_v3020;
using MemcpyDtoHAsync = PFN_cuMemcpyDtoHAsync_v3020;
using LaunchHostFunc = PFN_cuLaunchHostFunc_v10000;
using StreamSynchronize = PFN_cuStreamSynchronize_v2000;
using MemHostRegister = CUresult (*)(void*, size_t, unsigned);

struct Tally {
  uint64_t key;  // 0: free
  uint32_t count;
};

// `lock` guards the members that are neither atomic nor used only by the writer.
struct State {
  const RecorderHost* host;
  pthread_once_t once = PTHREAD_ONCE_INIT;
  std::atomic<bool> is_on;  // there are a plan and a file
  ReadPlan read;
  Mutex lock;
  MemGetAddressRange get_range;
  MemcpyDtoHAsync copy;
  LaunchHostFunc call_host;
  StreamSynchronize synchronize;
  std::atomic<uint16_t>
      entry_of_series[kSeriesCapacity];  // 0: not looked up yet; 1: none; else its index + 2
  uint64_t* launches;                    // of each entry
  Tally* tallies;
  char* pool;
  uint64_t pool_bytes, pool_begin, pool_end;  // a ring; in use from begin to end
  bool is_pinned;
  KeptTensors* slots;
  uint32_t taken, given;  // numbers of slots that were ever reserved, and released
  uint64_t kept_bytes;    // written or in flight
  uint64_t begun_ns;      // when the first launch was wanted
  sem_t wake;
  XXH128_hash_t* hashes;  // used only by the writer
};
State g_state;

uint64_t monotonic_ns() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1000000000 + static_cast<uint64_t>(now.tv_nsec);
}

template <class T>
T* allocate(uint64_t count) {
  void* const memory = mmap(nullptr, count * sizeof(T), PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return memory == MAP_FAILED ? nullptr : static_cast<T*>(memory);
}

// ---- the writer

// Returns true if these inputs were written before; otherwise remembers them.
bool is_duplicate(const KeptTensors& slot) {
  const TensorPlanEntry& entry = g_state.read.entries[slot.entry];
  XXH3_state_t state;
  XXH3_128bits_reset(&state);
  XXH3_128bits_update(&state, &slot.entry, sizeof slot.entry);
  XXH3_128bits_update(&state, slot.values, entry.value_count * sizeof slot.values[0]);
  for (uint32_t i = 0; i < slot.tensor_count; ++i) {
    if (g_state.read.tensors[entry.first_tensor + slot.tensors[i].tensor].is_output != 0) continue;
    XXH3_128bits_update(&state, g_state.pool + slot.at[i], slot.tensors[i].bytes);
  }
  XXH128_hash_t hash = XXH3_128bits_digest(&state);
  hash.low64 |= 1;  // 0 marks a free place
  for (uint32_t i = 0; i < kHashes; ++i) {
    XXH128_hash_t& known = g_state.hashes[(hash.low64 + i) % kHashes];
    if (known.low64 == hash.low64 && known.high64 == hash.high64) return true;
    if (known.low64 != 0) continue;
    known = hash;
    return false;
  }
  return false;
}

void write_slot(KeptTensors* slot) {
  static constexpr char kPadding[8] = {};
  const TensorPlanEntry& entry = g_state.read.entries[slot->entry];
  const bool keeps_statistics = g_state.read.plan->keeps_statistics != 0;
  KeptLaunch head = {};
  head.entry = slot->entry;
  head.value_count = entry.value_count;
  head.tensor_count = slot->tensor_count;
  head.number = slot->number;
  head.unix_ns = slot->unix_ns;
  Piece pieces[3 + 2 * kMostTensors];
  uint32_t count = 0;
  pieces[count++] = {&head, sizeof head};
  pieces[count++] = {slot->values, entry.value_count * sizeof slot->values[0]};
  pieces[count++] = {slot->tensors, slot->tensor_count * sizeof slot->tensors[0]};
  for (uint32_t i = 0; i < slot->tensor_count; ++i) {
    KeptTensor& tensor = slot->tensors[i];
    const char* const data = g_state.pool + slot->at[i];
    add_statistics(g_state.read.tensors[entry.first_tensor + tensor.tensor], data, tensor.bytes,
                   &tensor);
    if (keeps_statistics) tensor.bytes = 0;
    pieces[count++] = {data, tensor.bytes};
    pieces[count++] = {kPadding, (8 - tensor.bytes % 8) % 8};
  }
  for (uint32_t i = 0; i < count; ++i) head.bytes += pieces[i].bytes;
  if (append_block(pieces, count)) return count_kept();
  count_loss(TensorLoss::failed);
}

void* write_slots(void*) {
  for (;;) {
    while (sem_wait(&g_state.wake) != 0) {
    }
    for (;;) {
      KeptTensors* slot = nullptr;
      {
        MutexGuard guard(g_state.lock);
        if (g_state.given == g_state.taken) break;
        slot = &g_state.slots[g_state.given % kSlots];
      }
      if (slot->state.load(std::memory_order_acquire) != KeptTensors::ready) break;
      const bool is_new = !slot->is_discarded && !is_duplicate(*slot);
      if (is_new) {
        write_slot(slot);
      } else {
        count_loss(slot->is_discarded ? TensorLoss::failed : TensorLoss::duplicate);
      }
      MutexGuard guard(g_state.lock);
      slot->state.store(KeptTensors::idle, std::memory_order_relaxed);
      if (!is_new) g_state.kept_bytes -= slot->kept_bytes;
      g_state.pool_begin = slot->end;
      ++g_state.given;
    }
  }
  return nullptr;
}

void CUDA_CB hand_to_writer(void* slot) {
  static_cast<KeptTensors*>(slot)->state.store(KeptTensors::ready, std::memory_order_release);
  (void)sem_post(&g_state.wake);
}

bool start_writer() {
  if (sem_init(&g_state.wake, 0, 0) != 0) return false;
  // Block all signals: those of the host are for its own threads.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  pthread_t writer;
  const bool is_started = pthread_create(&writer, nullptr, write_slots, nullptr) == 0;
  if (is_started) pthread_detach(writer);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return is_started;
}

// When the process ends, waits a while for tensors that are not written yet.
__attribute__((destructor)) void finish_writing() {
  if (!g_state.is_on.load(std::memory_order_acquire)) return;
  for (uint32_t waited = 0; waited < kExitPatienceMs; ++waited) {
    {
      MutexGuard guard(g_state.lock);
      if (g_state.given == g_state.taken) return;
    }
    const timespec millisecond = {0, 1000000};
    nanosleep(&millisecond, nullptr);
  }
}

// ---- launches

template <class Function>
bool find(const char* name, Function* out) {
  *out = reinterpret_cast<Function>(g_state.host->find_driver_function(name));
  return *out != nullptr;
}

void open_once() {
  static RecordingSettings settings;  // too large for some threads' stacks
  g_state.host->read_settings(&settings);
  g_state.read = open_tensors(*g_state.host, settings.folder);
  const TensorPlan* const plan = g_state.read.plan;
  if (plan == nullptr) return;
  g_state.pool_bytes = plan->limit_bytes < kTensorPoolBytes ? plan->limit_bytes : kTensorPoolBytes;
  g_state.launches = allocate<uint64_t>(plan->entry_count + 1);
  g_state.tallies = allocate<Tally>(kTallies);
  g_state.hashes = allocate<XXH128_hash_t>(kHashes);
  g_state.slots = allocate<KeptTensors>(kSlots);
  g_state.pool = allocate<char>(g_state.pool_bytes);
  const bool has_all =
      g_state.launches != nullptr && g_state.tallies != nullptr && g_state.hashes != nullptr &&
      g_state.slots != nullptr && g_state.pool != nullptr &&
      find("cuMemGetAddressRange_v2", &g_state.get_range) &&
      find("cuMemcpyDtoHAsync_v2", &g_state.copy) && find("cuLaunchHostFunc", &g_state.call_host) &&
      find("cuStreamSynchronize", &g_state.synchronize) && start_writer();
  if (!has_all) {
    return g_state.host->log(LogLevel::warn, "no tensors are kept: no memory, or an old driver");
  }
  g_state.is_on.store(true, std::memory_order_release);
}

// If this fails, copies are still correct, but the host waits for them.
void pin_pool() {
  {
    MutexGuard guard(g_state.lock);
    if (g_state.is_pinned) return;
    g_state.is_pinned = true;
  }
  MemHostRegister pin = nullptr;
  if (find("cuMemHostRegister_v2", &pin)) {
    (void)pin(g_state.pool, g_state.pool_bytes, CU_MEMHOSTREGISTER_PORTABLE);
  }
}

// Returns the plan's entry for a launch, or UINT32_MAX.
uint32_t entry_of(const LaunchToRecord& launch) {
  const TensorPlan& plan = *g_state.read.plan;
  if (launch.series == 0 || launch.series >= kSeriesCapacity) return UINT32_MAX;
  std::atomic<uint16_t>& known = g_state.entry_of_series[launch.series];
  uint32_t found = known.load(std::memory_order_relaxed);
  if (found == 0) {
    found = 1;
    for (uint32_t i = 0; i < plan.entry_count; ++i) {
      const TensorPlanEntry& entry = g_state.read.entries[i];
      if (strncmp(entry.pattern, launch.pattern, sizeof entry.pattern) == 0 &&
          strncmp(entry.definition, launch.definition, sizeof entry.definition) == 0) {
        found = i + 2;
        break;
      }
    }
    known.store(static_cast<uint16_t>(found), std::memory_order_relaxed);
  }
  return found == 1 ? UINT32_MAX : found - 2;
}

// Runs a program of the plan. Returns false if it reads past the parameters or has no value.
bool compute(const LaunchToRecord& launch, uint32_t first_step, uint32_t count, int64_t* out) {
  const Step* const steps = g_state.read.steps + first_step;
  for (uint32_t i = 0; i < count; ++i) {
    const Step& step = steps[i];
    const auto contains = [&](uint32_t index, uint32_t offset, uint32_t bytes) {
      return index < launch.param_count && launch.arguments[index] != nullptr &&
             offset <= launch.params[index].size && bytes <= launch.params[index].size - offset;
    };
    if (!reads_existing_params(step, contains)) return false;
    if (step.op == Op::load_capture && launch.captures == nullptr) return false;
  }
  LaunchView view;
  view.params = launch.arguments;
  view.captures = launch.captures;
  memcpy(view.geometry, launch.geometry, sizeof view.geometry);
  return run_program(steps, count, view, out);
}

// Requires the lock. True if the policy wants this launch, the entry's `number`th.
bool is_wanted(const TensorPlanEntry& entry, uint32_t index, uint64_t number,
               const int64_t* values) {
  const TensorPlan& plan = *g_state.read.plan;
  if (plan.policy == TensorPolicy::first) return number < plan.count;
  if (plan.policy == TensorPolicy::every) return number % plan.count == 0;
  uint64_t key = XXH3_64bits(&index, sizeof index);
  for (uint32_t i = 0; i < entry.value_count; ++i) {
    const bool counts = plan.policy == TensorPolicy::by_axis
                            ? i == entry.policy_value
                            : g_state.read.values[entry.first_value + i].is_axis != 0;
    if (counts) key = XXH3_64bits_withSeed(&values[i], sizeof values[i], key);
  }
  key |= 1;
  for (uint32_t i = 0; i < kTallies; ++i) {
    Tally& tally = g_state.tallies[(key + i) % kTallies];
    if (tally.key != 0 && tally.key != key) continue;
    tally.key = key;
    return tally.count++ < plan.count;
  }
  return false;
}

// Finds addresses and sizes of a launch's tensors. False: one of them is unknown.
bool find_tensors(const LaunchToRecord& launch, const TensorPlanEntry& entry, KeptTensors* out) {
  out->tensor_count = 0;
  for (uint32_t i = 0; i < entry.tensor_count; ++i) {
    const TensorPlanTensor& tensor = g_state.read.tensors[entry.first_tensor + i];
    if (tensor.is_output != 0 && !launch.runs_original) continue;
    uint64_t bytes = tensor.element_bytes;
    for (uint32_t d = 0; d < tensor.dim_count; ++d) {
      const int64_t extent = out->values[tensor.dims[d]];
      if (extent <= 0 || __builtin_mul_overflow(bytes, static_cast<uint64_t>(extent), &bytes)) {
        return false;
      }
    }
    int64_t address = 0;
    CUdeviceptr base = 0;
    size_t size = 0;
    // The shape comes from the definition, so check that the tensor lies in one allocation.
    if (!compute(launch, tensor.first_step, tensor.step_count, &address) ||
        g_state.get_range(&base, &size, static_cast<CUdeviceptr>(address)) != CUDA_SUCCESS ||
        bytes > base + size - static_cast<CUdeviceptr>(address)) {
      return false;
    }
    const uint32_t at = out->tensor_count++;
    out->tensors[at] = {};
    out->tensors[at].tensor = i;
    out->tensors[at].bytes = bytes;
    out->address[at] = static_cast<CUdeviceptr>(address);
  }
  return true;
}

// Reserves a part of the pool. Requires the lock. False: no room at present.
bool reserve_room(uint64_t bytes, uint64_t* at) {
  const bool is_empty = g_state.taken == g_state.given;
  if (is_empty) g_state.pool_begin = g_state.pool_end = 0;
  const uint64_t begin = g_state.pool_begin, end = g_state.pool_end;
  const bool is_wrapped = !is_empty && end <= begin;
  const uint64_t room_behind = (is_wrapped ? begin : g_state.pool_bytes) - end;
  if (bytes <= room_behind) {
    *at = end;
  } else if (!is_wrapped && bytes <= begin) {
    *at = 0;
  } else {
    return false;
  }
  g_state.pool_end = *at + bytes;
  return true;
}

// Reserves a slot for a launch whose tensors are kept. Null: none; this was counted.
KeptTensors* reserve_slot(const KeptTensors& wanted, uint64_t bytes) {
  const TensorPlan& plan = *g_state.read.plan;
  MutexGuard guard(g_state.lock);
  if (g_state.kept_bytes + bytes > plan.limit_bytes || bytes > g_state.pool_bytes) {
    const bool is_over = g_state.kept_bytes + bytes > plan.limit_bytes;
    count_loss(is_over ? TensorLoss::limit : TensorLoss::too_large);
    return nullptr;
  }
  uint64_t at = 0;
  if (g_state.taken - g_state.given == kSlots || !reserve_room(bytes, &at)) {
    count_loss(TensorLoss::no_room);
    return nullptr;
  }
  KeptTensors& slot = g_state.slots[g_state.taken++ % kSlots];
  slot.is_discarded = false;
  slot.entry = wanted.entry;
  slot.number = wanted.number;
  slot.unix_ns = unix_time_ns();
  memcpy(slot.values, wanted.values, sizeof slot.values);
  memcpy(slot.tensors, wanted.tensors, sizeof slot.tensors);
  memcpy(slot.address, wanted.address, sizeof slot.address);
  slot.tensor_count = wanted.tensor_count;
  for (uint32_t i = 0; i < slot.tensor_count; ++i) {
    slot.at[i] = at;
    at += (slot.tensors[i].bytes + kAlignment - 1) / kAlignment * kAlignment;
  }
  slot.end = at;
  slot.kept_bytes = plan.keeps_statistics == 0 ? bytes : 0;
  g_state.kept_bytes += slot.kept_bytes;
  slot.state.store(KeptTensors::under_way, std::memory_order_relaxed);
  return &slot;
}

void copy_tensors(KeptTensors* slot, CUstream stream, bool is_output) {
  const TensorPlanEntry& entry = g_state.read.entries[slot->entry];
  for (uint32_t i = 0; i < slot->tensor_count; ++i) {
    const KeptTensor& tensor = slot->tensors[i];
    const bool is_its =
        (g_state.read.tensors[entry.first_tensor + tensor.tensor].is_output != 0) == is_output;
    if (is_its && g_state.copy(g_state.pool + slot->at[i], slot->address[i], tensor.bytes,
                               stream) != CUDA_SUCCESS) {
      slot->is_discarded = true;
    }
  }
}

}  // namespace

void start_tensors(const RecorderHost& host) { g_state.host = &host; }

void begin_tensors(LaunchToRecord* launch) {
  launch->kept_tensors = nullptr;
  if (launch->pattern == nullptr) return;
  pthread_once(&g_state.once, open_once);
  if (!g_state.is_on.load(std::memory_order_acquire)) return;
  const uint32_t index = entry_of(*launch);
  if (index == UINT32_MAX) return;
  if (launch->is_node || launch->has_captures) return count_loss(TensorLoss::captured);
  const TensorPlanEntry& entry = g_state.read.entries[index];
  KeptTensors wanted;
  wanted.entry = index;
  memset(wanted.values, 0, sizeof wanted.values);
  bool is_known = launch->arguments != nullptr && launch->geometry != nullptr;
  for (uint32_t i = 0; is_known && i < entry.value_count; ++i) {
    const TensorPlanValue& value = g_state.read.values[entry.first_value + i];
    is_known = compute(*launch, value.first_step, value.step_count, &wanted.values[i]);
  }
  if (!is_known) return count_loss(TensorLoss::unknown);
  {
    MutexGuard guard(g_state.lock);
    wanted.number = g_state.launches[index]++;
    if (!is_wanted(entry, index, wanted.number, wanted.values)) return;
    const uint64_t now = monotonic_ns();
    if (g_state.begun_ns == 0) g_state.begun_ns = now;
    const uint64_t seconds = g_state.read.plan->seconds;
    if (seconds != 0 && now - g_state.begun_ns > seconds * 1000000000) {
      return count_loss(TensorLoss::late);
    }
  }
  if (!find_tensors(*launch, entry, &wanted)) return count_loss(TensorLoss::unknown);
  uint64_t bytes = 0;
  for (uint32_t i = 0; i < wanted.tensor_count; ++i) {
    bytes += (wanted.tensors[i].bytes + kAlignment - 1) / kAlignment * kAlignment;
  }
  KeptTensors* const slot = reserve_slot(wanted, bytes);
  if (slot == nullptr) return;
  pin_pool();
  copy_tensors(slot, launch->stream, false);
  launch->kept_tensors = slot;
}

void end_tensors(LaunchToRecord* launch, bool has_succeeded) {
  KeptTensors* const slot = launch->kept_tensors;
  if (slot == nullptr) return;
  launch->kept_tensors = nullptr;
  slot->is_discarded = slot->is_discarded || !has_succeeded;
  if (!slot->is_discarded) copy_tensors(slot, launch->stream, true);
  if (g_state.call_host(launch->stream, hand_to_writer, slot) == CUDA_SUCCESS) return;
  slot->is_discarded = true;
  (void)g_state.synchronize(launch->stream);
  hand_to_writer(slot);
}

void unpin_tensors() {
  MutexGuard guard(g_state.lock);
  g_state.is_pinned = false;
}

void lock_tensors_for_fork() { g_state.lock.lock(); }

void unlock_tensors_after_fork(bool is_child) {
  if (is_child) g_state.is_on.store(false, std::memory_order_release);
  g_state.lock.unlock_after_fork(is_child);
}

}  // namespace fibshim
