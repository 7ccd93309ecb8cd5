// Reads the settings: the environment, then the folder's fibshim.json, and warns of values that are not
// understood. What holds is in base/settings_in_force.h.
#pragma once

#include "shim/abi/settings.h"

namespace fibshim {

struct Snapshot;

// Reads the environment, warning of values that are not understood. Not thread-safe: runtime.cc
// calls it before it publishes anything.
void read_settings();

// Takes the folder's settings where the environment says nothing. The same caller, afterwards.
void apply_folder_settings(const Snapshot& snapshot);

// The mode of a process that goes on with this folder.
Mode mode_with(const Snapshot& snapshot);

// Takes what of a next folder's settings can change while the process runs: the mode, what an error
// does, what is logged. The log's file and the counters stay where they are. The watcher alone.
void apply_settings_of_next(const Snapshot& snapshot, Mode mode);

}  // namespace fibshim
