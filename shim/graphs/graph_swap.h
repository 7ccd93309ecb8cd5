// A swap reaches executable graphs: for each whose originals are kept, what the new folder makes of them is made ready
// in the background, and its next launch runs that (exec_launch.h). For the watcher's thread alone.
#pragma once

#include <stdint.h>

namespace fibshim {

struct MovedGraphs {
  uint32_t moved;  // their next launch belongs to the generation in force
  uint32_t kept;   // could not be made ready: they run what they ran
};

// Makes ready what is of another generation than the one in force, and was not tried for it; and what runs a solution that is
// left alone by now.
MovedGraphs prepare_graphs();

}  // namespace fibshim
