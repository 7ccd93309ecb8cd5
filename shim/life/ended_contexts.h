// What the shim must forget when a context ends.
#pragma once

#include <cuda.h>

namespace fibshim {

// Call before a context may end; null: it is unknown which. The recorder's events are destroyed.
void forget_functions_of_ending(CUcontext context);
// Call if it ends, or has ended.
void forget_modules_of_ended(CUcontext context);

// Forgets primary contexts that ended with the shim's own hold on them (PrimaryContextScope), which
// no hook sees. Called by the watcher, before it frees what it thinks they contain.
void forget_contexts_that_ended_here();

}  // namespace fibshim
