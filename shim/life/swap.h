// Moves the process to another config folder while it runs.
//
// A thread of the shim, the watcher, does this off the launch path. Twice a second it resolves
// FIBSHIM_CONFIG and compares path and identity with the last ones (inotify would cost each process
// one of the few instances that a user has). It also serves requests of `fibshim swap` in the
// control block of the process's counters file (a shared futex; requests.h). The next folder is
// read and checked as at the start, its images are loaded, and it is put in force by one store
// (move.h). A refused folder changes nothing and causes one warning; the folder of FIBSHIM_CONFIG
// is tried again later.
//
// The thread starts with the first generation, which has no folder if that was refused; in a forked
// child it starts at the first count. All signals are blocked in it. It keeps no descriptor open.
#pragma once

#include "shim/life/folder_identity.h"
#include "shim/registry/generation.h"

namespace fibshim {

// Called by runtime.cc before the first generation is put in force. `identity`: of the folder to
// which FIBSHIM_CONFIG led before it was read. `refusal`: why it was refused, or "".
void begin_watching(const Generation& first, const FolderIdentity& identity, const char* refusal);

// Starts the thread unless it runs already or no generation is in force. Requires no lock.
void ensure_watcher();

// For the atfork handlers.
void lock_swap_for_fork();
void unlock_swap_after_fork(bool is_child);

}  // namespace fibshim
