// Moves executable graphs to the new folder. For each exec whose originals are kept, a variant by
// the new folder is made in the background, and the next launch runs it (exec_launch.h). Only for
// the watcher thread.
#pragma once

#include <stdint.h>

namespace fibshim {

struct MovedGraphs {
  uint32_t moved;  // the next launch belongs to the generation in force
  uint32_t kept;   // they run as before, with solutions of another generation
};

// Makes variants for the generation in force for all execs of another generation, once each, and
// for execs that run a quarantined solution.
MovedGraphs prepare_graphs();

}  // namespace fibshim
