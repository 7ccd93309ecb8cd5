#include "shim/base/upcalls.h"

#include "shim/life/runtime.h"
#include "shim/life/swap.h"
#include "shim/registry/handles.h"

namespace fibshim {

extern const Upcalls kUpcalls;
__attribute__((section("fibshim_upcalls"), used))
const Upcalls kUpcalls = {ensure_started, ensure_watcher, move_kernels_to_slow_side};

}  // namespace fibshim
