// Launches of executable graphs: what the host's handle stands for runs, and is counted.
#pragma once

#include <atomic>

#include "shim/driver/cuda_names.h"

namespace fibshim {

using LaunchGraph = std::atomic<CUresult(CUDAAPI*)(CUgraphExec, CUstream)>;

// `launch`: the driver's function. Takes no lock, but where the exec changes what it runs.
CUresult launch_exec(const LaunchGraph& launch, CUgraphExec handle, CUstream stream,
                     bool is_per_thread_stream);

// Uploads what a launch of `handle` would run. Runs nothing.
CUresult upload_exec(const LaunchGraph& upload, CUgraphExec handle, CUstream stream,
                     bool is_per_thread_stream);

}  // namespace fibshim
