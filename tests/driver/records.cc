// See records.h. A reset stores a baseline instead of writing to other threads' counters.
#include "tests/driver/records.h"

#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <unordered_map>

#include "tests/driver/driver.h"

namespace simcuda {

bool g_is_fast = false;
int g_log_fd = -1;
std::atomic<uint64_t> g_stale_launches{0};

namespace {

struct Baseline {
  uint64_t launched = 0, captured = 0;
};

struct Registry {
  std::mutex lock;
  std::vector<ThreadRecords*> records;
  std::vector<std::string> names;  // by id
  std::unordered_map<std::string, uint32_t> ids;
  std::map<uint32_t, Baseline> kernel_baseline;
  uint64_t call_baseline[static_cast<size_t>(Api::count)] = {};
  uint64_t error_baseline[static_cast<size_t>(Api::count)] = {};
  uint64_t stale_baseline = 0;
};

// Never destroyed, since threads may launch while the process ends. Made when the library is
// loaded, so that a forked child never finds it half-made.
Registry* g_registry = new Registry;

Registry& registry() { return *g_registry; }

std::atomic<uint64_t> g_sequence{0};

bool name_fits(const char* wanted, const std::string& name) {
  if (wanted == nullptr || name == wanted) return true;
  return strpbrk(wanted, "*?[") != nullptr && fnmatch(wanted, name.c_str(), 0) == 0;
}

// Requires the lock.
Baseline sum_kernel(const Registry& all, uint32_t name_id) {
  Baseline sum;
  for (const ThreadRecords* records : all.records) {
    const KernelCounts* block =
        records->blocks[name_id / kNamesPerBlock].load(std::memory_order_acquire);
    if (block == nullptr) continue;
    sum.launched += block[name_id % kNamesPerBlock].launched.load(std::memory_order_relaxed);
    sum.captured += block[name_id % kNamesPerBlock].captured.load(std::memory_order_relaxed);
  }
  return sum;
}

// Requires the lock.
Baseline since_reset(Registry& all, uint32_t name_id) {
  Baseline sum = sum_kernel(all, name_id);
  if (const auto found = all.kernel_baseline.find(name_id); found != all.kernel_baseline.end()) {
    sum.launched -= found->second.launched;
    sum.captured -= found->second.captured;
  }
  return sum;
}

uint64_t sum_since_reset(const char* kernel, uint64_t Baseline::*count) {
  Registry& all = registry();
  const std::lock_guard guard(all.lock);
  uint64_t sum = 0;
  for (uint32_t id = 0; id < all.names.size(); ++id)
    if (name_fits(kernel, all.names[id])) sum += since_reset(all, id).*count;
  return sum;
}

using ApiCounts = std::atomic<uint64_t> (ThreadRecords::*)[static_cast<size_t>(Api::count)];

uint64_t sum_of(const Registry& all, ApiCounts counts, size_t api) {
  uint64_t sum = 0;
  for (const ThreadRecords* records : all.records)
    sum += (records->*counts)[api].load(std::memory_order_relaxed);
  return sum;
}

// Returns the sum over the functions that fit the name, since the reset.
uint64_t count_since_reset(const char* function, ApiCounts counts,
                           uint64_t (Registry::*baseline)[static_cast<size_t>(Api::count)]) {
  Registry& all = registry();
  const std::lock_guard guard(all.lock);
  uint64_t sum = 0;
  for (size_t api = 0; api < static_cast<size_t>(Api::count); ++api)
    if (name_fits(function, api_name(static_cast<Api>(api))))
      sum += sum_of(all, counts, api) - (all.*baseline)[api];
  return sum;
}

// Returns all records since the reset, oldest first.
std::vector<SimcudaLaunch> all_records() {
  Registry& all = registry();
  std::vector<SimcudaLaunch> launches;
  const std::lock_guard guard(all.lock);
  for (ThreadRecords* records : all.records) {
    const std::lock_guard ring_guard(records->ring_lock);
    launches.insert(launches.end(), records->ring.begin(), records->ring.end());
  }
  std::sort(launches.begin(), launches.end(),
            [](const auto& a, const auto& b) { return a.sequence < b.sequence; });
  return launches;
}

}  // namespace

const char* api_name(Api api) {
  static constexpr const char* names[] = {
#define SYMBOL(exported, base, version, form) #exported,
#include "tests/driver/symbols.def"
#undef SYMBOL
  };
  return names[static_cast<size_t>(api)];
}

ThreadRecords* acquire_records() {
  Registry& all = registry();
  const std::lock_guard guard(all.lock);
  for (ThreadRecords* records : all.records) {
    if (!records->is_in_use) {
      records->is_in_use = true;
      return records;
    }
  }
  auto* records = new ThreadRecords;  // never freed: its counts are part of the sums
  records->is_in_use = true;
  all.records.push_back(records);
  return records;
}

void renew_records_in_child(ThreadRecords* own) {
  if (registry().lock.try_lock()) return registry().lock.unlock();
  g_registry = new Registry;
  if (own != nullptr) registry().records.push_back(own);
}

void release_records(ThreadRecords* records) {
  const std::lock_guard guard(registry().lock);
  records->is_in_use = false;
}

uint32_t intern_name(const std::string& name) {
  Registry& all = registry();
  const std::lock_guard guard(all.lock);
  const auto [place, is_new] = all.ids.emplace(name, static_cast<uint32_t>(all.names.size()));
  if (is_new) {
    if (all.names.size() == kNamesPerBlock * kNameBlocks) {
      fprintf(stderr, "simcuda: more than %zu kernel names\n", all.names.size());
      abort();
    }
    all.names.push_back(name);
  }
  return place->second;
}

KernelCounts* make_counts(ThreadRecords& records, uint32_t name_id) {
  auto* block = new KernelCounts[kNamesPerBlock];
  records.blocks[name_id / kNamesPerBlock].store(block, std::memory_order_release);
  return block;
}

SimcudaLaunch& next_record(ThreadRecords& records) {
  if (records.ring.size() < kRingCapacity) {
    records.ring.emplace_back();
    records.ring_next = 0;
    records.ring.back().sequence = g_sequence.fetch_add(1, std::memory_order_relaxed) + 1;
    return records.ring.back();
  }
  SimcudaLaunch& place = records.ring[records.ring_next];
  records.ring_next = (records.ring_next + 1) % kRingCapacity;
  place.sequence = g_sequence.fetch_add(1, std::memory_order_relaxed) + 1;
  return place;
}

void write_log_line(const SimcudaLaunch& launch) {
  static constexpr const char* stream_words[] = {"legacy", "per_thread", "created"};
  static constexpr const char* handle_words[] = {"function", "kernel"};
  char fixed[1536];
  const int length = snprintf(
      fixed, sizeof fixed,
      "{\"sequence\":%llu,\"pid\":%d,\"kernel\":\"%s\",\"api\":\"%s\",\"grid\":[%u,%u,%u],"
      "\"block\":[%u,%u,%u],\"cluster\":[%u,%u,%u],\"shared_mem\":%u,\"cooperative\":%s,"
      "\"ptsz\":%s,\"graph\":%s,\"stream\":\"%s\",\"handle\":\"%s\",\"packed\":%s,"
      "\"emulated\":%s,\"device\":%d,\"context\":\"%p\",\"attributes\":[",
      static_cast<unsigned long long>(launch.sequence), static_cast<int>(getpid()), launch.kernel,
      launch.api, launch.grid[0], launch.grid[1], launch.grid[2], launch.block[0], launch.block[1],
      launch.block[2], launch.cluster[0], launch.cluster[1], launch.cluster[2], launch.shared_mem,
      launch.is_cooperative ? "true" : "false", launch.is_ptsz ? "true" : "false",
      launch.is_from_graph ? "true" : "false", stream_words[launch.stream_kind],
      handle_words[launch.handle_kind], launch.was_packed ? "true" : "false",
      launch.was_emulated ? "true" : "false", launch.device, launch.context);
  std::string line(fixed, static_cast<size_t>(length));
  for (uint32_t i = 0; i < launch.attribute_count && i < 16; ++i) {
    if (i > 0) line += ',';
    line += std::to_string(launch.attribute_ids[i]);
  }
  line += "],\"params\":\"";
  for (uint32_t i = 0; i < launch.param_bytes && i < sizeof launch.params; ++i) {
    static constexpr char digits[] = "0123456789abcdef";
    line += digits[launch.params[i] >> 4];
    line += digits[launch.params[i] & 15];
  }
  line += "\"}\n";
  // One write(), so that lines of several threads and processes do not mix.
  if (write(g_log_fd, line.data(), line.size()) < 0) g_log_fd = -1;
}

}  // namespace simcuda

using namespace simcuda;

extern "C" {

int simcuda_is_simulated(void) { return 1; }

uint64_t simcuda_launch_count(const char* kernel) {
  return sum_since_reset(kernel, &Baseline::launched);
}

uint64_t simcuda_captured_count(const char* kernel) {
  return sum_since_reset(kernel, &Baseline::captured);
}

uint64_t simcuda_call_count(const char* function) {
  return count_since_reset(function, &ThreadRecords::calls, &Registry::call_baseline);
}

uint64_t simcuda_error_count(const char* function) {
  return count_since_reset(function, &ThreadRecords::errors, &Registry::error_baseline);
}

int simcuda_last_launch(const char* kernel, SimcudaLaunch* launch) {
  const std::vector<SimcudaLaunch> launches = all_records();
  for (auto place = launches.rbegin(); place != launches.rend(); ++place) {
    if (!name_fits(kernel, place->kernel)) continue;
    *launch = *place;
    return 1;
  }
  return 0;
}

int simcuda_last_launch_of_thread(SimcudaLaunch* launch) {
  ThreadRecords& records = *thread_state().records;
  const std::lock_guard guard(records.ring_lock);
  if (records.ring.empty()) return 0;
  // The last record is the one before `ring_next`; a ring that is not full yet grows at its end.
  const size_t count = records.ring.size();
  *launch = count < kRingCapacity ? records.ring.back()
                                  : records.ring[(records.ring_next + count - 1) % count];
  return 1;
}

size_t simcuda_launches_of_thread(uint64_t after, SimcudaLaunch* launches, size_t capacity) {
  ThreadRecords& records = *thread_state().records;
  const std::lock_guard guard(records.ring_lock);
  const size_t count = records.ring.size();
  const size_t first = count < kRingCapacity ? 0 : records.ring_next;
  size_t written = 0;
  for (size_t i = 0; i < count && written < capacity; ++i) {
    const SimcudaLaunch& launch = records.ring[(first + i) % count];
    if (launch.sequence > after) launches[written++] = launch;
  }
  return written;
}

size_t simcuda_recent_launches(SimcudaLaunch* launches, size_t capacity) {
  const std::vector<SimcudaLaunch> recent = all_records();
  const size_t count = std::min(capacity, recent.size());
  std::copy(recent.end() - static_cast<ptrdiff_t>(count), recent.end(), launches);
  return count;
}

uint64_t simcuda_stale_launch_count(void) {
  Registry& all = registry();
  const std::lock_guard guard(all.lock);
  return g_stale_launches.load(std::memory_order_relaxed) - all.stale_baseline;
}

int64_t simcuda_live_count(const char* kind) {
  const Lock guard(driver().lock);
  const Pools& pools = driver().pools;
  const std::string word = kind;
  if (word == "module") return pools.modules.live(Kind::module);
  if (word == "library") return pools.libraries.live(Kind::library);
  if (word == "function") return pools.functions.live(Kind::function);
  if (word == "kernel") return pools.functions.live(Kind::kernel);
  if (word == "context") return pools.contexts.live(Kind::context);
  if (word == "stream") return pools.streams.live(Kind::stream);
  if (word == "event") return pools.events.live(Kind::event);
  if (word == "graph") return pools.graphs.live(Kind::graph);
  if (word == "graph_exec") return pools.graph_execs.live(Kind::graph_exec);
  return -1;
}

void simcuda_reset(void) {
  Registry& all = registry();
  const std::lock_guard guard(all.lock);
  for (uint32_t id = 0; id < all.names.size(); ++id) all.kernel_baseline[id] = sum_kernel(all, id);
  for (size_t api = 0; api < static_cast<size_t>(Api::count); ++api) {
    all.call_baseline[api] = sum_of(all, &ThreadRecords::calls, api);
    all.error_baseline[api] = sum_of(all, &ThreadRecords::errors, api);
  }
  all.stale_baseline = g_stale_launches.load(std::memory_order_relaxed);
  for (ThreadRecords* records : all.records) {
    const std::lock_guard ring_guard(records->ring_lock);
    records->ring.clear();
    records->ring_next = 0;
  }
}

}  // extern "C"
