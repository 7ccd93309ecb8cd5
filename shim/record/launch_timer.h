// How long some launches take on the GPU: an event before and one after, on the launch's own stream.
//
// The host's streams are never waited for: whether an event has been reached is asked at later
// launches, and until then its pair stays in use; when all pairs are, a launch goes untimed. Nothing is
// timed while any stream of the process captures. Where the GPU stood idle, it passes the first event at
// once and then waits for the host to make the launch: the host's time between the two is taken off.
#ifndef FIBSHIM_SHIM_RECORD_LAUNCH_TIMER_H_
#define FIBSHIM_SHIM_RECORD_LAUNCH_TIMER_H_

#include "shim/driver/cuda_names.h"

#include "shim/abi/recording_format.h"

namespace fibshim {

struct EventPair;

// One launch that is to be timed. Any thread.
class LaunchTimer {
 public:
  LaunchTimer() = default;
  LaunchTimer(const LaunchTimer&) = delete;
  LaunchTimer& operator=(const LaunchTimer&) = delete;
  ~LaunchTimer() { cancel(); }

  // Puts the first event into the stream, if that can be done.
  void begin(CUstream stream, bool is_per_thread_stream);
  // The second one; the time is added to `times` once it is known. `times` must stay valid.
  void end(RecordedTimes* times);
  void cancel();

 private:
  EventPair* pair_ = nullptr;
  CUstream stream_ = nullptr;
};

// Adds the times of launches that have ended. Now and then does nothing: asking costs.
void collect_times();

// Before a context ends: its events end with it, so they are given back. Times that are not known yet
// are lost.
void drop_events();

// In a forked child: the events are the parent's.
void forget_events_in_child();

}  // namespace fibshim

#endif  // FIBSHIM_SHIM_RECORD_LAUNCH_TIMER_H_
