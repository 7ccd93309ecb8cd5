// The shim's life in one process: nothing until the first use of CUDA, then the loader and one
// snapshot.
//
// Starting needs dlopen, and any thread may be inside dlopen and reach a hook from there. So the
// starting thread holds no lock, and the others wait for it only so long: whoever gives up treats
// its handle as not yet known, and meets it again at the next launch.
#ifndef FIBSHIM_SHIM_RUNTIME_H_
#define FIBSHIM_SHIM_RUNTIME_H_

#include "loader/snapshot.h"

namespace fibshim {

// Starts if that has not happened, and returns the snapshot; null when the shim is inactive, the
// folder is missing or invalid, or another thread is starting and takes too long.
const Snapshot* ensure_snapshot();

// The snapshot, or null. Never starts anything.
const Snapshot* current_snapshot();

// The loader's functions; valid once a snapshot was seen.
const LoaderApi& loader();

}  // namespace fibshim

#endif  // FIBSHIM_SHIM_RUNTIME_H_
