// The stream captures that are under way: a launch into one becomes a node as it is, and is not counted (see graphs/).
// While there are none, a launch need not ask.
//
// A capture ends with cuStreamEndCapture, with its stream, or with the stream's context. Callable from
// any thread; takes the handles' lock.
#pragma once

#include <atomic>

#include "shim/driver/cuda_names.h"

namespace fibshim {

extern std::atomic<int> g_active_captures;

// After the driver has begun one, and after it has ended one. `is_per_thread_stream`: what stream 0 is.
void record_capture(CUstream stream, bool is_per_thread_stream);
void end_capture_of_stream(CUstream stream, bool is_per_thread_stream);

// Before the stream or the context ends: its value may be another's at once.
void end_captures_of_stream(CUstream stream);
void end_captures_of_context(CUcontext context);
void end_captures_of_green_context(CUgreenCtx context);

// After the driver has given out a device's primary context.
void record_primary_context(CUdevice device, CUcontext context);

// In a forked child: they are its parent's.
void end_captures_in_child();

// After a primary context was released or reset.
void end_captures_of_primary_context(CUdevice device, bool is_reset);

}  // namespace fibshim
