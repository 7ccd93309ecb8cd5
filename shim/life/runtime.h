// The life of the shim in one process: nothing happens until the first use of CUDA. Then the loader
// is opened, and one generation follows another (generation.h).
//
// The start needs dlopen, and any thread may be inside dlopen and reach a hook from there. So the
// starting thread holds no lock, and the others wait for it only for a limited time. A thread that
// gives up treats its handle as unknown, and looks it up again at the next launch.
#pragma once

namespace fibshim {

// Starts the shim unless it has started. Returns false if the shim is inactive or off, cannot be
// started, or another thread is starting it and takes too long.
bool ensure_started();

}  // namespace fibshim
