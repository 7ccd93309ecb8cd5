// The runs of kernels in the recording: by name and geometry, separately in graphs and eagerly; and
// each GPU's busy time. Called only by run_tracer.
#pragma once

#include "shim/record/cupti_api.h"

namespace fibshim {

// Adds kernels that have ended, in the order of their start. Time before the latest end of an
// earlier kernel is not counted as busy again.
void add_runs(const CuptiKernel* const* kernels, uint32_t count);

// Counts runs for which CUPTI had no room.
void add_dropped_runs(uint64_t count);

}  // namespace fibshim
