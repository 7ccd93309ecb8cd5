// The solution of each series of the counters, its failures, and quarantine.
//
// After a launch has failed on the fast side only its counter is known: its decision may be gone.
// So this is stored by series, from the first decision on, for the life of the process.
//
// Quarantine: a solution that made N launches fail (FIBSHIM_QUARANTINE=N) is not launched any more,
// nor is one that a shadow check finds wrong if FIBSHIM_ON_MISMATCH asks for that. The original
// runs, on the slow side, and is counted as fallback_quarantined. A solution is identified by its
// folder, definition and name, so all its series count together. Other processes of a job
// (life/job_quarantine) identify it by a hash of its folder's content, its definition and its name.
// The quarantine ends at a swap, or with the process.
//
// Written and read on the slow side only; any thread.
#pragma once

#include <stdint.h>

#include "shim/driver/cuda_names.h"
#include "shim/abi/settings.h"

namespace fibshim {

struct Snapshot;
struct Solution;

// Records that a solution serves the series, as a decision has found. Series that stand for several
// definitions, "(other)", have no quarantine.
void record_solution(uint32_t series, const Snapshot& snapshot, const Solution& solution);

// Returns "" if unknown.
const char* solution_of_series(uint32_t series);

// Counts a failure: the series' solution made a launch fail with `result`. Errors that are due to
// the caller or the context do not count.
void record_failure(uint32_t series, CUresult result);

// Quarantines the series' solution. Returns false if it was quarantined already, or is unknown.
// `tells_job`: next_found_quarantine() returns it, too.
bool quarantine_solution(uint32_t series, bool tells_job);

// Returns the identity of a solution that the job is to be told of, each once. 0: no more.
uint64_t next_found_quarantine();

// Quarantines a solution that a process of the job has found wrong, now or when it is decided.
void quarantine_identity(uint64_t identity);

// How many quarantines have begun in this process.
uint32_t quarantine_count();

bool is_series_quarantined(uint32_t series);

// Ends all quarantines. Called before a folder is put in force: all its solutions are tried.
void end_quarantines();

}  // namespace fibshim
