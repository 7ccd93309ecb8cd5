#include "shim/record/run_records.h"

#include "shim/record/recording_file.h"

namespace fibshim {
namespace {

// A kernel that ran before, most often a node of a replayed graph, is found without a hash over its name, which may be
// long. CUPTI may free a name and put another at its address, so the names themselves are compared.
struct Seen {
  const char* base;  // of the recording
  const char* name;
  RecordedRuns* runs;
  uint32_t geometry[kRecordedGeometryCount];
};
constexpr size_t kSeenCount = 256;
Seen g_seen[kSeenCount];  // under the recorder's lock

// A block in the file is followed by its text, and holds no pointers.
const char* symbol_of(const RecordedName* name) { return reinterpret_cast<const char*>(name + 1); }

uint64_t place_of(const void* block) {
  return static_cast<uint64_t>(static_cast<const char*>(block) -
                               g_recorder.base.load(std::memory_order_relaxed));
}

// The functions below require the lock, and return null if there is no room.
RecordedName* find_or_add_name(const char* symbol) {
  const auto length = static_cast<uint32_t>(strnlen(symbol, kRecordedSymbolBytes - 1));
  const uint64_t hash = hash_text(symbol, length);
  auto* name =
      g_recorder.index.find<RecordedName>(RecordedKind::name, hash, [&](const RecordedName* one) {
        return one->symbol_bytes == length + 1 && memcmp(symbol_of(one), symbol, length) == 0;
      });
  Index::Slot* const slot = name == nullptr ? g_recorder.index.find_free(hash) : nullptr;
  if (slot == nullptr) return name;
  name = new_block<RecordedName>(RecordedKind::name, (sizeof *name + length + 8) / 8 * 8);
  if (name == nullptr) return nullptr;
  name->symbol_bytes = length + 1;
  memcpy(name + 1, symbol, length);
  publish(&name->block, slot);
  return name;
}

RecordedRuns* find_or_add_runs(RecordedName* name,
                               const uint32_t (&geometry)[kRecordedGeometryCount],
                               bool is_in_graph) {
  const uint64_t name_at = place_of(name);
  uint64_t hash = mix(name_at, is_in_graph);
  for (const uint32_t value : geometry) hash = mix(hash, value);
  auto* runs =
      g_recorder.index.find<RecordedRuns>(RecordedKind::runs, hash, [&](const RecordedRuns* one) {
        return one->name_at == name_at && (one->is_in_graph != 0) == is_in_graph &&
               memcmp(one->geometry, geometry, sizeof geometry) == 0;
      });
  Index::Slot* const slot = runs == nullptr ? g_recorder.index.find_free(hash) : nullptr;
  if (slot == nullptr) return runs;
  runs = new_block<RecordedRuns>(RecordedKind::runs, sizeof(RecordedRuns));
  if (runs == nullptr) return nullptr;
  runs->name_at = name_at;
  memcpy(runs->geometry, geometry, sizeof geometry);
  runs->is_in_graph = is_in_graph;
  ++name->geometry_count;
  publish(&runs->block, slot);
  return runs;
}

bool is_seen(const Seen& seen, const CuptiKernel& kernel,
             const uint32_t (&geometry)[kRecordedGeometryCount], bool is_in_graph) {
  const char* const base = g_recorder.base.load(std::memory_order_relaxed);
  if (seen.base != base || seen.name != kernel.name ||
      memcmp(seen.geometry, geometry, sizeof geometry) != 0 ||
      (seen.runs->is_in_graph != 0) != is_in_graph) {
    return false;
  }
  const auto* const name = reinterpret_cast<const RecordedName*>(base + seen.runs->name_at);
  const uint32_t length = name->symbol_bytes - 1;
  return name->geometry_count < kRecordedGeometries &&
         strncmp(symbol_of(name), kernel.name, length) == 0 &&
         (length == kRecordedSymbolBytes - 1 || kernel.name[length] == 0);
}

RecordedRuns* runs_of(const CuptiKernel& kernel) {
  uint32_t geometry[kRecordedGeometryCount];
  for (size_t i = 0; i < 3; ++i) {
    geometry[i] = static_cast<uint32_t>(kernel.grid[i]);
    geometry[3 + i] = static_cast<uint32_t>(kernel.block[i]);
    geometry[6 + i] = kernel.cluster[i] == 0 ? 1 : kernel.cluster[i];
  }
  geometry[9] = static_cast<uint32_t>(kernel.dynamic_shared_memory);
  const bool is_in_graph = kernel.graph_node_id != 0 || kernel.graph_id != 0;
  const uint64_t hash =
      mix(mix(reinterpret_cast<uintptr_t>(kernel.name), geometry[0]), geometry[3]);
  Seen& seen = g_seen[mix(hash, is_in_graph) % kSeenCount];
  if (is_seen(seen, kernel, geometry, is_in_graph)) return seen.runs;
  RecordedName* const name = find_or_add_name(kernel.name);
  if (name == nullptr) return nullptr;
  const bool has_room = name->geometry_count < kRecordedGeometries;
  seen.base = nullptr;
  memcpy(seen.geometry, geometry, sizeof geometry);
  if (!has_room) memset(geometry, 0, sizeof geometry);
  RecordedRuns* const runs = find_or_add_runs(name, geometry, is_in_graph);
  if (runs != nullptr && has_room) {
    seen.base = g_recorder.base.load(std::memory_order_relaxed);
    seen.name = kernel.name;
    seen.runs = runs;
  }
  return runs;
}

void add_time(RecordedTimes* times, uint64_t ns) {
  ++times->count;
  times->sum_ns += ns;
  if (times->shortest_ns == 0 || ns < times->shortest_ns) times->shortest_ns = ns;
  if (ns > times->longest_ns) times->longest_ns = ns;
}

RecordedDevice* find_or_add_device(uint64_t id) {
  const uint64_t hash = mix(1, id);
  auto* device = g_recorder.index.find<RecordedDevice>(
      RecordedKind::device, hash, [&](const RecordedDevice* one) { return one->device == id; });
  Index::Slot* const slot = device == nullptr ? g_recorder.index.find_free(hash) : nullptr;
  if (slot == nullptr) return device;
  device = new_block<RecordedDevice>(RecordedKind::device, sizeof(RecordedDevice));
  if (device == nullptr) return nullptr;
  device->device = id;
  publish(&device->block, slot);
  return device;
}

// Call for kernels in the order of their start.
void add_busy_time(const CuptiKernel& kernel) {
  RecordedDevice* const device = find_or_add_device(kernel.device_id);
  if (device == nullptr) return;
  if (device->first_ns == 0 || kernel.start < device->first_ns) device->first_ns = kernel.start;
  const uint64_t begin = kernel.start < device->last_ns ? device->last_ns : kernel.start;
  if (kernel.end <= begin) return;
  device->busy_ns += kernel.end - begin;
  device->last_ns = kernel.end;
}

}  // namespace

void add_runs(const CuptiKernel* const* kernels, uint32_t count) {
  MutexGuard guard(g_recorder.lock);
  RecordingHeader* const head = header();
  if (head == nullptr) return;
  for (uint32_t i = 0; i < count; ++i) {
    const CuptiKernel& kernel = *kernels[i];
    add_busy_time(kernel);
    RecordedRuns* const runs = runs_of(kernel);
    if (runs == nullptr) {
      add(&head->dropped_runs);
    } else {
      add_time(runs->warm_up.count < kWarmUpRuns ? &runs->warm_up : &runs->times,
               kernel.end - kernel.start);
    }
  }
}

void add_dropped_runs(uint64_t count) {
  RecordingHeader* const head = header();
  if (head != nullptr) __atomic_fetch_add(&head->dropped_runs, count, __ATOMIC_RELAXED);
}

}  // namespace fibshim
