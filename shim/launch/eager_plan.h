// Plans a launch or a graph node, with the steps that the pure plan leaves to its caller: looks up
// or learns the record, makes or caches decisions, and counts launches that are not redirected.
//
// Slow side. Requires a read section, which must last until the plan has been used.
#pragma once

#include "shim/counters/counters.h"
#include "shim/plan/plan.h"

namespace fibshim {

// Fills the plan and counts nothing. Returns the launch's counter; kNoCounter: the shim is off.
inline constexpr CounterIndex kNoCounter = UINT32_MAX;
CounterIndex plan_uncounted(LaunchRequest* request, LaunchPlan* plan);

// Returns the counter of a finished plan.
CounterIndex counter_of_plan(const LaunchPlan& plan);

// Returns the record of a handle that some pattern fits, or that is recorded. Learns the handle if
// needed. Null: neither.
const Record* find_tracked(const void* handle);

// Counts a failure of the solution if the plan failed because of it.
void record_failed_plan(const LaunchPlan& plan);

// Fills the plan. A redirect is not counted yet: count plan->decision->counter right before the
// launch, and call end_failed_launch() or refuse_redirect() if it fails or is not made.
void plan_eager(LaunchRequest* request, LaunchPlan* plan);

// Call if the redirect turns out to be impossible: plans the original, counted as refused.
void refuse_redirect(LaunchPlan* plan);

}  // namespace fibshim
