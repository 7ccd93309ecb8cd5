#include "shim/base/upcalls.h"

#include "shim/life/runtime.h"
#include "shim/life/swap.h"
#include "shim/registry/handles.h"

namespace fibshim {

extern const Upcalls kUpcalls;
__attribute__((section("fibshim_upcalls"), used))
const Upcalls kUpcalls = {ensure_started, ensure_watcher, take_kernels_off_fast_side};

}  // namespace fibshim
