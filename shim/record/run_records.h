// The runs of kernels, in the recording: by name and geometry, in graphs and eagerly apart, and each GPU's busy time.
// Called by run_tracer alone, by one thread at a time.
#pragma once

#include "shim/record/cupti_api.h"

namespace fibshim {

// Adds kernels that have ended, in any order. What began before an earlier call's last has ended counts as busy only
// from there on.
void add_runs(const CuptiKernel* const* kernels, uint32_t count);

// Counts runs that CUPTI had no room for.
void add_dropped_runs(uint64_t count);

}  // namespace fibshim
