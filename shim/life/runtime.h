// The shim's life in one process: nothing until the first use of CUDA, then the loader and one
// generation after the other (generation.h).
//
// Starting needs dlopen, and any thread may be inside dlopen and reach a hook from there. So the
// starting thread holds no lock, and the others wait for it for a limited time: a thread that gives up
// treats its handle as not yet known, and looks it up again at the next launch.
#pragma once

namespace fibshim {

// Starts if that has not happened. False when the shim is inactive, the folder is missing or invalid,
// or another thread is starting and takes too long.
bool ensure_started();

}  // namespace fibshim
