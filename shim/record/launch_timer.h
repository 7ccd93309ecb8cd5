// Measures how long some launches take on the GPU, with one event before and one after, on the
// launch's stream.
//
// Never waits for a stream: later launches query whether an event has been reached. Until then its
// pair of events stays in use; if all are in use, a launch is not timed. Nothing is timed while a
// stream of the process captures. Any thread may call these functions; none takes a lock.
#pragma once

#include "shim/driver/cuda_names.h"

#include "shim/abi/recorder_api.h"

namespace fibshim {

// Called before all others. `host` must stay valid.
void start_timer(const RecorderHost& host);

// Records the first event in the stream. Null: this launch is not timed.
EventPair* begin_timing(CUstream stream);

// Records the second event in the stream. The time is added to `times` once it is known; `times`
// must stay valid. `pair` may be null in both functions.
void end_timing(EventPair* pair, RecordedTimes* times);
void cancel_timing(EventPair* pair);

// Adds the times of launches that have ended. Queries the driver only at every
// kLaunchesPerCollection-th call, since that costs time.
void collect_times();

// Called before a context ends. Destroys all events; times that are not known yet are lost.
void drop_events();

// Called in a forked child, since the events are the parent's.
void forget_events_in_child();

}  // namespace fibshim
