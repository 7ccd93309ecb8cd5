// Keeps the tensors of chosen launches (abi/tensor_plan.h): inputs are copied before the launch, outputs after it, on
// the launch's own stream into a pool of pinned memory; a host function behind them hands the copies to a thread of
// ours, which writes them. The launch waits for nothing. A launch that finds no room is counted and not kept.
#pragma once

#include "shim/abi/recorder_api.h"

namespace fibshim {

// Before all others. `host` must stay valid.
void start_tensors(const RecorderHost& host);

// Copies the inputs of a launch that is wanted. Leaves launch->kept_tensors, null for one that is not.
void begin_tensors(LaunchToRecord* launch);

// Copies the outputs, where the original ran. Of a launch that failed nothing is kept.
void end_tensors(LaunchToRecord* launch, bool has_succeeded);

// Before a context ends: the pool was pinned for it.
void unpin_tensors();

// In a forked child, which has no thread and none of the copies: keeps nothing.
void stop_tensors_in_child();

}  // namespace fibshim
