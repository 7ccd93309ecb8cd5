// How long launches take on the GPU: many of one launch, with the cache flushed between them or within a graph.
#pragma once

#include "tools/judge/case_outcome.h"
#include "tools/judge/gpu.h"

namespace fibshim::judge {

// Fills in the times of the outcome. `flush_buffer`: flushes the cache, made once for all calls; 0: not yet.
Result<void> time_launches(Gpu* gpu, const TrialOptions& options, CUfunction kernel,
                           const Launch& launch, CUdeviceptr* flush_buffer, CaseOutcome* outcome);

// Bytes per second that a copy inside the GPU's memory moves, reads and writes counted.
Result<double> measure_copy_bandwidth(Gpu* gpu);

}  // namespace fibshim::judge
