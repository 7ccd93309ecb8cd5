// The calls from a lower layer to a higher one: these and no others. A test counts them.
//
// life/upcalls.cc lays the table into a section of its own, where this header finds it: hooks may run before any
// constructor of this library, so nothing may have to be set first.
#pragma once

// UPCALL(name, its result)
//   ensure_started            launch/, when a handle is given out or met: starts the shim if that has not happened
//                             (life/runtime.h)
//   ensure_watcher            counters/, at a thread's first count, which in a forked child is the first that the shim
//                             hears of it (life/swap.h)
//   move_kernels_to_slow_side  registry/devices, when launches begin to be told apart by device
//                             (registry/handles.h)
#define FIBSHIM_UPCALLS(UPCALL) \
  UPCALL(ensure_started, bool)  \
  UPCALL(ensure_watcher, void)  \
  UPCALL(move_kernels_to_slow_side, void)

namespace fibshim {

struct Upcalls {
#define UPCALL(name, result) result (*name)();
  FIBSHIM_UPCALLS(UPCALL)
#undef UPCALL
};

// Named by the linker: where the section begins.
extern "C" const Upcalls __start_fibshim_upcalls __attribute__((visibility("hidden")));

inline const Upcalls& upcalls() { return __start_fibshim_upcalls; }

}  // namespace fibshim
