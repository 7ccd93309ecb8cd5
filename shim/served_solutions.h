// The solutions behind the counters' series: what a failure must know of them.
//
// A launch that fails on the fast side has nothing left but its counter, and its decision may be gone.
// So this is kept by series, from the first decision on, for the life of the process. Written and read
// on the slow side only; any thread.
#ifndef FIBSHIM_SHIM_SERVED_SOLUTIONS_H_
#define FIBSHIM_SHIM_SERVED_SOLUTIONS_H_

#include <stdint.h>

#include "shim/settings.h"

namespace fibshim {

struct Binding;
struct Snapshot;

// A decision has found that `binding`'s solution serves the series. Series that stand for several
// definitions, "(other)", keep what holds for the process.
void note_solution(uint32_t series, const Snapshot& snapshot, const Binding& binding);

OnError on_error_of_series(uint32_t series);

}  // namespace fibshim

#endif  // FIBSHIM_SHIM_SERVED_SOLUTIONS_H_
