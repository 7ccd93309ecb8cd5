// Quarantines a solution that one process of a job finds wrong in all of its processes
// (FIBSHIM_ON_MISMATCH=quarantine_job). They communicate through the control blocks of their
// counters files, so only processes that share FIBSHIM_STATS_DIR take part. For the watcher only.
#pragma once

namespace fibshim {

// Tells the job's processes what this one has found, and quarantines what they have found. The
// first call also copies what they have found before.
void follow_job_quarantines();

// Clears what the job has found. Called before a folder is put in force: all solutions are tried.
void forget_job_quarantines();

}  // namespace fibshim
