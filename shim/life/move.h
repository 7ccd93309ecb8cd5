// Moves the process to another config folder: the next generation is made and checked, then put in force by one
// store (handle_swap.h). The watcher's thread alone calls this.
#pragma once

#include "shim/life/watch.h"

namespace fibshim {

// Whether a folder with broken solutions is refused. One that the process has been in before is accepted as it is.
enum class Faults : bool { refused, accepted };

// The next generation; null when it is the one in force, or cannot be made: then `message` says why.
Generation* prepare_generation(bool is_off, const char* path, Faults faults,
                               char (&message)[kControlTextBytes]);

// False, with a message: no memory. `next` may be null: it is in force already.
bool put_generation_in_force(Generation* next, bool is_off, const char* wanted,
                             char (&message)[kControlTextBytes]);

// Makes captured graphs ready for the generation in force, where they are not.
void watch_graphs();

// Both. False: refused, and `message` says why.
bool move_to(bool is_off, const char* path, Faults faults, char (&message)[kControlTextBytes]);

// A link may be repointed between being resolved and being opened. Then the next time that it is resolved, whatever
// is found must not count as what was there before. Holding the lock.
void forget_seen_unless(const Snapshot& opened);

}  // namespace fibshim
