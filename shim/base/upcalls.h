// The only calls from a lower layer to a higher one. A test counts them.
//
// life/upcalls.cc puts the table into its own linker section, where this header finds it. Hooks may
// run before any constructor of this library, so the table must not need initialisation.
#pragma once

// UPCALL(name, its result type)
//   ensure_started             called by launch/ and hooks/ when a handle is returned or launched: starts
//                              the shim if needed (life/runtime.h)
//   ensure_watcher             called by counters/ at a thread's first count, which in a forked child is
//                              the first sign of activity (life/swap.h)
//   move_kernels_to_slow_side  called by registry/devices when launches begin to be told apart by
//                              device (registry/handles.h)
//
// The classes of a lower layer that a higher one implements are counted with them:
//   INTERFACE(FolderLint)      used by loader/check for each file of a folder that the command checks (tools/lint)
//   INTERFACE(Scope)           used by loader/compile for each name in an expression: which names exist and what they mean
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

// Defined by the linker: the beginning of the section.
extern "C" const Upcalls __start_fibshim_upcalls __attribute__((visibility("hidden")));

inline const Upcalls& upcalls() { return __start_fibshim_upcalls; }

}  // namespace fibshim
