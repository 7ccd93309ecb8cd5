// The calls that lead from a lower folder of the shim to a higher one: all of them, at most five.
//
// Set by life/runtime.cc when the library is mapped. Until then nothing has started: a call does nothing, and
// one that answers answers false. Any thread.
#ifndef FIBSHIM_SHIM_BASE_UPCALLS_H_
#define FIBSHIM_SHIM_BASE_UPCALLS_H_

#include <atomic>

// UPCALL(name, its result)
//   ensure_started   life/runtime.h; called by registry/handles.cc when a handle is first met
//   ensure_watcher   life/swap.h; called by counters/counters.cc at a thread's first count, which in a
//                    forked child is the first that the shim hears of it
#define FIBSHIM_UPCALLS(UPCALL) \
  UPCALL(ensure_started, bool)  \
  UPCALL(ensure_watcher, void)

namespace fibshim::upcalls {

#define UPCALL(name, result)                                        \
  extern std::atomic<result (*)()> g_##name;                        \
  inline result name() {                                            \
    const auto function = g_##name.load(std::memory_order_acquire); \
    return function == nullptr ? result() : function();             \
  }
FIBSHIM_UPCALLS(UPCALL)
#undef UPCALL

}  // namespace fibshim::upcalls

#endif  // FIBSHIM_SHIM_BASE_UPCALLS_H_
