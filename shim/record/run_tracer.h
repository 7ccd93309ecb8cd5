// Has CUPTI tell every run of a kernel, in graphs too, and puts them into the recording.
//
// Begins at the process's first launch. CUPTI has one client: where a program uses it itself (torch.profiler), ours
// goes without, and the launch timer measures with events. Nothing is traced in a child of a process that was traced:
// CUDA works in none.
#pragma once

#include "shim/abi/recorder_api.h"

namespace fibshim {

// Before all others. `host` must stay valid.
void start_tracer(const RecorderHost& host);

// Before a launch that is recorded, or a node, once there is a file; the first one begins the tracing. No lock may be
// held.
void trace_launch(bool is_node);
// A launch, no node, that failed: it never runs.
void untrace_launch();

// Whether CUPTI tells the times.
bool is_tracing();

void stop_tracing_in_child();

}  // namespace fibshim
