// How long the steps of processes take: the intervals between launches of one executable graph. The
// shim counts them while it is asked to (time_steps() in control.h).
#pragma once

#include <string>
#include <vector>

#include "shim/abi/counters_format.h"

namespace fibshim::tools {

// The step times as the file stores them; empty if it cannot be read.
std::vector<StepTimes> read_step_times(int folder_fd, const std::string& file);

struct Steps {
  uint64_t count = 0;
  double median_us = 0;  // valid if count is not 0
};
// The steps of the graph that was launched most often between the two readings.
Steps steps_between(const std::vector<StepTimes>& before, const std::vector<StepTimes>& after);

}  // namespace fibshim::tools
