// How long the steps of graphs take, kept in the counters file (StepTimes) while `fibshim rollout` asks for it.
#pragma once

#include <stdint.h>

namespace fibshim {

// Of one executable graph; written by whoever launches it.
struct StepClock {
  uint64_t last_ns;  // its last launch
  uint32_t asked;    // ControlBlock::times_steps then; 0: never
  uint32_t place;    // among the timed graphs; kTimedGraphs: there was no room
};

bool are_steps_timed();

// At each launch of the graph, while they are.
void time_step(StepClock* clock);

}  // namespace fibshim
