// The plan of a launch or a graph node, with the steps that the pure plan leaves to its caller: looks up or
// learns the record, caches or makes decisions, and counts launches that are not redirected.
//
// Slow side; within the caller's read section, in which the plan must also be read.
#pragma once

#include "shim/counters/counters.h"
#include "shim/plan/plan.h"

namespace fibshim {

// Fills the plan, and counts nothing. Returns the counter of what becomes of the launch; kNoCounter: the shim is off.
inline constexpr CounterIndex kNoCounter = UINT32_MAX;
CounterIndex plan_uncounted(LaunchRequest* request, LaunchPlan* plan);

// Returns the counter of a finished plan.
CounterIndex counter_of_plan(const LaunchPlan& plan);

// The record of a handle that some pattern knows, or that is recorded; learnt if need be. Null: neither.
const Record* find_tracked(const void* handle);

// A plan whose solution failed is counted against that solution.
void record_failed_plan(const LaunchPlan& plan);

// Fills the plan. Of a plan to redirect nothing is counted yet: count plan->decision->counter right before the
// launch, and call end_failed_launch() or refuse_redirect() when it does not happen.
void plan_eager(LaunchRequest* request, LaunchPlan* plan);

// The redirect turns out to be impossible: counts the launch as refused, for the original.
void refuse_redirect(LaunchPlan* plan);

}  // namespace fibshim
