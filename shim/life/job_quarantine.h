// A solution that one process of a job finds wrong is left alone by all of them (FIBSHIM_ON_MISMATCH=quarantine_job): through
// the control blocks of their counters files, so only by those that share FIBSHIM_STATS_DIR. The watcher alone calls this.
#pragma once

namespace fibshim {

// Tells the job what this process has found, and follows what others have. One that begins follows what the job has
// found until then.
void follow_job_quarantines();

// A folder is about to be used: all its solutions are tried.
void forget_job_quarantines();

}  // namespace fibshim
