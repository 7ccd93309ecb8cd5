// Moves the process to another config folder while it runs.
//
// A thread of the shim's own does it, off every launch: it looks whether FIBSHIM_CONFIG leads elsewhere
// than before (twice a second, by the folder's path with its links resolved and its identity; inotify
// would cost each process one of the few instances that a user has), and what `fibshim swap` asks in
// the control block of the process's counters file (a shared futex). The next folder is read, checked
// as at the start, its images are loaded, and it is put in force by one store (handles.h). A folder
// that is refused leaves everything as it was, with one warning.
//
// The thread starts when the first folder is in force, and in a forked child at its first count. All
// signals are blocked in it. It holds no descriptor open.
#ifndef FIBSHIM_SHIM_LIFE_SWAP_H_
#define FIBSHIM_SHIM_LIFE_SWAP_H_

#include <stdint.h>

#include "shim/registry/generation.h"

namespace fibshim {

// What a path leads to.
struct FolderIdentity {
  bool is_there;
  uint64_t device;
  uint64_t inode;
  uint64_t path_hash;  // of its absolute path, links resolved

  bool operator==(const FolderIdentity&) const = default;
};
FolderIdentity identify_folder(const char* path);

// The first generation is about to be in force; `identity` is what FIBSHIM_CONFIG led to before it was
// read. runtime.cc's start alone calls it.
void begin_watching(const Generation& first, const FolderIdentity& identity);

// Starts the thread unless it runs, or nothing is in force. Any thread, holding no lock.
void ensure_watcher();

// For the atfork handlers.
void lock_swap_for_fork();
void unlock_swap_after_fork(bool is_child);

}  // namespace fibshim

#endif  // FIBSHIM_SHIM_LIFE_SWAP_H_
