// FIBSHIM_TRACE_LAST=on: the last redirected launches of every stream, for when its context is poisoned.
//
// Every launch takes the slow side then. A launch is kept until its stream, or its whole context, has
// been found clean by a synchronisation that began after it. Slow side only; any thread.
#ifndef FIBSHIM_SHIM_LAUNCH_REDIRECT_TRACE_H_
#define FIBSHIM_SHIM_LAUNCH_REDIRECT_TRACE_H_

#include <stddef.h>
#include <stdint.h>

#include "shim/driver/cuda_names.h"

namespace fibshim {

inline constexpr uint32_t kTracedLaunches = 8;  // of one stream
inline constexpr uint32_t kTracedStreams = 128;

struct StreamId {
  uintptr_t stream;
  uintptr_t context;
  uintptr_t thread;  // of a per-thread stream
  bool is_default;   // of its context, or of its thread there

  bool operator==(const StreamId& other) const {
    return stream == other.stream &&
           (!is_default || (context == other.context && thread == other.thread));
  }
};

// `stream` as a call names it; what stream 0 is depends on the function that was called. Asks the driver.
StreamId stream_id(CUstream stream, bool is_per_thread_stream);

// After a launch of series' solution.
void trace_redirect(const StreamId& stream, uint32_t series);

// What a synchronisation that succeeds has found clean: everything traced before it began.
uint64_t trace_position();
void trace_clean_stream(const StreamId& stream, uint64_t position);
void trace_clean_context(CUcontext context, uint64_t position);

// The stream or the context ends: its handle may be another's at once.
void trace_forget_stream(CUstream stream);
void trace_forget_context(CUcontext context);

struct TracedLaunch {
  uint64_t position;
  uint32_t series;
};
struct TracedStream {
  StreamId id;
  uint32_t count;  // of `launches`, the newest first
  TracedLaunch launches[kTracedLaunches];
};
// The next stream's of a context (null: of any) after *at, which begins at 0. False: none any more.
bool next_traced(CUcontext context, uint32_t* at, TracedStream* out);

// For the atfork handlers.
void lock_redirect_trace_for_fork();
void unlock_redirect_trace_after_fork(bool is_child);

}  // namespace fibshim

#endif  // FIBSHIM_SHIM_LAUNCH_REDIRECT_TRACE_H_
