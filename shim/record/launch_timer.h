// Measures how long some launches take on the GPU: an event before and one after, on the launch's stream.
//
// No stream is ever waited for: later launches ask whether an event has been reached. Until then its
// pair of events stays in use; when all are in use, a launch goes untimed. Nothing is timed while a
// stream of the process captures. Any thread may call these functions; none takes a lock.
#pragma once

#include "shim/driver/cuda_names.h"

#include "shim/abi/recorder_api.h"

namespace fibshim {

// Before all others. `host` must stay valid.
void start_timer(const RecorderHost& host);

// Puts the first event into the stream. Null: this launch is not timed.
EventPair* begin_timing(CUstream stream);

// Puts the second event into the stream. Adds the time to `times` once it is known; `times` must stay
// valid. `pair` may be null in both.
void end_timing(EventPair* pair, RecordedTimes* times);
void cancel_timing(EventPair* pair);

// Adds the times of launches that have ended. Asks the driver at one call of many only: asking costs.
void collect_times();

// Before a context ends: destroys its events. Times that are not known yet are lost.
void drop_events();

// In a forked child: the events are the parent's.
void forget_events_in_child();

}  // namespace fibshim
