// Moves the handle table from one generation to the next.
//
// The entries of the next generation are made outside the lock, beside the table, while launches
// continue. Once none is missing, a new table of all living handles is made under the lock and
// published by one store. A handle whose symbol is not stored keeps its old entry, marked
// kUnmatched, and is matched at its next launch. Only for the watcher thread.
#pragma once

#include "shim/registry/handles.h"

namespace fibshim {

// Makes the entry of `next` for a handle, from the entry of an earlier generation, and loads the
// kernels that its launches may need. Null: no memory.
using MakeSuccessor = HandleEntry* (*)(const Generation& next, const HandleEntry& old);

// Loads what `next` has for the living handles: the first half of a swap. May be repeated.
void prepare_handles(const Generation& next, MakeSuccessor make_successor);

// Puts `next` in force and retires the previous generation: later launches belong to `next`.
// `before_swap` runs right before each attempt. False: no memory, and no change.
bool put_in_force(Generation* next, MakeSuccessor make_successor,
                  void (*before_swap)(const Generation& next));

// Returns a generation without readers, for end_generation(), or null. `*has_more`: something still
// waits for its grace period.
Generation* remove_ended_generation(bool* has_more);

}  // namespace fibshim
