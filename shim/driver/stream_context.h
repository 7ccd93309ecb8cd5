// Streams: whose context one is, and whether it captures. Slow paths: each is a driver call or two.
#pragma once

#include "shim/driver/cuda_names.h"

namespace fibshim {

// What stream 0 stands for, in functions of each kind.
inline CUstream named_stream(CUstream stream, bool is_per_thread_stream) {
  if (stream != nullptr) return stream;
  return is_per_thread_stream ? CU_STREAM_PER_THREAD : CU_STREAM_LEGACY;
}

// The context that a stream belongs to; of a default stream the current one, as each context has its own.
// Null: the driver does not tell.
CUcontext context_of_stream(CUstream stream);

// Whether what goes into the stream becomes nodes of a graph.
bool is_capturing(CUstream stream, bool is_per_thread_stream);
// The same; yes where the driver does not tell.
bool may_be_capturing(CUstream stream, bool is_per_thread_stream);

}  // namespace fibshim
