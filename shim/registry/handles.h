// The table of all kernel handles that the driver has returned.
//
// The table maps a CUfunction or CUkernel (their values never coincide while both live) to a
// HandleEntry. Readers take no lock and write nothing. Its protocol:
//
//   * A slot's key is written once per table and never changes: a slot found by its key stays that
//     key's slot. Its value is replaced atomically; 0 means that the handle has died.
//   * So a reader that finds a key reads the newest value stored for that very handle, whatever
//     else is inserted or forgotten meanwhile. Release on the value and acquire on its load ensure
//     that what it points to is complete.
//   * When the table is half full it is rebuilt without its dead keys, larger if the living ones
//     need it. The new table is published by one store. A reader of the old one sees what it could
//     have seen a moment before.
//   * Readers work within a read section (base/read_section.h). Entries with their records and
//     decisions, and old tables, are retired when they are unlinked, and reused after a grace
//     period.
//   * Writers (hand-out, unload, swap) hold one mutex, and none while calling the driver.
//   * A swap publishes a new table, whose entries belong to the new generation, by one store
//     (handle_swap.h).
//
// tests/model/handles.pml models this, with the grace periods, and is checked exhaustively.
//
// Memory per handle: 32 to 64 bytes of table, and an entry of 64 bytes. A kernel that a pattern
// fits adds its record, candidates and symbol.
#pragma once

#include "shim/abi/hash.h"
#include "shim/registry/record.h"

namespace fibshim {

struct HandleEntry {
  uintptr_t handle;
  uintptr_t owner;  // the CUmodule or CUlibrary that it dies with; 0: unknown
  uint64_t name_hash;
  HandleEntry* next_of_owner;
  Record* record;         // null: no pattern fits, and nothing is recorded
  uintptr_t image_owner;  // the module or library whose image holds the kernel; 0: unknown
  CUcontext context;      // of a CUfunction; null: unknown
  HandleKind kind;
};
static_assert(sizeof(HandleEntry) == 64);

struct HandleSlot {
  std::atomic<uintptr_t> key;    // 0: never used
  std::atomic<uintptr_t> value;  // HandleEntry* or Candidate* with its marks; 0: dead
};

// Followed by its slots, a power of two of them. A published table never has fewer than the one before it, and its first slot
// holds kNoHandle.
struct HandleTable {
  uint64_t byte_mask;   // mask of a slot's place in bytes: (capacity - 1) * sizeof(HandleSlot)
  union {               // for the writer only
    uint64_t used;      // keys written
    HandleTable* next;  // once it is retired
  };

  uint64_t capacity() const { return byte_mask / sizeof(HandleSlot) + 1; }
  HandleSlot* slots() { return reinterpret_cast<HandleSlot*>(this + 1); }

  const HandleSlot& slot_in_bytes(uint64_t offset) const {
    return *reinterpret_cast<const HandleSlot*>(reinterpret_cast<const char*>(this + 1) + offset);
  }
  // `place`: first_place(), plus kNextPlace for each slot that holds another handle.
  const HandleSlot& slot_at(uint64_t place) const { return slot_in_bytes(place & byte_mask); }
  HandleSlot& slot_at(uint64_t place) {
    return const_cast<HandleSlot&>(static_cast<const HandleTable*>(this)->slot_at(place));
  }
};

// Mark bits in a slot's value, beside the address.
inline constexpr uintptr_t kUntracked = 1;  // of an entry: no pattern fits, and nothing is recorded
inline constexpr uintptr_t kSimple =
    2;  // of a candidate: the only one, and the fast side can read its key
inline constexpr uintptr_t kUnmatched =
    4;  // of an entry of an earlier generation: must be matched before it is used

inline const Candidate& simple_candidate_of(uintptr_t value) {
  return *reinterpret_cast<const Candidate*>(value - kSimple);
}

inline HandleEntry* entry_of(uintptr_t value) {
  return (value & kSimple) != 0
             ? simple_candidate_of(value).record->entry
             : reinterpret_cast<HandleEntry*>(value & ~(kUntracked | kUnmatched));
}

// The key of a published table's first slot: matches no handle, and is not 0, which marks a free slot.
inline constexpr uintptr_t kNoHandle = ~uintptr_t{0};

extern std::atomic<const HandleTable*> g_handle_table __attribute__((visibility("hidden")));
// The table's byte_mask for the fast side, or 0 while launches are kept off it: they all find the first slot. Not the table's
// own, which would be one more line to wait for before the slot's. Written after the table, and read before it, so that it is
// never larger than that of the table read.
extern std::atomic<uint64_t> g_near_mask __attribute__((visibility("hidden")));

// Changes whenever an entry of a handle has died or another generation has come into force. While
// it is unchanged, a candidate found for a handle, and its decisions, remain valid. Read it before
// the lookup.
extern std::atomic<uint64_t> g_handle_changes __attribute__((visibility("hidden")));
inline uint64_t handle_changes() { return g_handle_changes.load(std::memory_order_acquire); }

// Fibonacci hashing, since handles are heap addresses with similar low and high bits. The shift is
// constant: tables have up to 2^32 slots of 2^4 bytes.
inline uint64_t first_place(uintptr_t handle) {
  return static_cast<uint64_t>(handle) * kHashFactor >> 28;
}
inline constexpr uint64_t kNextPlace = sizeof(HandleSlot);

// The offset of the first slot to look at, of g_handle_table as it is read next.
inline uint64_t near_place(uintptr_t handle) {
#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__)
  // A load and the mask in one instruction, which compilers do not make of an atomic.
  uint64_t place = first_place(handle);
  asm volatile("andq %1, %0" : "+r"(place) : "m"(g_near_mask) : "memory", "cc");
  return place;
#else
  return first_place(handle) & g_near_mask.load(std::memory_order_acquire);
#endif
}

// Returns the slot's value if the handle's first place holds it; else 0: use find_handle().
inline uintptr_t find_near_handle(const void* handle) {
  const auto key = reinterpret_cast<uintptr_t>(handle);
  const uint64_t place = near_place(key);
  const HandleSlot& slot = g_handle_table.load(std::memory_order_acquire)->slot_in_bytes(place);
  return __builtin_expect(slot.key.load(std::memory_order_acquire) == key, 1)
             ? slot.value.load(std::memory_order_acquire)
             : 0;
}

// Returns the slot's value for a handle, or 0 if nothing is known of it. Hot: wait-free. Requires a
// read section, which also protects what the value points to.
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

// Makes an entry that is not published yet. The counts give the room in its record; without a
// symbol it has no record. Zeroed except for the handle's own values and the symbol. Null: no
// memory.
struct NewHandle {
  const void* handle;
  HandleKind kind;
  uintptr_t owner;
  uintptr_t image_owner;
  CUcontext context;
  const char* name;    // stored as a hash
  const char* symbol;  // copied; null: no record
  uint32_t param_count;
  uint32_t candidate_count;
  uint32_t member_count;
  uint32_t input_count;
};
HandleEntry* make_entry(const NewHandle& given);

// True if a handle that the driver has returned again is still the handle of this entry.
bool is_same_handle(const HandleEntry& entry, HandleKind kind, uintptr_t owner, const char* name);

// Frees an entry that was never published or has no reader left.
void release_entry(HandleEntry* entry);

// Publishes an entry, unless another generation than `generation` is in force by now. An earlier
// entry of the handle is retired. `*value`: the slot's new value.
enum class Inserted : uint8_t { yes, no_memory, too_late };
Inserted insert_entry(const Generation& generation, HandleEntry* entry, uintptr_t* value);

// Removes the entry of a handle that now belongs to another, unknown kernel.
void forget_handle(const void* handle);

// Removes the entries of a module's or library's handles, and of handles whose owner is unknown.
// Called before the driver unloads it.
void forget_owner(uintptr_t owner);

// Removes the entries of a context's CUfunctions, and of those whose context is unknown, as it may
// end. If it does not, they are learnt again when launched. Null: of all contexts.
void forget_functions(CUcontext context);

// Keep all launches off the fast side, even those of untracked kernels, and undo that. Calls nest.
void suspend_fast_side();
void resume_fast_side();

// Sends all launches of CUkernels to the slow side from now on, which counts by device.
void move_kernels_to_slow_side();

// For the atfork handlers.
void lock_handles_for_fork();
void unlock_handles_after_fork(bool is_child);

}  // namespace fibshim
