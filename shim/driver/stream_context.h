// Streams: the context of a stream, and whether it captures. Slow paths: each makes one or more
// driver calls.
#pragma once

#include "shim/driver/cuda_names.h"

namespace fibshim {

// Replaces stream 0 by the default stream that it stands for.
inline CUstream named_stream(CUstream stream, bool is_per_thread_stream) {
  if (stream != nullptr) return stream;
  return is_per_thread_stream ? CU_STREAM_PER_THREAD : CU_STREAM_LEGACY;
}

// Returns the context that a stream belongs to; for a default stream the current one, as each
// context has its own default streams. Null: the driver does not report it.
CUcontext context_of_stream(CUstream stream);

// True if work in the stream becomes nodes of a graph.
bool is_capturing(CUstream stream, bool is_per_thread_stream);
// The same, but true if the driver does not report it.
bool may_be_capturing(CUstream stream, bool is_per_thread_stream);

}  // namespace fibshim
