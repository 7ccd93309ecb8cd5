// Keeps the tensors of chosen launches (abi/tensor_plan.h). Inputs are copied before the launch and
// outputs after it, on the launch's own stream, into a pool of pinned memory. A host function after
// them passes the copies to a thread of the recorder, which writes them. The launch waits for
// nothing. If there is no room, the launch is counted and not kept.
#pragma once

#include "shim/abi/recorder_api.h"

namespace fibshim {

// Called before all others. `host` must stay valid.
void start_tensors(const RecorderHost& host);

// Copies the inputs of a launch that is wanted. Sets launch->kept_tensors; null: not kept.
void begin_tensors(LaunchToRecord* launch);

// Copies the outputs if the original ran. Keeps nothing of a failed launch.
void end_tensors(LaunchToRecord* launch, bool has_succeeded);

// Called before a context ends, for which the pool may have been pinned.
void unpin_tensors();

// For the atfork handlers. A child has neither the thread nor the copies: it keeps nothing.
void lock_tensors_for_fork();
void unlock_tensors_after_fork(bool is_child);

}  // namespace fibshim
