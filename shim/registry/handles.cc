#include "shim/registry/handles.h"

#include <stdio.h>
#include <string.h>

#include "shim/registry/decisions.h"
#include "shim/driver/driver.h"
#include "shim/registry/generation.h"
#include "shim/registry/image_identity.h"
#include "shim/registry/images.h"
#include "shim/base/log.h"
#include "shim/base/mutex.h"
#include "shim/base/pool.h"
#include "shim/base/upcalls.h"
#include "shim/base/read_section.h"
#include "shim/registry/in_force.h"
#include "shim/base/settings_in_force.h"

namespace fibshim {
namespace {

// What find_handle reads before the first handle is known.
struct EmptyTable {
  HandleTable table = {1, 0};
  HandleSlot slots[3] = {};
};
constinit EmptyTable g_empty_table;
static_assert(offsetof(EmptyTable, slots) == sizeof(HandleTable));

constexpr uint32_t kSmallestCapacity = 1024;
constexpr uint32_t kFewMatches = 16;      // patterns of one symbol, without asking for memory
constexpr uint32_t kMaxCandidates = 255;  // Record::candidate_count

Mutex g_lock;  // guards everything that a writer touches
Pool g_pool;
HandleTable* g_table;  // the published one, as its writer sees it; null while empty

// Records by owner, so that an unload finds its own without a walk over the table.
struct OwnerSlot {
  uintptr_t owner;
  Record* first;
};
OwnerSlot* g_owners;
uint32_t g_owner_capacity;  // a power of two
uint32_t g_owner_used;      // owners ever put in since the last rebuild

// Modules that cuLibraryGetModule gave out: they end with their library.
struct LibraryModule {
  uintptr_t module;
  uintptr_t library;
  LibraryModule* next;
};
LibraryModule* g_library_modules;

uint64_t hash_name(const char* text) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (; *text != 0; ++text) hash = (hash ^ static_cast<unsigned char>(*text)) * 0x100000001b3u;
  return hash;
}

// Holding g_lock. The slot of a key, new if need be; null when there is no memory.
HandleSlot* slot_in(HandleTable* table, uintptr_t key) {
  for (uint64_t at = first_slot(key);; ++at) {
    HandleSlot& slot = table->slots()[at & table->mask];
    const uintptr_t found = slot.key.load(std::memory_order_relaxed);
    if (found == key) return &slot;
    if (found == 0) {
      // The value is 0 here: a reader that meets the key early sees an unknown handle.
      slot.key.store(key, std::memory_order_release);
      ++table->used;
      return &slot;
    }
  }
}

// One slot more than the mask reaches, never used: launch_entry.cc looks at a slot's neighbour.
size_t table_bytes(uint64_t capacity) {
  return sizeof(HandleTable) + (capacity + 1) * sizeof(HandleSlot);
}

// What was taken from readers, until their grace period is over: what came since it began, and what
// it is for. Records die in crowds: with any context all functions, with any module all of unknown
// owner; most of their handles live on, and other threads may be launching them from the very records.
struct Taken {
  Record* records;  // by next_of_owner
  HandleTable* tables;
  Generation* generations;

  bool is_empty() const {
    return records == nullptr && tables == nullptr && generations == nullptr;
  }
};
Taken g_collected;
Taken g_waiting;
GracePeriod g_grace;
Generation* g_ended;  // to be closed by whoever holds no lock

// Holding g_lock. An empty table with room for so many living keys, and as many that come later.
// Null: no memory.
HandleTable* new_table(uint64_t living) {
  uint64_t capacity = kSmallestCapacity;
  while (capacity < (living + 1) * 4) capacity *= 2;
  auto* table = static_cast<HandleTable*>(g_pool.allocate(table_bytes(capacity)));
  if (table != nullptr) table->mask = capacity - 1;
  return table;
}

// Holding g_lock.
void publish_table(HandleTable* table) {
  HandleTable* const old = g_table;
  g_handle_table.store(table, std::memory_order_release);
  g_table = table;
  if (old == nullptr) return;
  old->next = g_collected.tables;
  g_collected.tables = old;
}

// Holding g_lock. A table with room for one more key; null when there is no memory.
HandleTable* table_with_room() {
  HandleTable* old = g_table;
  const uint64_t capacity = old == nullptr ? 0 : old->mask + 1;
  if (old != nullptr && (old->used + 1) * 2 <= capacity) return old;
  uint64_t live = 0;
  for (uint64_t i = 0; i < capacity; ++i) {
    if (old->slots()[i].value.load(std::memory_order_relaxed) != 0) ++live;
  }
  HandleTable* const table = new_table(live);
  if (table == nullptr) return nullptr;
  for (uint64_t i = 0; i < capacity; ++i) {
    const uintptr_t value = old->slots()[i].value.load(std::memory_order_relaxed);
    if (value == 0) continue;
    HandleSlot* slot = slot_in(table, old->slots()[i].key.load(std::memory_order_relaxed));
    slot->value.store(value, std::memory_order_relaxed);
  }
  publish_table(table);
  return table;
}

// Holding g_lock. Where an owner's list begins; null when there is no memory for another owner.
Record** owner_list(uintptr_t owner, bool may_add) {
  if (may_add && (g_owner_used + 1) * 2 > g_owner_capacity) {
    uint32_t live = 0;
    for (uint32_t i = 0; i < g_owner_capacity; ++i) live += g_owners[i].first != nullptr;
    uint32_t capacity = 256;
    while (capacity < live * 4) capacity *= 2;
    auto* owners = static_cast<OwnerSlot*>(g_pool.allocate(capacity * sizeof(OwnerSlot)));
    if (owners == nullptr) return nullptr;
    uint32_t used = 0;
    for (uint32_t i = 0; i < g_owner_capacity; ++i) {
      if (g_owners[i].first == nullptr) continue;
      uint32_t at = static_cast<uint32_t>(hash_handle(g_owners[i].owner) >> 32) & (capacity - 1);
      while (owners[at].first != nullptr) at = (at + 1) & (capacity - 1);
      owners[at] = g_owners[i];
      ++used;
    }
    g_pool.release(g_owners, g_owner_capacity * sizeof(OwnerSlot));
    g_owners = owners;
    g_owner_capacity = capacity;
    g_owner_used = used;
  }
  if (g_owner_capacity == 0) return nullptr;
  // Owner 0, "unknown", is stored as 1: no module lies there.
  const uintptr_t key = owner == 0 ? 1 : owner;
  for (uint32_t at = static_cast<uint32_t>(hash_handle(key) >> 32);; ++at) {
    OwnerSlot& slot = g_owners[at & (g_owner_capacity - 1)];
    if (slot.owner == key) return &slot.first;
    if (slot.owner == 0) {
      if (!may_add) return nullptr;
      slot.owner = key;
      ++g_owner_used;
      return &slot.first;
    }
  }
}

size_t params_bytes(uint32_t count) { return (count + 1) * sizeof(Param); }

void release_candidates(Record* record) {
  for (uint32_t i = 0; i < record->candidate_count; ++i) {
    release_decisions(&record->candidates[i]);
  }
  g_pool.release(record->candidates, record->candidate_count * sizeof(Candidate));
  g_pool.release(record->params, params_bytes(record->param_count));
  if (record->symbol != nullptr) g_pool.release(record->symbol, strlen(record->symbol) + 1);
}

size_t record_bytes() { return is_recording() ? sizeof(RecordedHandle) : sizeof(Record); }

void release_record(Record* record) {
  release_candidates(record);
  g_pool.release(record, record_bytes());
}

// Holding g_lock. The record is in no list and no slot.
void take_away(Record* record) {
  record->next_of_owner = g_collected.records;
  g_collected.records = record;
}

void reuse(Taken* taken) {
  while (Record* record = taken->records) {
    taken->records = record->next_of_owner;
    release_record(record);
  }
  while (HandleTable* table = taken->tables) {
    taken->tables = table->next;
    g_pool.release(table, table_bytes(table->mask + 1));
  }
  while (Generation* generation = taken->generations) {
    taken->generations = generation->next;
    generation->next = g_ended;
    g_ended = generation;
  }
}

// Holding g_lock, at the end of whatever takes something away.
void reuse_what_none_reads() {
  for (int i = 0; i < 2; ++i) {
    if (!g_waiting.is_empty()) {
      if (!g_grace.has_ended()) return;
      reuse(&g_waiting);
    }
    if (g_collected.is_empty()) return;
    g_waiting = g_collected;
    g_collected = {};
    g_grace.begin();
  }
}

// Holding g_lock. The record is in no owner's list any more.
void kill_record(Record* record) {
  HandleSlot* slot = slot_in(g_table, record->handle);
  if (record_of(slot->value.load(std::memory_order_relaxed)) == record) {
    slot->value.store(0, std::memory_order_release);
  }
  take_away(record);
}

// Holding g_lock.
void unlink_record(Record* record) {
  Record** at = owner_list(record->owner, false);
  while (at != nullptr && *at != nullptr && *at != record) at = &(*at)->next_of_owner;
  if (at != nullptr && *at == record) *at = record->next_of_owner;
}

// Holding g_lock. The handle means something else now, of which nothing is known.
void forget_handle(uintptr_t handle) {
  if (g_table == nullptr) return;
  const uintptr_t slot = find_handle(reinterpret_cast<const void*>(handle));
  if (slot == 0) return;
  Record* record = record_of(slot);
  unlink_record(record);
  kill_record(record);
  reuse_what_none_reads();
}

// Holding g_lock.
void kill_list(uintptr_t owner) {
  Record** list = owner_list(owner, false);
  if (list == nullptr) return;
  Record* record = *list;
  *list = nullptr;
  while (record != nullptr) {
    Record* next = record->next_of_owner;
    kill_record(record);
    record = next;
  }
}

enum class Answer { known, unknown, not_now };

// The kernel's parameter table from the driver. Unknown: the driver cannot tell (before 12.4), or
// the kernel has more than the launch path takes. Not now: it refused to tell, and may not the next
// time.
Answer ask_params(const void* handle, HandleKind kind, Param* params, uint32_t* count) {
  const auto function_info = FIBSHIM_REAL(cuFuncGetParamInfo);
  const auto kernel_info = FIBSHIM_REAL(cuKernelGetParamInfo);
  auto* as_function = static_cast<CUfunction>(const_cast<void*>(handle));
  auto* as_kernel = static_cast<CUkernel>(const_cast<void*>(handle));
  for (uint32_t i = 0; i <= kMaxParams; ++i) {
    size_t offset = 0;
    size_t size = 0;
    CUresult result;
    if (kind == HandleKind::kernel && kernel_info != nullptr) {
      result = kernel_info(as_kernel, i, &offset, &size);
    } else if (kind == HandleKind::function && function_info != nullptr) {
      result = function_info(as_function, i, &offset, &size);
    } else {
      return Answer::unknown;
    }
    if (result == CUDA_ERROR_INVALID_VALUE) {
      *count = i;
      return Answer::known;
    }
    if (result != CUDA_SUCCESS) return Answer::not_now;
    if (i == kMaxParams) return Answer::unknown;
    params[i] = {static_cast<uint32_t>(offset), static_cast<uint32_t>(size)};
  }
  return Answer::unknown;
}

bool has_layout(const Snapshot& snapshot, const Pattern& pattern, const Param* params,
                uint32_t count) {
  if (pattern.has_params == 0) return true;
  if (pattern.param_sizes.count != count) return false;
  const uint16_t* sizes = snapshot.begin(pattern.param_sizes);
  for (uint32_t i = 0; i < count; ++i) {
    if (sizes[i] != params[i].size) return false;
  }
  return true;
}

// What a pattern reads must lie within the parameters that the kernel has.
bool reads_within(const Snapshot& snapshot, const Pattern& pattern, const Param* params,
                  uint32_t count) {
  if (!program_fits(snapshot, pattern.where, params, count)) return false;
  const KeyPart* key = snapshot.begin(pattern.key);
  for (uint32_t i = 0; i < pattern.key.count; ++i) {
    if (!program_fits(snapshot, key[i].program, params, count)) return false;
  }
  return true;
}

// The module or library of a handle that was not seen being handed out.
uintptr_t ask_owner(const void* handle, HandleKind kind) {
  const auto module_of = FIBSHIM_REAL(cuFuncGetModule);
  const auto library_of_kernel = FIBSHIM_REAL(cuKernelGetLibrary);
  CUmodule module = nullptr;
  CUlibrary library = nullptr;
  if (kind == HandleKind::function && module_of != nullptr &&
      module_of(&module, static_cast<CUfunction>(const_cast<void*>(handle))) == CUDA_SUCCESS) {
    return reinterpret_cast<uintptr_t>(module);
  }
  if (kind == HandleKind::kernel && library_of_kernel != nullptr &&
      library_of_kernel(&library, static_cast<CUkernel>(const_cast<void*>(handle))) ==
          CUDA_SUCCESS) {
    return reinterpret_cast<uintptr_t>(library);
  }
  return 0;
}

uintptr_t library_of_module(uintptr_t module) {
  MutexGuard guard(g_lock);
  for (const LibraryModule* at = g_library_modules; at != nullptr; at = at->next) {
    if (at->module == module) return at->library;
  }
  return 0;
}

bool find_image_of_owner(uintptr_t owner, ImageIdentity* out) {
  // A module that cuLibraryGetModule gave has its library's image.
  return owner != 0 && (find_image(owner, out) || find_image(library_of_module(owner), out));
}

bool has_image(const Snapshot& snapshot, const Pattern& pattern, const ImageHash* hash) {
  if (pattern.images.count == 0) return true;
  if (hash == nullptr) return false;
  const ImageHash* images = snapshot.begin(pattern.images);
  for (uint32_t i = 0; i < pattern.images.count; ++i) {
    if (images[i].low == hash->low && images[i].high == hash->high) return true;
  }
  return false;
}

// What a pattern's writer needs to mend it: the messages give the kernel's own, as patterns spell it.
void explain_params(const char* symbol, const char* label, const Param* params, uint32_t count) {
  if (log_level() < LogLevel::info) return;
  char sizes[kMaxParams * 8 + 1] = "";
  size_t used = 0;
  for (uint32_t i = 0; i < count && used < sizeof sizes; ++i) {
    used += static_cast<size_t>(
        snprintf(sizes + used, sizeof sizes - used, "%s%u", i == 0 ? "" : ", ", params[i].size));
  }
  log_message(LogLevel::info, "%s: fits the symbol of pattern %s, but its params are [%s]", symbol,
              label, sizes);
}

void explain_image(const char* symbol, const char* label, const ImageHash* hash) {
  if (hash == nullptr) {
    log_message(LogLevel::info, "%s: pattern %s asks for an image, and this one's is not known",
                symbol, label);
    return;
  }
  log_message(LogLevel::info,
              "%s: pattern %s asks for another image; this one is xxh128:%016llx%016llx", symbol,
              label, static_cast<unsigned long long>(hash->high),
              static_cast<unsigned long long>(hash->low));
}

void fill_candidate(const Generation& generation, const SymbolMatch& match, Record* record,
                    uint32_t index) {
  const Snapshot& snapshot = *generation.snapshot;
  Candidate* const out = &record->candidates[index];
  const Pattern& pattern = snapshot.begin(snapshot.patterns)[match.pattern];
  out->first.store(&g_undecided, std::memory_order_relaxed);
  out->record = record;
  out->generation = &generation;
  out->snapshot = &snapshot;
  out->pattern = &pattern;
  out->where = snapshot.begin(pattern.where);
  out->where_count = pattern.where.count;
  out->key = snapshot.begin(pattern.key);
  out->key_count = pattern.key.count;
  out->match = match;
  out->key_kind = out->key_count == 0 ? KeyKind::none : KeyKind::computed;
  const Step* first = out->key_count == 1 ? snapshot.begin(out->key[0].program) : nullptr;
  if (first != nullptr && out->key[0].program.count == 1 && first->op == Op::load_param) {
    if (first->type == ValueType::int32 || first->type == ValueType::uint32) {
      out->key_kind = KeyKind::int32;
    } else if (first->type == ValueType::int64) {
      out->key_kind = KeyKind::int64;
    }
    out->key_param = first->index;
    out->key_offset = first->offset;
  }
  for (uint32_t i = 0; i < kMaxCaptures; ++i) out->captures[i] = match.captures[i].value;
}

// Room for matches beyond kFewMatches, given back at the end of its scope.
class MatchBlock {
 public:
  explicit MatchBlock(uint32_t count)
      : bytes_(count * sizeof(SymbolMatch)),
        block_(count == 0 ? nullptr : g_pool.allocate(bytes_)) {}
  ~MatchBlock() { g_pool.release(block_, bytes_); }
  MatchBlock(const MatchBlock&) = delete;
  MatchBlock& operator=(const MatchBlock&) = delete;
  SymbolMatch* matches() const { return static_cast<SymbolMatch*>(block_); }

 private:
  size_t bytes_;
  void* block_;
};

bool keep_symbol(Record* record, const char* symbol) {
  const size_t bytes = strlen(symbol) + 1;
  record->symbol = static_cast<char*>(g_pool.allocate(bytes));
  if (record->symbol != nullptr) memcpy(record->symbol, symbol, bytes);
  return record->symbol != nullptr;
}

// A kernel that a record is to be made of.
struct Kernel {
  const void* handle;
  HandleKind kind;
  uintptr_t owner;
  const char* symbol;
  uintptr_t image_owner;  // 0: the owner, or to be asked
  const Record*
      before;  // of an earlier generation, which knows what the driver would be asked; or null
};

void keep_image_owner(Record* record, uintptr_t owner) {
  memcpy(&record->params[record->param_count], &owner, sizeof owner);
}
static_assert(sizeof(Param) == sizeof(uintptr_t));

uintptr_t image_owner_of(const Record& record) {
  uintptr_t owner = record.owner;
  if (record.params != nullptr) {
    memcpy(&owner, &record.params[record.param_count], sizeof owner);
  }
  return owner;
}

Answer find_params(const Kernel& kernel, Param* params, uint32_t* count) {
  const Record* const before = kernel.before;
  if (before == nullptr) return ask_params(kernel.handle, kernel.kind, params, count);
  *count = before->param_count;
  if (before->has_params) memcpy(params, before->params, *count * sizeof(Param));
  return before->has_params ? Answer::known : Answer::unknown;
}

// Of a kernel without candidates, whose image has another owner than itself.
bool keep_image_owner_alone(Record* record, uintptr_t owner) {
  record->params = static_cast<Param*>(g_pool.allocate(params_bytes(0)));
  if (record->params != nullptr) keep_image_owner(record, owner);
  return record->params != nullptr;
}

// A record, whole but for its place in the table. Null: no memory, or the driver does not tell now.
Record* build_record(const Generation& generation, const Kernel& kernel) {
  const Snapshot& snapshot = *generation.snapshot;
  const void* const handle = kernel.handle;
  const HandleKind kind = kernel.kind;
  const uintptr_t owner = kernel.owner;
  const char* const symbol = kernel.symbol;
  uintptr_t image_owner = kernel.image_owner;
  auto* record = static_cast<Record*>(g_pool.allocate(record_bytes()));
  if (record == nullptr) return nullptr;
  record->handle = reinterpret_cast<uintptr_t>(handle);
  record->owner = owner;
  record->name_hash = hash_name(symbol);
  record->kind = kind;
  SymbolMatch few[kFewMatches];
  SymbolMatch* matches = few;
  const uint32_t match_count =
      generation.knows_patterns() ? loader().match(&snapshot, symbol, few, kFewMatches) : 0;
  if (match_count == 0 && !is_recording() && kernel.before == nullptr) {
    if (image_owner == 0 || image_owner == owner || keep_image_owner_alone(record, image_owner)) {
      return record;
    }
    release_record(record);
    return nullptr;
  }
  const MatchBlock block(match_count > kFewMatches ? match_count : 0);
  if (match_count > kFewMatches) {
    matches = block.matches();
    if (matches == nullptr) {
      release_record(record);
      return nullptr;
    }
    (void)loader().match(&snapshot, symbol, matches, match_count);
  }

  if (!keep_symbol(record, symbol)) {
    release_record(record);
    return nullptr;
  }
  Param params[kMaxParams];
  uint32_t param_count = 0;
  if (image_owner == 0) image_owner = owner != 0 ? owner : ask_owner(handle, kind);
  const Answer answer = find_params(kernel, params, &param_count);
  if (answer == Answer::not_now) {
    release_record(record);
    return nullptr;
  }
  if (answer == Answer::unknown) {
    static std::atomic<bool> was_warned{false};
    const bool is_first = !was_warned.exchange(true, std::memory_order_relaxed);
    log_message(is_first ? LogLevel::warn : LogLevel::info,
                "%s: the driver does not tell its parameters (drivers from CUDA 12.4 on do); such "
                "kernels are left alone",
                symbol);
    if (image_owner != owner) (void)keep_image_owner_alone(record, image_owner);
    return record;
  }
  ImageIdentity identity;
  const ImageHash* image = nullptr;
  bool was_asked = false;
  uint32_t kept = 0;
  for (uint32_t i = 0; i < match_count; ++i) {
    const Pattern& pattern = snapshot.begin(snapshot.patterns)[matches[i].pattern];
    if (!has_layout(snapshot, pattern, params, param_count) ||
        !reads_within(snapshot, pattern, params, param_count)) {
      explain_params(symbol, snapshot.text(pattern.label), params, param_count);
      continue;
    }
    if (pattern.images.count != 0 && !was_asked) {
      was_asked = true;
      if (find_image_of_owner(image_owner, &identity)) image = &identity.hash;
    }
    if (!has_image(snapshot, pattern, image)) {
      explain_image(symbol, snapshot.text(pattern.label), image);
      continue;
    }
    if (kept == kMaxCandidates) {
      log_message(LogLevel::warn, "%s: more than %u patterns fit; the rest are not tried", symbol,
                  kMaxCandidates);
      break;
    }
    matches[kept++] = matches[i];
  }
  // Whether GPUs are of unlike kinds must be known before the first decision.
  if (kept != 0) (void)device_class_count();
  record->candidates = static_cast<Candidate*>(g_pool.allocate(kept * sizeof(Candidate)));
  record->params = static_cast<Param*>(g_pool.allocate(params_bytes(param_count)));
  if (record->candidates == nullptr || record->params == nullptr) {
    g_pool.release(record->candidates, kept * sizeof(Candidate));
    g_pool.release(record->params, params_bytes(param_count));
    record->candidates = nullptr;
    record->params = nullptr;
    release_record(record);
    return nullptr;
  }
  memcpy(record->params, params, param_count * sizeof(Param));
  record->param_count = static_cast<uint8_t>(param_count);
  keep_image_owner(record, image_owner);
  record->has_params = true;
  record->params_bytes =
      param_count == 0 ? 0 : params[param_count - 1].offset + params[param_count - 1].size;
  for (uint32_t i = 0; i < kept; ++i) fill_candidate(generation, matches[i], record, i);
  record->candidate_count = static_cast<uint8_t>(kept);
  return record;
}

// Every image that a launch of this handle may need, for every kind of GPU: so that a launch, in a
// capture too, needs no driver call but itself.
void load_replacements(const Record& record) {
  const uint32_t class_count = device_class_count();
  for (uint32_t i = 0; i < record.candidate_count; ++i) {
    const Generation& generation = *record.candidates[i].generation;
    const Snapshot& snapshot = *generation.snapshot;
    const Pattern& pattern = *record.candidates[i].pattern;
    const Route* routes = snapshot.begin(pattern.routes);
    for (uint32_t r = 0; r < pattern.routes.count; ++r) {
      const Binding& binding = snapshot.begin(snapshot.bindings)[routes[r].binding];
      if (binding.state != BindingState::ready) continue;
      for (uint32_t c = 0; c < class_count; ++c) (void)load_replacement(generation, binding, c);
    }
  }
}

uintptr_t value_of(Record* record) {
  const auto address = reinterpret_cast<uintptr_t>(record);
  // While launches are recorded all of them must come to the slow side.
  if (record->candidate_count == 0) return is_recording() ? address : address | kUntracked;
  const bool depends_on_device = record->kind == HandleKind::kernel && g_tells_devices_apart.load();
  const Candidate& first = record->candidates[0];
  const bool is_simple = !depends_on_device && record->candidate_count == 1 &&
                         first.key_kind != KeyKind::computed &&
                         first.generation->mode == Mode::apply;
  return is_simple ? reinterpret_cast<uintptr_t>(record->candidates) | kSimple : address;
}

enum class Inserted : uint8_t { yes, no_memory, too_late };

// Publishes a record, unless another generation has come into force since it was begun.
Inserted insert_record(const Generation& generation, Record* record, uintptr_t* value) {
  MutexGuard guard(g_lock);
  if (current_generation() != &generation) return Inserted::too_late;
  HandleTable* table = table_with_room();
  Record** list = table == nullptr ? nullptr : owner_list(record->owner, true);
  if (list == nullptr) return Inserted::no_memory;
  *value = value_of(record);
  HandleSlot* slot = slot_in(table, record->handle);
  const uintptr_t previous = slot->value.exchange(*value, std::memory_order_acq_rel);
  if (previous != 0) {
    // Not matched yet, or reused for another kernel without an unload that we saw.
    Record* stale = record_of(previous);
    unlink_record(stale);
    take_away(stale);
  }
  record->next_of_owner = *list;
  *list = record;
  reuse_what_none_reads();
  return Inserted::yes;
}

// Records of the next generation, by the ones whose place they take: a table by handle, in which a
// record's next_of_owner is the old one. The watcher's own, but that the lock guards the walk at the end.
class Successors {
 public:
  explicit Successors(const Generation& next) : next_(next) {}
  ~Successors() {
    for (uint64_t i = 0; i < capacity(); ++i) {
      const uintptr_t value = table_->slots()[i].value.load(std::memory_order_relaxed);
      if (value != 0) release_record(reinterpret_cast<Record*>(value));
    }
    if (table_ != nullptr) g_pool.release(table_, table_bytes(capacity()));
  }
  Successors(const Successors&) = delete;
  Successors& operator=(const Successors&) = delete;

  // Makes those that lack, of all that live, outside the lock. False: no memory.
  bool make() {
    Record** lacking = nullptr;
    const uint64_t count = collect(&lacking);
    bool is_fine = count == 0 || (lacking != nullptr && make_room(count));
    for (uint64_t i = 0; is_fine && i < count; ++i) is_fine = make_one(lacking[i]);
    g_pool.release(lacking, count * sizeof(Record*));
    return is_fine;
  }

  // Holding g_lock.
  bool are_complete() const {
    bool is_complete = true;
    for_each_living([&](Record* record) {
      is_complete = is_complete && (record->symbol == nullptr || find(record) != nullptr);
    });
    return is_complete;
  }

  // Holding g_lock. The old one's; null: there is none. It is not this object's any more.
  Record* take(const Record* old) {
    HandleSlot* const slot = table_ == nullptr ? nullptr : find(old);
    if (slot == nullptr) return nullptr;
    return reinterpret_cast<Record*>(slot->value.exchange(0, std::memory_order_relaxed));
  }

 private:
  template <class Use>
  static void for_each_living(const Use& use) {
    for (uint32_t i = 0; i < g_owner_capacity; ++i) {
      for (Record* at = g_owners[i].first; at != nullptr; at = at->next_of_owner) use(at);
    }
  }

  uint64_t capacity() const { return table_ == nullptr ? 0 : table_->mask + 1; }

  HandleSlot* find(const Record* old) const {
    if (table_ == nullptr) return nullptr;
    for (uint64_t at = first_slot(old->handle);; ++at) {
      HandleSlot& slot = table_->slots()[at & table_->mask];
      const uintptr_t key = slot.key.load(std::memory_order_relaxed);
      if (key == 0) return nullptr;
      const auto* made = reinterpret_cast<Record*>(slot.value.load(std::memory_order_relaxed));
      // The handle may be another kernel's by now: the old record is not used again while we look.
      if (key == old->handle && made != nullptr && made->next_of_owner == old) return &slot;
      if (key == old->handle) return nullptr;
    }
  }

  uint64_t collect(Record*** lacking) const {
    MutexGuard guard(g_lock);
    uint64_t count = 0;
    for_each_living([&](Record* record) { count += record->symbol != nullptr; });
    *lacking = static_cast<Record**>(g_pool.allocate(count * sizeof(Record*)));
    if (*lacking == nullptr) return count;
    uint64_t used = 0;
    for_each_living([&](Record* record) {
      if (record->symbol != nullptr && find(record) == nullptr) (*lacking)[used++] = record;
    });
    // What is left is never looked at.
    for (uint64_t i = used; i < count; ++i) (*lacking)[i] = nullptr;
    return count;
  }

  bool make_room(uint64_t more) {
    uint64_t wanted = kSmallestCapacity;
    while (wanted < ((table_ == nullptr ? 0 : table_->used) + more) * 2) wanted *= 2;
    if (wanted <= capacity()) return true;
    auto* table = static_cast<HandleTable*>(g_pool.allocate(table_bytes(wanted)));
    if (table == nullptr) return false;
    table->mask = wanted - 1;
    for (uint64_t i = 0; i < capacity(); ++i) {
      const uintptr_t value = table_->slots()[i].value.load(std::memory_order_relaxed);
      if (value == 0) continue;
      slot_in(table, reinterpret_cast<Record*>(value)->handle)
          ->value.store(value, std::memory_order_relaxed);
    }
    if (table_ != nullptr) g_pool.release(table_, table_bytes(capacity()));
    table_ = table;
    return true;
  }

  bool make_one(Record* old) {
    if (old == nullptr) return true;
    Record* record = build_record(next_, {reinterpret_cast<const void*>(old->handle), old->kind,
                                          old->owner, old->symbol, image_owner_of(*old), old});
    if (record == nullptr) return false;
    if (is_recording()) {
      recorded_kernel_of(*record).store(recorded_kernel_of(*old).load(std::memory_order_acquire),
                                        std::memory_order_relaxed);
    }
    if (record->candidate_count != 0) load_replacements(*record);
    record->next_of_owner = old;
    HandleSlot* const slot = slot_in(table_, record->handle);
    const uintptr_t stale =
        slot->value.exchange(reinterpret_cast<uintptr_t>(record), std::memory_order_relaxed);
    if (stale != 0) release_record(reinterpret_cast<Record*>(stale));
    return true;
  }

  const Generation& next_;
  HandleTable* table_ = nullptr;
};

// Holding g_lock. Puts the next generation's records, and the old ones that it has none for, into a
// table, and the owners' lists. The old records are taken away.
void move_records(Successors* successors, const Generation& next, HandleTable* table) {
  for (uint32_t i = 0; i < g_owner_capacity; ++i) {
    for (Record** at = &g_owners[i].first; *at != nullptr; at = &(*at)->next_of_owner) {
      Record* const old = *at;
      Record* const made = old->symbol == nullptr ? nullptr : successors->take(old);
      uintptr_t value = reinterpret_cast<uintptr_t>(old);
      if (made != nullptr) {
        made->next_of_owner = old->next_of_owner;
        *at = made;
        take_away(old);
        value = value_of(made);
      } else {
        // Without patterns no kernel is known, and no launch need stop to find that out.
        value |= old->symbol == nullptr && !next.knows_patterns() ? kUntracked : kUnmatched;
      }
      slot_in(table, old->handle)->value.store(value, std::memory_order_relaxed);
    }
  }
}

}  // namespace

constinit std::atomic<const HandleTable*> g_handle_table{&g_empty_table.table};

uintptr_t library_of(const void* kernel) {
  const ReadSection section;
  const uintptr_t slot = find_handle(kernel);
  return slot == 0 ? 0 : record_of(slot)->owner;
}

// Of a handle that was given out anew, and of which no record could be made.
static uintptr_t know_nothing_of(const void* handle) {
  MutexGuard guard(g_lock);
  forget_handle(reinterpret_cast<uintptr_t>(handle));
  return 0;
}

uintptr_t remember_handle(const void* handle, HandleKind kind, uintptr_t owner, const char* symbol,
                          uintptr_t image_owner) {
  if (!upcalls::ensure_started() || handle == nullptr || symbol == nullptr) return 0;
  // The caller may read what this gives it; and no generation that is looked at here ends.
  const ReadSection section;
  const uintptr_t known = find_handle(handle);
  if (known != 0 && (known & kUnmatched) == 0) {
    // Hosts ask for the same function again and again.
    const Record* record = record_of(known);
    if (record->owner == owner && record->kind == kind && record->name_hash == hash_name(symbol)) {
      return known;
    }
  }
  for (;;) {
    const Generation& generation = *current_generation();
    Record* record = build_record(generation, {handle, kind, owner, symbol, image_owner, nullptr});
    if (record == nullptr) return know_nothing_of(handle);
    uintptr_t value = 0;
    switch (insert_record(generation, record, &value)) {
      case Inserted::yes:
        if (record->candidate_count != 0) load_replacements(*record);
        return value;
      case Inserted::no_memory: release_record(record); return know_nothing_of(handle);
      case Inserted::too_late: release_record(record); break;
    }
  }
}

uintptr_t remember_stranger(const void* handle) {
  if (!upcalls::ensure_started() || !resolve_driver()) return 0;
  const auto kernel_name = FIBSHIM_REAL(cuKernelGetName);
  const auto function_name = FIBSHIM_REAL(cuFuncGetName);
  const char* name = nullptr;
  auto* as_kernel = static_cast<CUkernel>(const_cast<void*>(handle));
  auto* as_function = static_cast<CUfunction>(const_cast<void*>(handle));
  uintptr_t owner = 0;
  uintptr_t image_owner = 0;
  const ReadSection section;
  const uintptr_t known = find_handle(handle);
  if (known != 0) {
    const Record& record = *record_of(known);
    owner = record.owner;
    image_owner = image_owner_of(record);
  }
  // The names are borrowed from the driver; remember_handle copies what it keeps.
  if (function_name != nullptr && function_name(&name, as_function) == CUDA_SUCCESS) {
    return remember_handle(handle, HandleKind::function, owner, name, image_owner);
  }
  if (kernel_name != nullptr && kernel_name(&name, as_kernel) == CUDA_SUCCESS) {
    return remember_handle(handle, HandleKind::kernel, owner, name, image_owner);
  }
  return 0;
}

void find_image_of(const Record& record, ImageIdentity* out) {
  *out = {};
  (void)find_image_of_owner(image_owner_of(record), out);
}

void remember_library_module(uintptr_t module, uintptr_t library) {
  if (!upcalls::ensure_started()) return;
  MutexGuard guard(g_lock);
  for (LibraryModule* at = g_library_modules; at != nullptr; at = at->next) {
    if (at->module != module) continue;
    at->library = library;
    return;
  }
  auto* added = static_cast<LibraryModule*>(g_pool.allocate(sizeof(LibraryModule)));
  if (added == nullptr) return;
  *added = {module, library, g_library_modules};
  g_library_modules = added;
}

void prepare_handles(const Generation& next) {
  const ReadSection section;
  (void)Successors(next).make();
}

bool put_in_force(Generation* next) {
  // Handed out meanwhile, again and again: what is left is matched at its next launch.
  constexpr int kMostRounds = 4;
  const ReadSection section;
  Successors successors(*next);
  for (int round = 1;; ++round) {
    if (!successors.make()) return false;
    load_into_contexts(*next);
    MutexGuard guard(g_lock);
    if (round < kMostRounds && !successors.are_complete()) continue;
    uint64_t living = 0;
    for (uint32_t i = 0; i < g_owner_capacity; ++i) {
      for (const Record* at = g_owners[i].first; at != nullptr; at = at->next_of_owner) ++living;
    }
    HandleTable* const table = new_table(living);
    if (table == nullptr) return false;
    move_records(&successors, *next, table);
    Generation* const before = exchange_generation(next);
    publish_table(table);
    before->next = g_collected.generations;
    g_collected.generations = before;
    reuse_what_none_reads();
    return true;
  }
}

Generation* take_ended_generation(bool* has_more) {
  MutexGuard guard(g_lock);
  reuse_what_none_reads();
  *has_more = !g_waiting.is_empty() || !g_collected.is_empty();
  Generation* const ended = g_ended;
  if (ended != nullptr) g_ended = ended->next;
  return ended;
}

void forget_owner(uintptr_t owner) {
  if (!has_started()) return;
  MutexGuard guard(g_lock);
  if (g_table != nullptr) {
    kill_list(owner);
    kill_list(0);
  }
  for (LibraryModule** at = &g_library_modules; *at != nullptr;) {
    LibraryModule* one = *at;
    if (one->library != owner) {
      at = &one->next;
      continue;
    }
    if (g_table != nullptr) kill_list(one->module);
    *at = one->next;
    g_pool.release(one, sizeof(LibraryModule));
  }
  reuse_what_none_reads();
}

void forget_functions() {
  if (!has_started()) return;
  MutexGuard guard(g_lock);
  for (uint32_t i = 0; i < g_owner_capacity; ++i) {
    Record** at = &g_owners[i].first;
    while (*at != nullptr) {
      Record* record = *at;
      if (record->kind == HandleKind::function) {
        *at = record->next_of_owner;
        kill_record(record);
      } else {
        at = &record->next_of_owner;
      }
    }
  }
  reuse_what_none_reads();
}

void take_kernels_off_fast_side() {
  MutexGuard guard(g_lock);
  const uint64_t capacity = g_table == nullptr ? 0 : g_table->mask + 1;
  for (uint64_t i = 0; i < capacity; ++i) {
    HandleSlot& slot = g_table->slots()[i];
    const uintptr_t value = slot.value.load(std::memory_order_relaxed);
    if ((value & kSimple) == 0 || record_of(value)->kind != HandleKind::kernel) continue;
    slot.value.store(reinterpret_cast<uintptr_t>(record_of(value)), std::memory_order_release);
  }
}

void lock_handles_for_fork() {
  g_lock.lock();
  g_pool.lock_for_fork();
}

void unlock_handles_after_fork(bool is_child) {
  if (is_child) g_grace.end_in_child();
  g_pool.unlock_after_fork(is_child);
  g_lock.unlock_after_fork(is_child);
}

}  // namespace fibshim
