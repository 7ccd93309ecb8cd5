// Reads the settings from the environment, then from the folder's fibshim.json, and warns of
// invalid values. base/settings_in_force.h has the values in force.
#pragma once

#include "shim/abi/settings.h"

namespace fibshim {

struct Snapshot;

// Reads the environment, with warnings of invalid values. Not thread-safe: called by runtime.cc
// before it publishes anything.
void read_settings();

// Applies the folder's settings that the environment does not set. Called by runtime.cc afterwards.
void apply_folder_settings(const Snapshot& snapshot);

// Return the mode of a process that moves to this folder, and what errors of its solutions do.
Mode mode_with(const Snapshot& snapshot);
OnError on_error_with(const Snapshot& snapshot);

// Applies those of a next folder's settings that can change while the process runs: the mode, the
// effect of errors and mismatches, the log level, quarantine and shadow checks. The log file and
// the counters file stay. Called only by the watcher.
void apply_settings_of_next(const Snapshot& snapshot, Mode mode);

}  // namespace fibshim
