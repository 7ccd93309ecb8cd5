// Threads that start the shim or read a config folder, and threads that are about to fork, wait for
// each other: the dynamic linker and the loader's C++ library do not survive being copied halfway
// through their work.
//
// No thread waits forever: a starting thread may need the dynamic linker's lock, which the forking
// thread may hold. After a few seconds the waiting thread continues anyway.
#pragma once

#include <atomic>
#include <stdint.h>

#include "shim/abi/snapshot.h"

namespace fibshim {

void enter_start_gate();
void leave_start_gate();

// True if this thread is between the two.
bool is_in_start_gate();

// Called first and last in the atfork handlers.
void enter_fork();
void leave_fork(bool is_child);

// Waits while the word holds `value`, at most a few seconds: enough for a large folder.
void wait_while(std::atomic<uint32_t>* word, uint32_t value);
void wake_waiters(std::atomic<uint32_t>* word);

// Reads a folder's snapshot within the gate. Null: `message` says why.
const Snapshot* open_folder(const char* path, char* message, size_t message_size);

}  // namespace fibshim
