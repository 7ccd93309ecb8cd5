// The calls from a lower layer to a higher one: these and no others. A test counts them.
//
// life/upcalls.cc lays the table into a section of its own, where this header finds it: hooks may run before any
// constructor of this library, so nothing may have to be set first.
#ifndef FIBSHIM_SHIM_BASE_UPCALLS_H_
#define FIBSHIM_SHIM_BASE_UPCALLS_H_

namespace fibshim {

struct Upcalls {
  // launch/ when a handle is given out or met: starts the shim if that has not happened (life/start.h).
  bool (*ensure_started)();
  // counters/ at a process's first count: a forked child has no watcher yet (life/watcher.h).
  void (*ensure_watcher)();
  // registry/devices when launches begin to be told apart by device (registry/handles.h).
  void (*devices_are_told_apart)();
};

// Named by the linker: where the section begins.
extern "C" const Upcalls __start_fibshim_upcalls __attribute__((visibility("hidden")));

inline const Upcalls& upcalls() { return __start_fibshim_upcalls; }

}  // namespace fibshim

#endif  // FIBSHIM_SHIM_BASE_UPCALLS_H_
