// Makes a decision: resolves the definition, loads its solution's image, and caches what will hold.
// Slow side: may call the driver, load images and log.
#pragma once

#include "shim/plan/plan.h"

namespace fibshim {

// `key` has room for a device behind the candidate's own parts; `count` says whether that is part of the key.
// `scratch` holds a decision that is not cached.
const Decision& decide(const Record& record, Candidate* candidate, int64_t* key, uint32_t count,
                       const LaunchRequest& request, DecisionRoom* scratch);

// Decides without caching the decision, for a candidate that is not kept.
const Decision& decide_once(const Record& record, const Candidate& candidate, int64_t* key,
                            uint32_t count, const LaunchRequest& request, DecisionRoom* scratch);

// The series under which launches of a candidate are counted whose definition cannot be computed.
uint32_t unresolved_series(const Candidate& candidate);

// The GPU that a launch goes to, and its class. Asks the driver.
int64_t device_key_of_launch(const LaunchRequest& request);

}  // namespace fibshim
