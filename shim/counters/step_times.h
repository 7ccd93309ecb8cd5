// Times the steps of graphs, in the counters file (StepTimes), while `fibshim rollout` asks for it.
#pragma once

#include <stdint.h>

namespace fibshim {

// The clock of one executable graph. Used only by the thread that launches it.
struct StepClock {
  uint64_t last_ns;  // time of its last launch
  uint32_t asked;    // ControlBlock::times_steps at that time; 0: never timed
  uint32_t place;    // among the timed graphs; kTimedGraphs: no room
};

bool are_steps_timed();

// Called at each launch of the graph while steps are timed.
void time_step(StepClock* clock);

}  // namespace fibshim
