// The solutions behind the counters' series: what a failure must know of them, and quarantine.
//
// A launch that fails on the fast side has nothing left but its counter: its decision may be gone. So this is
// kept by series, from the first decision on, for the life of the process.
//
// Quarantine (FIBSHIM_QUARANTINE=N): a solution that made N launches fail is left alone, and so is one that a shadow
// check finds wrong where FIBSHIM_ON_MISMATCH says so; the original
// runs, on the slow side, and fallback_quarantined counts it. A solution is known by its folder, its
// definition and its name, so all its series count together. Other processes of a job (life/job_quarantine) know it
// by its identity: a hash of its folder's content, its definition and its name. It gets out when a folder
// is published: at a swap, or in another process.
//
// Written and read on the slow side only; any thread.
#pragma once

#include <stdint.h>

#include "shim/driver/cuda_names.h"
#include "shim/abi/settings.h"

namespace fibshim {

struct Snapshot;
struct Solution;

// A decision has found that a solution serves the series. Series that stand for several definitions,
// "(other)", know no quarantine.
void record_solution(uint32_t series, const Snapshot& snapshot, const Solution& solution);

// "" where none is known.
const char* solution_of_series(uint32_t series);

// Its solution made a launch fail with `result`. Errors that tell of the caller or of the context do not
// count.
void record_failure(uint32_t series, CUresult result);

// Its solution is left alone from now on. False: it was already, or none is known. `tells_job`: next_found_quarantine()
// gives it, too.
bool quarantine_solution(uint32_t series, bool tells_job);

// The identity of a solution that the job is to be told of; each once. 0: there is no more.
uint64_t next_found_quarantine();

// A process of the job has found it wrong: here it is left alone, too, now and when a decision meets it.
void quarantine_identity(uint64_t identity);

// How many quarantines have begun in this process.
uint32_t quarantine_count();

bool is_series_quarantined(uint32_t series);
// How many were, ever.
uint32_t quarantine_count();

// A folder is about to be used: all its solutions are tried.
void end_quarantines();

}  // namespace fibshim
