// The stream captures in progress. A launch into one becomes a node unchanged, and is not counted
// (see graphs/). While there are none, a launch need not query the driver.
//
// A capture ends with cuStreamEndCapture, with its stream, or with the stream's context. Callable from
// any thread; takes the handles' lock.
#pragma once

#include <atomic>

#include "shim/driver/cuda_names.h"

namespace fibshim {

extern std::atomic<int> g_active_captures;

// Call after the driver has begun, or ended, a capture. `is_per_thread_stream`: stream 0 is the
// per-thread default stream.
void record_capture(CUstream stream, bool is_per_thread_stream);
void end_capture_of_stream(CUstream stream, bool is_per_thread_stream);

// Call before the stream or the context ends, since its handle may be reused at once.
void end_captures_of_stream(CUstream stream);
void end_captures_of_context(CUcontext context);

// Call after the driver has returned a device's primary context.
void record_primary_context(CUdevice device, CUcontext context);
// Returns that context, or null if unknown.
CUcontext primary_context_of(CUdevice device);

// Called in a forked child, since the captures are its parent's.
void end_captures_in_child();

// Call after a primary context was released or reset.
void end_captures_of_primary_context(CUdevice device, bool is_reset);

}  // namespace fibshim
