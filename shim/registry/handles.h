// The table of all kernel handles that the driver gave out.
//
// The table maps a CUfunction or CUkernel (their values never coincide while both live) to a
// HandleEntry. Readers take no lock and write nothing. Its protocol:
//
//   * A slot's key is written once per table and never changes: a slot found by its key stays that
//     key's slot. Its value is replaced atomically; 0 means that the handle has died.
//   * So a reader that finds a key reads the newest value stored for that very handle, whatever
//     else is inserted or forgotten meanwhile. Release on the value, acquire on its load: what it points
//     to is whole.
//   * Dead keys are dropped when the table is rebuilt, at half full, into a larger one if it is
//     full of living ones. The new table is published by one store. A reader of the old one sees
//     what it could have seen a moment before.
//   * Readers look within a read section (base/read_section.h); entries with their records and decisions,
//     and old tables, are retired when they are unlinked, and used again after a grace period.
//   * Writers (hand-out, unload, swap) hold one mutex, and hold no other while calling the driver.
//   * A swap publishes a new table, whose entries belong to the new generation, by one store
//     (handle_swap.h).
//
// tests/model/handles.pml is a model of this, with the grace periods, that is checked exhaustively.
//
// Memory per handle: 32 to 64 bytes of table, and an entry of 64 bytes; a kernel that a pattern fits adds its
// record, candidates and symbol.
#pragma once

#include "shim/registry/record.h"

namespace fibshim {

struct HandleEntry {
  uintptr_t handle;
  uintptr_t owner;  // the CUmodule or CUlibrary that it dies with; 0: not known
  uint64_t name_hash;
  HandleEntry* next_of_owner;
  Record* record;         // null: no pattern fits, and nothing is recorded
  uintptr_t image_owner;  // whose image the kernel came from; 0: not known
  CUcontext context;      // a CUfunction's; null: not known
  HandleKind kind;
};
static_assert(sizeof(HandleEntry) == 64);

struct HandleSlot {
  std::atomic<uintptr_t> key;    // 0: never used
  std::atomic<uintptr_t> value;  // HandleEntry* or Candidate* with its marks; 0: dead
};

// Followed by its slots, a power of two of them.
struct HandleTable {
  uint64_t byte_mask;   // of a slot's place in bytes: (capacity - 1) * sizeof(HandleSlot)
  union {               // the writer's
    uint64_t used;      // keys written
    HandleTable* next;  // once it is old
  };

  uint64_t capacity() const { return byte_mask / sizeof(HandleSlot) + 1; }
  HandleSlot* slots() { return reinterpret_cast<HandleSlot*>(this + 1); }

  // `place`: first_place(), and kNextPlace more for each slot that was another handle's.
  const HandleSlot& slot_at(uint64_t place) const {
    const char* const bytes = reinterpret_cast<const char*>(this + 1);
    return *reinterpret_cast<const HandleSlot*>(bytes + (place & byte_mask));
  }
  HandleSlot& slot_at(uint64_t place) {
    return const_cast<HandleSlot&>(static_cast<const HandleTable*>(this)->slot_at(place));
  }
};

// Marks in a slot's value, beside an address.
inline constexpr uintptr_t kUntracked = 1;  // the entry's: no pattern fits, and nothing is recorded
inline constexpr uintptr_t kSimple =
    2;  // a candidate's: the only one, and the fast side can read its key
inline constexpr uintptr_t kUnmatched =
    4;  // the entry's: of an earlier generation, to be matched before it is used

inline const Candidate& simple_candidate_of(uintptr_t value) {
  return *reinterpret_cast<const Candidate*>(value - kSimple);
}

inline HandleEntry* entry_of(uintptr_t value) {
  return (value & kSimple) != 0
             ? simple_candidate_of(value).record->entry
             : reinterpret_cast<HandleEntry*>(value & ~(kUntracked | kUnmatched));
}

extern std::atomic<const HandleTable*> g_handle_table __attribute__((visibility("hidden")));
// The table that the fast side reads: the same one, or an empty one while launches are kept off
// that side.
extern std::atomic<const HandleTable*> g_near_table __attribute__((visibility("hidden")));

// Changes whenever something that was found of a handle has died, or another generation has come into force: while it is the same,
// a candidate that was found is still its handle's, and so are its decisions. Read it before.
extern std::atomic<uint64_t> g_handle_changes __attribute__((visibility("hidden")));
inline uint64_t handle_changes() { return g_handle_changes.load(std::memory_order_acquire); }

// Fibonacci hashing: handles are heap addresses, alike in their low and high bits. A constant shift: tables
// have up to 2^32 slots of 2^4 bytes.
inline constexpr uint64_t kHashFactor = 0x9e3779b97f4a7c15;
inline uint64_t first_place(uintptr_t handle) {
  return static_cast<uint64_t>(handle) * kHashFactor >> 28;
}
inline constexpr uint64_t kNextPlace = sizeof(HandleSlot);

// The slot's value where the handle's first place holds it; 0: find_handle() tells.
inline uintptr_t find_near_handle(const void* handle) {
  const auto key = reinterpret_cast<uintptr_t>(handle);
  const HandleSlot& slot = g_near_table.load(std::memory_order_acquire)->slot_at(first_place(key));
  return __builtin_expect(slot.key.load(std::memory_order_acquire) == key, 1)
             ? slot.value.load(std::memory_order_acquire)
             : 0;
}

// The slot's value for a handle, or 0 when nothing is known of it. Hot: wait-free. Within a read
// section, which also guards what it leads to.
inline uintptr_t find_handle(const void* handle) {
  const auto key = reinterpret_cast<uintptr_t>(handle);
  const HandleTable* const table = g_handle_table.load(std::memory_order_acquire);
  for (uint64_t place = first_place(key);; place += kNextPlace) {
    const HandleSlot& slot = table->slot_at(place);
    const uintptr_t found = slot.key.load(std::memory_order_acquire);
    if (found == key) return slot.value.load(std::memory_order_acquire);
    if (found == 0) return 0;
  }
}

// Everything below is for the slow paths.

// An entry that nobody sees yet. The counts say what room its record gets; without a
// symbol it has no record. Zeroed but for the handle's own values and the symbol. Null: no memory.
struct NewHandle {
  const void* handle;
  HandleKind kind;
  uintptr_t owner;
  uintptr_t image_owner;
  CUcontext context;
  const char* name;    // hashed
  const char* symbol;  // kept; null: it gets no record
  uint32_t param_count;
  uint32_t candidate_count;
  uint32_t member_count;
};
HandleEntry* make_entry(const NewHandle& given);

// Whether a handle that was given out again is the handle of this entry.
bool is_same_handle(const HandleEntry& entry, HandleKind kind, uintptr_t owner, const char* name);

// Gives up an entry that was never published, or that nobody reads any more.
void release_entry(HandleEntry* entry);

// Publishes an entry, unless another generation has come into force since it was begun. What was known of the
// handle is retired. `*value`: the slot's new value.
enum class Inserted : uint8_t { yes, no_memory, too_late };
Inserted insert_entry(const Generation& generation, HandleEntry* entry, uintptr_t* value);

// The handle now belongs to another kernel, of which nothing is known.
void forget_handle(const void* handle);

// Everything known of a module's or library's handles dies, and of handles whose owner is unknown.
// Called before the driver unloads it.
void forget_owner(uintptr_t owner);

// Everything known of any CUfunction dies: their contexts may. They are looked up again if
// launched.
void forget_functions();

// Keeps all launches off the fast side, those of untracked kernels too, until as often let there again.
void keep_off_fast_side();
void let_on_fast_side();

// From now on launches of CUkernels take the slow side, which counts by device.
void move_kernels_to_slow_side();

// For the atfork handlers.
void lock_handles_for_fork();
void unlock_handles_after_fork(bool is_child);

}  // namespace fibshim
