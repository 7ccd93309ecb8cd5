#include "shim/registry/handles.h"

#include <string.h>

#include "shim/base/hot.h"
#include "shim/base/read_section.h"
#include "shim/base/settings_in_force.h"
#include "shim/registry/decisions.h"
#include "shim/registry/devices.h"
#include "shim/registry/handle_store.h"

namespace fibshim {
namespace handle_store {

constinit Mutex g_lock;
constinit Pool g_pool;
constinit HashMap<Owner> g_owners{&g_pool};
Generation* g_ended;

}  // namespace handle_store

namespace {

using namespace handle_store;  // NOLINT(google-build-using-namespace): the writers' own

// The table that find_handle() reads before the first handle is known.
struct EmptyTable {
  HandleTable table = {sizeof(HandleSlot), {0}};
  HandleSlot slots[3] = {};
};
constinit EmptyTable g_empty_table;
static_assert(offsetof(EmptyTable, slots) == sizeof(HandleTable));

HandleTable* g_table;  // the published table, for its writers; null before the first

// Retired entries, tables and generations. Those in g_waiting wait for the end of the grace period;
// those in g_collected were retired since it began. Entries are retired in crowds: all functions
// of a context that ends, all entries of unknown owner when any module ends. Most of their handles
// live on, and other threads may be launching them from these entries.
struct Retired {
  HandleEntry* entries;  // by next_of_owner
  HandleTable* tables;
  Generation* generations;

  bool is_empty() const {
    return entries == nullptr && tables == nullptr && generations == nullptr;
  }
};
Retired g_collected;
Retired g_waiting;
GracePeriod g_grace;

void reuse(Retired* retired) {
  while (HandleEntry* const entry = retired->entries) {
    retired->entries = entry->next_of_owner;
    release_entry(entry);
  }
  while (HandleTable* const table = retired->tables) {
    retired->tables = table->next;
    g_pool.release(table, table_bytes(table->capacity()));
  }
  while (Generation* const generation = retired->generations) {
    retired->generations = generation->next;
    generation->next = g_ended;
    g_ended = generation;
  }
}

// Requires g_lock. Returns a table with room for one more key, or null if there is no memory.
HandleTable* table_with_room() {
  HandleTable* const old = g_table;
  const uint64_t capacity = old == nullptr ? 0 : old->capacity();
  if (old != nullptr && (old->used + 1) * 2 <= capacity) return old;
  uint64_t living = 0;
  for (uint64_t i = 0; i < capacity; ++i) {
    if (old->slots()[i].value.load(std::memory_order_relaxed) != 0) ++living;
  }
  HandleTable* const table = new_table(living);
  if (table == nullptr) return nullptr;
  for (uint64_t i = 0; i < capacity; ++i) {
    const uintptr_t value = old->slots()[i].value.load(std::memory_order_relaxed);
    if (value == 0) continue;
    slot_in(table, old->slots()[i].key.load(std::memory_order_relaxed))
        ->value.store(value, std::memory_order_relaxed);
  }
  publish_table(table);
  return table;
}

constexpr uint64_t kUnknownOwner = 1;  // no module has this address
uint64_t key_of_owner(uintptr_t owner) { return owner == 0 ? kUnknownOwner : owner; }

// Requires g_lock. Null: no memory for another owner.
Owner* find_or_add_owner(uintptr_t owner) {
  const uint64_t key = key_of_owner(owner);
  if (Owner* const found = g_owners.get(key)) return found;
  auto* const added = static_cast<Owner*>(g_pool.allocate(sizeof(Owner)));
  if (added == nullptr) return nullptr;
  added->key = key;
  if (g_owners.insert(added)) return added;
  g_pool.release(added, sizeof(Owner));
  return nullptr;
}

// Requires g_lock. Removes and retires an entry that is no longer in an owner's list.
void kill(HandleEntry* entry) {
  HandleSlot* const slot = slot_in(g_table, entry->handle);
  if (entry_of(slot->value.load(std::memory_order_relaxed)) == entry) {
    slot->value.store(0, std::memory_order_release);
  }
  retire(entry);
}

// Requires g_lock. Removes an entry from its owner's list.
void unlink(HandleEntry* entry) {
  Owner* const owner = g_owners.get(key_of_owner(entry->owner));
  HandleEntry** at = owner == nullptr ? nullptr : &owner->first;
  while (at != nullptr && *at != nullptr && *at != entry) at = &(*at)->next_of_owner;
  if (at != nullptr && *at == entry) *at = entry->next_of_owner;
}

// Requires g_lock. Removes and retires the entries of a list for which `is_dying(entry)`.
template <class IsDying>
void kill_those(Owner* owner, const IsDying& is_dying) {
  for (HandleEntry** at = &owner->first; *at != nullptr;) {
    HandleEntry* const entry = *at;
    if (is_dying(*entry)) {
      *at = entry->next_of_owner;
      kill(entry);
    } else {
      at = &entry->next_of_owner;
    }
  }
}

size_t bytes_of_record(const Record& record) {
  return sizeof(Record) + record.candidate_count * sizeof(Candidate) +
         record.param_count * sizeof(Param) + record.member_count * sizeof(uint32_t) +
         record.inputs.count * sizeof(LaunchInput) + strlen(record.symbol) + 1;
}

// Makes a record in one block: candidates, parameters, members, inputs and the symbol follow it.
Record* make_record(const NewHandle& given, HandleEntry* entry) {
  const size_t symbol_bytes = strlen(given.symbol) + 1;
  const size_t bytes = sizeof(Record) + given.candidate_count * sizeof(Candidate) +
                       given.param_count * sizeof(Param) + given.member_count * sizeof(uint32_t) +
                       given.input_count * sizeof(LaunchInput) + symbol_bytes;
  auto* const record = static_cast<Record*>(g_pool.allocate(bytes));
  if (record == nullptr) return nullptr;
  record->kind = given.kind;
  record->candidate_count = static_cast<uint8_t>(given.candidate_count);
  record->param_count = static_cast<uint8_t>(given.param_count);
  record->candidates = reinterpret_cast<Candidate*>(record + 1);
  record->params = reinterpret_cast<Param*>(record->candidates + given.candidate_count);
  record->member_count = static_cast<uint8_t>(given.member_count);
  record->members = reinterpret_cast<uint32_t*>(record->params + given.param_count);
  record->inputs.count = static_cast<uint8_t>(given.input_count);
  record->inputs.list = reinterpret_cast<LaunchInput*>(record->members + given.member_count);
  record->symbol = reinterpret_cast<char*>(record->inputs.list + given.input_count);
  record->entry = entry;
  record->context = given.context;
  memcpy(record->symbol, given.symbol, symbol_bytes);
  for (uint32_t i = 0; i < given.candidate_count; ++i) {
    record->candidates[i].record = record;
    begin_decisions(&record->candidates[i]);
  }
  return record;
}
static_assert(sizeof(Record) % alignof(Candidate) == 0 && alignof(Candidate) <= Pool::kAlignment &&
              alignof(Record) <= Pool::kAlignment);

}  // namespace

namespace handle_store {

HandleTable* new_table(uint64_t living) {
  uint64_t capacity = g_table == nullptr ? kSmallestCapacity : g_table->capacity();
  while (capacity < (living + 1) * 4) capacity *= 2;
  auto* const table = static_cast<HandleTable*>(g_pool.allocate(table_bytes(capacity)));
  if (table == nullptr) return nullptr;
  table->byte_mask = (capacity - 1) * sizeof(HandleSlot);
  table->slots()[0].key.store(kNoHandle, std::memory_order_relaxed);
  table->used = 1;
  return table;
}

HandleSlot* slot_in(HandleTable* table, uintptr_t key) {
  for (uint64_t place = first_place(key);; place += kNextPlace) {
    HandleSlot& slot = table->slot_at(place);
    const uintptr_t found = slot.key.load(std::memory_order_relaxed);
    if (found == key) return &slot;
    if (found == 0) {
      // The value is still 0, so a reader that finds the key now sees an unknown handle.
      slot.key.store(key, std::memory_order_release);
      ++table->used;
      return &slot;
    }
  }
}

uintptr_t value_of(HandleEntry* entry) {
  const auto address = reinterpret_cast<uintptr_t>(entry);
  const Record* const record = entry->record;
  // While launches are recorded the slow side needs the record.
  if (record == nullptr) return address | kUntracked;
  if (record->candidate_count == 0) return is_recording() ? address : address | kUntracked;
  const Candidate& first = record->candidates[0];
  const bool depends_on_device = entry->kind == HandleKind::kernel && are_devices_told_apart();
  const bool is_simple = !depends_on_device && record->candidate_count == 1 &&
                         first.fast_key.kind != KeyKind::computed &&
                         first.generation->mode == Mode::apply;
  return is_simple ? reinterpret_cast<uintptr_t>(record->candidates) | kSimple : address;
}

// Number of callers that keep launches off the fast side. Guarded by g_lock.
static uint32_t g_kept_off = 0;

void publish_table(HandleTable* table) {
  HandleTable* const old = g_table;
  g_handle_table.store(table, std::memory_order_release);
  if (g_kept_off == 0) g_near_mask.store(table->byte_mask, std::memory_order_release);
  g_table = table;
  if (old == nullptr) return;
  old->next = g_collected.tables;
  g_collected.tables = old;
}

// True if something was retired since g_handle_changes was incremented. Guarded by g_lock.
static bool g_has_changed = false;

void retire(HandleEntry* entry) {
  g_has_changed = true;
  entry->next_of_owner = g_collected.entries;
  g_collected.entries = entry;
}

void retire(Generation* generation) {
  g_has_changed = true;
  generation->next = g_collected.generations;
  g_collected.generations = generation;
}

void reuse_retired() {
  if (g_has_changed) g_handle_changes.fetch_add(1, std::memory_order_release);
  g_has_changed = false;
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

bool has_retired() { return !g_waiting.is_empty() || !g_collected.is_empty(); }

}  // namespace handle_store

FIBSHIM_HOT_DATA constinit std::atomic<const HandleTable*> g_handle_table{&g_empty_table.table};
FIBSHIM_HOT_DATA constinit std::atomic<uint64_t> g_near_mask{0};
constinit std::atomic<uint64_t> g_handle_changes{0};

void suspend_fast_side() {
  MutexGuard guard(g_lock);
  if (g_kept_off++ == 0) g_near_mask.store(0, std::memory_order_release);
}

void resume_fast_side() {
  MutexGuard guard(g_lock);
  if (--g_kept_off == 0) {
    g_near_mask.store(g_handle_table.load()->byte_mask, std::memory_order_release);
  }
}

HandleEntry* make_entry(const NewHandle& given) {
  auto* const entry = static_cast<HandleEntry*>(g_pool.allocate(sizeof(HandleEntry)));
  if (entry == nullptr) return nullptr;
  entry->handle = reinterpret_cast<uintptr_t>(given.handle);
  entry->owner = given.owner;
  entry->image_owner = given.image_owner;
  entry->context = given.context;
  entry->kind = given.kind;
  entry->name_hash = hash_of_text(given.name);
  if (given.symbol == nullptr) return entry;
  entry->record = make_record(given, entry);
  if (entry->record != nullptr) return entry;
  g_pool.release(entry, sizeof(HandleEntry));
  return nullptr;
}

bool is_same_handle(const HandleEntry& entry, HandleKind kind, uintptr_t owner, const char* name) {
  return entry.owner == owner && entry.kind == kind && entry.name_hash == hash_of_text(name);
}

void release_entry(HandleEntry* entry) {
  if (Record* const record = entry->record) {
    for (uint32_t i = 0; i < record->candidate_count; ++i) {
      release_decisions(&record->candidates[i]);
    }
    g_pool.release(record, bytes_of_record(*record));
  }
  g_pool.release(entry, sizeof(HandleEntry));
}

Inserted insert_entry(const Generation& generation, HandleEntry* entry, uintptr_t* value) {
  MutexGuard guard(g_lock);
  if (current_generation() != &generation) return Inserted::too_late;
  HandleTable* const table = table_with_room();
  Owner* const owner = table == nullptr ? nullptr : find_or_add_owner(entry->owner);
  if (owner == nullptr) return Inserted::no_memory;
  *value = value_of(entry);
  HandleSlot* const slot = slot_in(table, entry->handle);
  const uintptr_t previous = slot->value.exchange(*value, std::memory_order_acq_rel);
  if (previous != 0) {
    // The entry was not matched yet, or the handle was reused without an unload that the shim saw.
    HandleEntry* const stale = entry_of(previous);
    unlink(stale);
    retire(stale);
  }
  entry->next_of_owner = owner->first;
  owner->first = entry;
  reuse_retired();
  return Inserted::yes;
}

void forget_handle(const void* handle) {
  MutexGuard guard(g_lock);
  if (g_table == nullptr) return;
  const uintptr_t slot = find_handle(handle);
  if (slot == 0) return;
  HandleEntry* const entry = entry_of(slot);
  unlink(entry);
  kill(entry);
  reuse_retired();
}

void forget_owner(uintptr_t owner) {
  MutexGuard guard(g_lock);
  for (const uintptr_t one : {owner, uintptr_t{0}}) {
    Owner* const found = g_owners.remove(key_of_owner(one));
    if (found == nullptr) continue;
    kill_those(found, [](const HandleEntry&) { return true; });
    g_pool.release(found, sizeof(Owner));
  }
  reuse_retired();
}

void forget_functions(CUcontext context) {
  MutexGuard guard(g_lock);
  const auto is_dying = [context](const HandleEntry& entry) {
    return entry.kind == HandleKind::function &&
           (context == nullptr || entry.context == nullptr || entry.context == context);
  };
  g_owners.for_each([&](Owner* owner) {
    kill_those(owner, is_dying);
    return true;
  });
  reuse_retired();
}

void move_kernels_to_slow_side() {
  MutexGuard guard(g_lock);
  const uint64_t capacity = g_table == nullptr ? 0 : g_table->capacity();
  for (uint64_t i = 0; i < capacity; ++i) {
    HandleSlot& slot = g_table->slots()[i];
    const uintptr_t value = slot.value.load(std::memory_order_relaxed);
    if ((value & kSimple) == 0 || entry_of(value)->kind != HandleKind::kernel) continue;
    slot.value.store(reinterpret_cast<uintptr_t>(entry_of(value)), std::memory_order_release);
  }
  g_handle_changes.fetch_add(1, std::memory_order_release);
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
