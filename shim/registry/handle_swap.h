// Moves the handle table from one generation to the next.
//
// The entries of the next generation are made beside the table while launches go on, outside the lock. Under
// the lock, when none lacks, a new table is made of what lives then and published by one store. A handle whose
// symbol is not kept comes into it with its old entry, marked kUnmatched, and is matched at its next launch.
// For the watcher thread alone.
#pragma once

#include "shim/registry/handles.h"

namespace fibshim {

// Makes the entry that `next` has for a handle, from the entry of an earlier generation, and loads what its
// launches may need. Null: no memory.
using MakeSuccessor = HandleEntry* (*)(const Generation& next, const HandleEntry& old);

// Loads what `next` has for the living handles. The first half of a swap; may be repeated.
void prepare_handles(const Generation& next, MakeSuccessor make_successor);

// Puts `next` in force and retires the generation before: launches that begin from here on belong to it.
// `before_swap` runs last before each attempt. False: no memory, and nothing has changed.
bool put_in_force(Generation* next, MakeSuccessor make_successor,
                  void (*before_swap)(const Generation& next));

// Removes a generation that no reader uses any more, for end_generation(); null: there is none.
// `*has_more`: something still waits for its grace period.
Generation* remove_ended_generation(bool* has_more);

}  // namespace fibshim
