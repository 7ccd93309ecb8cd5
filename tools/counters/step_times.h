// How long the steps of processes take: the intervals between launches of one executable graph, which the shim counts while it
// is asked to (time_steps() in control.h).
#pragma once

#include <string>
#include <vector>

#include "shim/abi/counters_format.h"

namespace fibshim::tools {

// As the file has them; empty where it cannot be read.
std::vector<StepTimes> read_step_times(int folder_fd, const std::string& file);

struct Steps {
  uint64_t count = 0;
  double median_us = 0;  // where there are some
};
// Of the graph that was launched most in between.
Steps steps_between(const std::vector<StepTimes>& before, const std::vector<StepTimes>& after);

}  // namespace fibshim::tools
