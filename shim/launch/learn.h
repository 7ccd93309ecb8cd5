// Learns kernel handles: which patterns fit, and what their launches will need.
//
// A handle is learnt when the driver gives it out, so that a launch, in a capture too, needs no driver call but
// itself; a stranger when it is launched. Slow paths: the driver and the loader are asked, images are loaded.
#pragma once

#include "shim/registry/handles.h"
#include "shim/registry/modules.h"

namespace fibshim {

// A handle that the driver has just given out; what was known of it is replaced. `owner` is the module or library
// that it dies with, 0 when that is not known; `image_owner` the one whose image it came from, 0 for the owner;
// `context` a CUfunction's, null when it is its module's. Returns the slot's new value; 0 when nothing could be
// learnt.
uintptr_t learn_handle(const void* handle, HandleKind kind, uintptr_t owner, const char* symbol,
                       uintptr_t image_owner = 0, CUcontext context = nullptr);

// A handle that is launched and not known, or not matched: asks the driver for its name, both ways.
// 0 when it has none.
uintptr_t learn_stranger(const void* handle);

// The entry that the next generation has for a handle (registry/handle_swap.h).
HandleEntry* learn_successor(const Generation& next, const HandleEntry& old);

// The library that a known CUkernel came from; 0 when that is not known.
uintptr_t library_of(const void* kernel);

// Where a kernel's parameters lie in a packed buffer, whether or not any pattern knows it: at most kMaxParams. False:
// the driver does not tell.
bool find_params(const void* handle, Param* params, uint32_t* count);

// For the atfork handlers.
void lock_learning_for_fork();
void unlock_learning_after_fork(bool is_child);

}  // namespace fibshim
