// Learns kernel handles: finds the patterns that fit, and loads what their launches will need.
//
// A handle is learnt when the driver returns it, so that a launch, even into a capture, needs no
// other driver call. A stranger, a handle that was not seen then, is learnt when it is launched.
// Slow paths: these call the driver and the loader, and load images.
#pragma once

#include "shim/registry/handles.h"
#include "shim/registry/modules.h"

namespace fibshim {

// Learns a handle that the driver has just returned, replacing what was known of it. `owner`: the
// module or library that it dies with, or 0 if unknown. `image_owner`: the one whose image holds
// the kernel, or 0 for the owner. `context`: of a CUfunction, or null for that of its module.
// Returns the slot's new value, or 0 if nothing could be learnt.
uintptr_t learn_handle(const void* handle, HandleKind kind, uintptr_t owner, const char* symbol,
                       uintptr_t image_owner = 0, CUcontext context = nullptr);

// Learns a launched handle that is unknown or not matched. Asks the driver for its name, as either
// kind of handle. Returns the slot's value, or 0 if the driver has no name for it.
uintptr_t learn_stranger(const void* handle);

// Makes the next generation's entry for a handle (registry/handle_swap.h).
HandleEntry* learn_successor(const Generation& next, const HandleEntry& old);

// Returns the library of a known CUkernel, or 0.
uintptr_t library_of(const void* kernel);

// Finds the layout of a kernel's parameters in a packed buffer, at most kMaxParams, whether or not
// any pattern fits the kernel. False: the driver does not report it.
bool find_params(const void* handle, Param* params, uint32_t* count);

// For the atfork handlers.
void lock_learning_for_fork();
void unlock_learning_after_fork(bool is_child);

}  // namespace fibshim
