// Which shapes a series has met, for `stats --diff`: the constant axes of each decision, and all axes of each graph node
// that is planned. Nothing here runs in a launch that has its decision.
#pragma once

#include "shim/plan/plan.h"

namespace fibshim {

// Of a decision that is being made; its first `own` key parts are of the pattern.
void record_shape(const Decision& decision, uint32_t own);

// Of a node that is redirected.
void record_shape_of_node(const LaunchPlan& plan, const LaunchView& view);

}  // namespace fibshim
