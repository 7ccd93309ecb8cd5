// Moves the process to another config folder: makes and checks the next generation, then puts it in
// force by one store (handle_swap.h). Called only by the watcher.
#pragma once

#include "shim/life/watch.h"

namespace fibshim {

// Whether a folder with broken solutions is refused. One that was in force before is not.
enum class Faults : bool { refused, accepted };

// Makes the next generation. Returns null if it is the one in force, or cannot be made: then
// `message` says why.
Generation* prepare_generation(bool is_off, const char* path, Faults faults,
                               char (&message)[kControlTextBytes]);

// Returns false with a message if there is no memory. `next` may be null if it is in force already.
bool put_generation_in_force(Generation* next, bool is_off, const char* wanted,
                             char (&message)[kControlTextBytes]);

// Prepares executable graphs for the generation in force, unless they are prepared already.
void watch_graphs();

// Prepares a generation and puts it in force. Returns false if refused, and `message` says why.
bool move_to(bool is_off, const char* path, Faults faults, char (&message)[kControlTextBytes]);

// Forgets the identity of the folder in Watch::seen if another folder was opened: a link may be
// repointed between being resolved and being opened. The next time that it is resolved, it must
// count as changed. Requires Watch::lock.
void forget_seen_unless(const Snapshot& opened);

}  // namespace fibshim
