// Launches of executable graphs: runs the variant that stands for the host's handle, and counts it.
#pragma once

#include <atomic>

#include "shim/driver/cuda_names.h"

namespace fibshim {

using LaunchGraph = std::atomic<CUresult(CUDAAPI*)(CUgraphExec, CUstream)>;

// `launch`: the driver's function. Takes no lock, except to change what the exec runs.
CUresult launch_exec(const LaunchGraph& launch, CUgraphExec handle, CUstream stream,
                     bool is_per_thread_stream);

// Uploads what a launch of `handle` would run. Runs nothing.
CUresult upload_exec(const LaunchGraph& upload, CUgraphExec handle, CUstream stream,
                     bool is_per_thread_stream);

}  // namespace fibshim
