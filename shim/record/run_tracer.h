// Records every run of a kernel, also in graphs, as CUPTI reports it.
//
// Begins at the process's first launch. CUPTI serves one client. If the program uses it itself
// (torch.profiler), the recorder does not, and the launch timer measures with events. Nothing is
// traced in a child of a traced process, where CUDA does not work.
#pragma once

#include "shim/abi/recorder_api.h"

namespace fibshim {

// Called before all others. `host` must stay valid.
void start_tracer(const RecorderHost& host);

// Called before each recorded launch or node, once there is a file. The first call begins the
// tracing. No lock may be held.
void trace_launch(bool is_node);
// Called for an eager launch that failed, and so never runs.
void uncount_traced_launch();

// True if CUPTI reports the times.
bool is_tracing();

void stop_tracing_in_child();

}  // namespace fibshim
