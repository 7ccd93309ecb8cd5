// Moves the process to another config folder while it runs.
//
// A thread of the shim's own, the watcher, does it off every launch. Twice a second it resolves FIBSHIM_CONFIG and
// compares path and identity with the last (inotify would cost each process one of the few instances that a user
// has), and it serves what `fibshim swap` asks in the control block of the process's counters file (a
// shared futex; requests.h). The next folder is read, checked as at the start, its images are loaded, and it
// is put in force by one store (move.h). A folder that is refused leaves everything as it was, with
// one warning; what FIBSHIM_CONFIG leads to is tried again.
//
// The thread starts with the first generation, which has no folder if that was refused, and in a forked child
// at its first count. All signals are blocked in it. It holds no descriptor open.
#pragma once

#include "shim/life/folder_identity.h"
#include "shim/registry/generation.h"

namespace fibshim {

// The first generation is about to be in force; `identity` is what FIBSHIM_CONFIG led to before it was read, `refusal`
// why it was refused ("": it was not). runtime.cc's start alone calls it.
void begin_watching(const Generation& first, const FolderIdentity& identity, const char* refusal);

// Starts the thread unless it runs, or nothing is in force. Any thread, holding no lock.
void ensure_watcher();

// For the atfork handlers.
void lock_swap_for_fork();
void unlock_swap_after_fork(bool is_child);

}  // namespace fibshim
