// What is known of every kernel handle that the driver gave out.
//
// The table maps a CUfunction or CUkernel (their values never coincide while both live) to a
// Record. Readers take no lock and write nothing. Its protocol:
//
//   * A slot's key is written once per table and never changes: a slot found by its key stays that
//     key's slot. Its value is replaced atomically; 0 means that the handle has died.
//   * So a reader that finds a key reads the newest value stored for that very handle, whatever
//     else is inserted or forgotten meanwhile. Release on the value, acquire on its load: the
//     record that it points to is whole.
//   * Dead keys are dropped when the table is rebuilt, at half full, into a larger one if it is
//     full of living ones. The new table is published by one store. A reader of the old one sees
//     what it could have seen a moment before.
//   * Readers look within a read section (read_section.h); what is taken away from them, records with
//     their decisions and old tables, is used again after a grace period.
//   * Writers (hand-out, unload, swap) hold one mutex, and hold no other while calling the driver.
//   * A swap publishes a new table, whose records belong to the new generation, by one store. Handles
//     that come or die while it is prepared are seen to under the mutex, before that store: it is made
//     from what lives then. A handle whose symbol is not kept comes into the new table with its old
//     record, marked kUnmatched, and is matched at its next launch.
//
// tests/model/handles.pml is a model of this, with the grace periods, that is checked exhaustively.
//
// Memory per handle: 32 to 64 bytes of table, and a Record of 64 bytes; a handle that a pattern
// fits adds its candidates and symbol.
#ifndef FIBSHIM_SHIM_REGISTRY_HANDLES_H_
#define FIBSHIM_SHIM_REGISTRY_HANDLES_H_

#include <atomic>
#include <stdint.h>

#include "shim/abi/param.h"
#include "shim/abi/snapshot.h"

namespace fibshim {

struct Decision;
struct DecisionTable;
struct Generation;
struct ImageIdentity;
struct RecordedKernel;

enum class HandleKind : uint8_t { function, kernel };

// One pattern that fits a handle's symbol and layout.
struct Record;

struct Candidate {
  // Read by the fast side of every launch: the first decision that was cached, most often the only
  // one; the others; and where the key is, if it is one parameter or none at all.
  // `first` is never null.
  std::atomic<const Decision*> first;
  std::atomic<DecisionTable*> decisions;  // null until the first
  KeyKind key_kind;
  uint16_t key_param;
  uint32_t key_offset;

  Record* record;
  const Generation* generation;
  const Snapshot* snapshot;  // the generation's
  const Pattern* pattern;
  const Step* where;
  const KeyPart* key;
  uint32_t where_count;
  uint32_t key_count;
  int64_t captures[kMaxCaptures];
  SymbolMatch match;
};

struct Record {
  uintptr_t handle;
  uintptr_t owner;  // the CUmodule or CUlibrary; 0: not known
  uint64_t name_hash;
  Record* next_of_owner;
  HandleKind kind;
  uint8_t candidate_count;  // 0: no pattern knows this kernel
  uint8_t param_count;      // at most kMaxParams
  bool has_params;          // the driver has told them; of a tracked kernel, or while recording
  uint32_t params_bytes;    // end of the last parameter in a packed buffer
  Candidate* candidates;    // in order of trial
  Param* params;            // and behind them whose image the kernel came from
  char* symbol;             // of a kernel that was tracked by any generation, or while recording
};

// What every Record is while launches are recorded.
struct RecordedHandle : Record {
  std::atomic<RecordedKernel*> kernel;  // the recorder's word: recorder_api.h
};

inline std::atomic<RecordedKernel*>& recorded_kernel_of(const Record& record) {
  return const_cast<RecordedHandle&>(static_cast<const RecordedHandle&>(record)).kernel;
}

struct HandleSlot {
  std::atomic<uintptr_t> key;    // 0: never used
  std::atomic<uintptr_t> value;  // Record* or Candidate* with its marks; 0: dead
};

// Followed by its slots.
struct HandleTable {
  uint64_t mask;        // capacity - 1
  union {               // the writer's
    uint64_t used;      // keys written
    HandleTable* next;  // once it is old
  };

  const HandleSlot* slots() const { return reinterpret_cast<const HandleSlot*>(this + 1); }
  HandleSlot* slots() { return reinterpret_cast<HandleSlot*>(this + 1); }
};

// Marks in a slot's value, beside an address.
inline constexpr uintptr_t kUntracked =
    1;  // the record's: no pattern fits, and nothing is recorded
inline constexpr uintptr_t kSimple =
    2;  // its candidate's: one fits, and the fast side can read its key

inline constexpr uintptr_t kUnmatched =
    4;  // the record's: of an earlier generation, to be matched before it is used

inline const Candidate& simple_candidate_of(uintptr_t value) {
  return *reinterpret_cast<const Candidate*>(value - kSimple);
}

inline Record* record_of(uintptr_t value) {
  return (value & kSimple) != 0 ? simple_candidate_of(value).record
                                : reinterpret_cast<Record*>(value & ~(kUntracked | kUnmatched));
}

// Named for launch_entry.cc, which reads it in assembly.
extern std::atomic<const HandleTable*> g_handle_table __asm__("fibshim_handle_table");

inline constexpr uint64_t kHashFactor = 0x9e3779b97f4a7c15;

inline uint64_t hash_handle(uintptr_t handle) {
  // Fibonacci hashing: handles are heap addresses, alike in their low and high bits.
  return static_cast<uint64_t>(handle) * kHashFactor;
}

// Where a handle's slot is looked for first. A constant shift: tables have up to 2^32 slots.
inline uint64_t first_slot(uintptr_t handle) { return hash_handle(handle) >> 32; }

// The slot's value for a handle, or 0 when nothing is known of it. Hot: wait-free. Within a read
// section, which also guards the record that it leads to.
inline uintptr_t find_handle(const void* handle) {
  const auto key = reinterpret_cast<uintptr_t>(handle);
  const HandleTable* table = g_handle_table.load(std::memory_order_acquire);
  for (uint64_t at = first_slot(key);; ++at) {
    const HandleSlot& slot = table->slots()[at & table->mask];
    const uintptr_t found = slot.key.load(std::memory_order_acquire);
    if (__builtin_expect(found == key, 1)) return slot.value.load(std::memory_order_acquire);
    if (found == 0) return 0;
  }
}

// Everything below is for the slow paths.

// Remembers a handle that the driver has just given out, replacing what was known of it; asks the
// driver for its parameters where a pattern fits the symbol. `owner` is the module or library that
// it dies with, 0 when that is not known; `image_owner` the one whose image it came from, 0 for the
// owner. Returns the slot's new value; 0 when there is no memory for it.
uintptr_t remember_handle(const void* handle, HandleKind kind, uintptr_t owner, const char* symbol,
                          uintptr_t image_owner = 0);

// The library that a known CUkernel came from; 0 when that is not known.
uintptr_t library_of(const void* kernel);

// The image that the kernel of a handle came from; it may be unknown. May read the image.
void find_image_of(const Record& record, ImageIdentity* out);

// A handle that is launched and not known, or not matched: asks the driver for its name, both ways.
// 0 when it has none.
uintptr_t remember_stranger(const void* handle);

// Loads what `next` has for the handles that live. The first half of a swap, as often as wanted.
void prepare_handles(const Generation& next);

// Puts `next` in force, and takes the one before back: launches that begin from here on belong to it.
// For the watcher alone (swap.cc). False: no memory, and nothing has changed.
bool put_in_force(Generation* next);

// A generation that nobody reads any more, for end_generation(); or null. `*has_more`: something still
// waits for its grace period.
Generation* take_ended_generation(bool* has_more);

// A library's module in some context: what is remembered of its functions dies with the library.
void remember_library_module(uintptr_t module, uintptr_t library);

// Everything known of a module's or library's handles dies, and of handles whose owner is unknown.
// Called before the driver unloads it.
void forget_owner(uintptr_t owner);

// Everything known of any CUfunction dies: their contexts may. They are looked up again if
// launched.
void forget_functions();

// Launches of CUkernels take the slow side from now on: g_tells_devices_apart was set.
void take_kernels_off_fast_side();

// For the atfork handlers: no other thread may be half-way through a change.
void lock_handles_for_fork();
void unlock_handles_after_fork(bool is_child);

}  // namespace fibshim

#endif  // FIBSHIM_SHIM_REGISTRY_HANDLES_H_
