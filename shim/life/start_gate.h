// Threads that start or read a config folder, and threads that are about to fork, let each other finish: the
// dynamic linker and the loader's C++ library do not survive being copied half-way through their work.
//
// Nobody waits for ever: a thread that starts may wait for the dynamic linker's lock, which the thread that forks
// may hold. After a few seconds it goes on all the same.
#pragma once

#include <atomic>
#include <stdint.h>

#include "shim/abi/snapshot.h"

namespace fibshim {

void enter_start_gate();
void leave_start_gate();

// Whether this thread is between the two.
bool is_in_start_gate();

// First and last of the atfork handlers.
void enter_fork();
void leave_fork(bool is_child);

// Waits while the word holds `value`. Gives up after a few seconds; long enough for a large folder.
void wait_while(std::atomic<uint32_t>* word, uint32_t value);
void wake_waiters(std::atomic<uint32_t>* word);

// The folder's snapshot, read within the gate. Null: `message` says why.
const Snapshot* open_folder(const char* path, char* message, size_t message_size);

}  // namespace fibshim
