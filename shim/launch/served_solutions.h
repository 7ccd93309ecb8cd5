// The solutions behind the counters' series: what a failure must know of them, and quarantine.
//
// A launch that fails on the fast side has nothing left but its counter: its decision may be gone. So this is
// kept by series, from the first decision on, for the life of the process.
//
// Quarantine (FIBSHIM_QUARANTINE=N): a solution that made N launches fail is left alone, and so is one that a shadow
// check finds wrong where FIBSHIM_ON_MISMATCH says so; the original
// runs, on the slow side, and fallback_quarantined counts it. A solution is known by its folder, its
// definition and its name, so all its series count together. It gets out when a folder
// is published: at a swap, or in another process.
//
// Written and read on the slow side only; any thread.
#pragma once

#include <stdint.h>

#include "shim/driver/cuda_names.h"
#include "shim/abi/settings.h"

namespace fibshim {

// A decision has found that a solution serves the series. Series that stand for several definitions,
// "(other)", know no quarantine.
void record_solution(uint32_t series, const char* solution);

// "" where none is known.
const char* solution_of_series(uint32_t series);

// Its solution made a launch fail with `result`. Errors that tell of the caller or of the context do not
// count.
void record_failure(uint32_t series, CUresult result);

// Its solution is left alone from now on. False: it was already, or none is known.
bool quarantine_solution(uint32_t series);

bool is_series_quarantined(uint32_t series);
// How many were, ever.
uint32_t quarantine_count();

// A folder is about to be used: all its solutions are tried.
void end_quarantines();

}  // namespace fibshim
