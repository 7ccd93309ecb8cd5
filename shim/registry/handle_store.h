// The handle table as its writers see it. Only handles.cc and handle_swap.cc include this.
#pragma once

#include "shim/base/hash_map.h"
#include "shim/base/mutex.h"
#include "shim/base/pool.h"
#include "shim/registry/generation.h"
#include "shim/registry/handles.h"

namespace fibshim::handle_store {

// Entries by owner, so that an unload finds its own without a walk over the table.
struct Owner {
  uint64_t key;  // kUnknownOwner for owner 0
  Owner* next;
  HandleEntry* first;
};

extern Mutex g_lock;  // guards everything that a writer touches
extern Pool g_pool;
extern HashMap<Owner> g_owners;

inline constexpr uint64_t kSmallestCapacity = 1024;

// One slot more than the mask reaches, never used, so that a look at a slot's neighbour stays inside.
inline size_t table_bytes(uint64_t capacity) {
  return sizeof(HandleTable) + (capacity + 1) * sizeof(HandleSlot);
}

// An empty table with room for so many living keys, and as many that come later. Null: no memory.
HandleTable* new_table(uint64_t living);

// The slot of a key, a new one if the key has none. The table has room.
HandleSlot* slot_in(HandleTable* table, uintptr_t key);

// What a slot holds for an entry of the generation in force.
uintptr_t value_of(HandleEntry* entry);

// Holding g_lock, all below. Publishes a table and retires the one before.
void publish_table(HandleTable* table);

// Retires an entry that is in no list and no slot, or a generation that is no longer in force.
void retire(HandleEntry* entry);
void retire(Generation* generation);

// Ends grace periods that are over; at the end of whatever retires something.
void reuse_retired();

// Whether something still waits for its grace period.
bool has_retired();

// Generations whose grace period is over, linked by `next`, are taken from here.
extern Generation* g_ended;

}  // namespace fibshim::handle_store
