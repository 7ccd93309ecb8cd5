// Makes a decision: resolves the definition, loads its solution's image, and caches the decision if
// it is lasting. Slow side: may call the driver, load images and log.
#pragma once

#include "shim/plan/plan.h"

namespace fibshim {

// `key` has room for a device after the candidate's own parts. `count` includes it if it is part of
// the key. `scratch` holds a decision that is not cached.
const Decision& decide(const Record& record, Candidate* candidate, int64_t* key, uint32_t count,
                       const LaunchRequest& request, DecisionRoom* scratch);

// Decides without caching, for a temporary candidate.
const Decision& decide_once(const Record& record, const Candidate& candidate, int64_t* key,
                            uint32_t count, const LaunchRequest& request, DecisionRoom* scratch);

// Returns the series that counts launches of a candidate whose definition cannot be computed.
uint32_t unresolved_series(const Candidate& candidate);

// Returns the key of the GPU that a launch goes to (device_key()). Calls the driver.
int64_t device_key_of_launch(const LaunchRequest& request);

}  // namespace fibshim
