// The handle table for its writers. Only handles.cc and handle_swap.cc include this.
#pragma once

#include "shim/base/hash_map.h"
#include "shim/base/mutex.h"
#include "shim/base/pool.h"
#include "shim/registry/generation.h"
#include "shim/registry/handles.h"

namespace fibshim::handle_store {

// Entries by owner, so that an unload finds them without a walk over the table.
struct Owner {
  uint64_t key;  // kUnknownOwner for owner 0
  Owner* next;
  HandleEntry* first;
};

extern Mutex g_lock;  // guards everything that a writer touches
extern Pool g_pool;
extern HashMap<Owner> g_owners;

inline constexpr uint64_t kSmallestCapacity = 1024;

// Includes one unused slot beyond the mask, so that the neighbour of any slot can be read.
inline size_t table_bytes(uint64_t capacity) {
  return sizeof(HandleTable) + (capacity + 1) * sizeof(HandleSlot);
}

// Makes a table with room for this many living keys and as many later ones, never smaller than the published one. Requires
// g_lock. Null: no memory.
HandleTable* new_table(uint64_t living);

// Returns the slot of a key, a new one if it has none. Requires that the table has room.
HandleSlot* slot_in(HandleTable* table, uintptr_t key);

// Returns the slot value for an entry of the generation in force.
uintptr_t value_of(HandleEntry* entry);

// The functions below require g_lock.

// Publishes a table and retires the previous one.
void publish_table(HandleTable* table);

// Retires an entry that is in no list and no slot, or a generation that is no longer in force.
void retire(HandleEntry* entry);
void retire(Generation* generation);

// Frees what was retired if its grace period is over. Called last by functions that retire.
void reuse_retired();

// True if something still waits for its grace period.
bool has_retired();

// Generations whose grace period is over, linked by `next`.
extern Generation* g_ended;

}  // namespace fibshim::handle_store
