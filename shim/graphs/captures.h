// The stream captures that are under way: a launch into one becomes a node, which is remembered (see
// graphs.h). While there are none, a launch need not ask.
//
// A capture ends with cuStreamEndCapture, with its stream, or with the stream's context. Callable from
// any thread; takes no lock.
#ifndef FIBSHIM_SHIM_GRAPHS_CAPTURES_H_
#define FIBSHIM_SHIM_GRAPHS_CAPTURES_H_

#include <atomic>

#include "shim/driver/cuda_names.h"

namespace fibshim {

extern std::atomic<int> g_active_captures;

// After the driver has begun one, and after it has ended one. `is_per_thread_stream`: what stream 0 is.
void note_capture_begin(CUstream stream, bool is_per_thread_stream);
void note_capture_end(CUstream stream, bool is_per_thread_stream);

// Before the stream or the context ends: its value may be another's at once.
void note_stream_end(CUstream stream);
void note_context_end(CUcontext context);
void note_green_context_end(CUgreenCtx context);

// After the driver has given out a device's primary context.
void note_primary_context(CUdevice device, CUcontext context);

// After a primary context was released or reset.
void note_primary_context_end(CUdevice device, bool is_reset);

}  // namespace fibshim

#endif  // FIBSHIM_SHIM_GRAPHS_CAPTURES_H_
