// The shim's life in one process: nothing until the first use of CUDA, then the loader and one
// generation after the other (generation.h).
//
// Starting needs dlopen, and any thread may be inside dlopen and reach a hook from there. So the
// starting thread holds no lock, and the others wait for it only so long: whoever gives up treats
// its handle as not yet known, and meets it again at the next launch.
#ifndef FIBSHIM_SHIM_LIFE_RUNTIME_H_
#define FIBSHIM_SHIM_LIFE_RUNTIME_H_

#include "shim/abi/snapshot.h"
#include "shim/registry/generation.h"

namespace fibshim {

// Starts if that has not happened. False when the shim is inactive, the folder is missing or invalid,
// or another thread is starting and takes too long.
bool ensure_started();

// The folder's snapshot, or null and `message` says why. While a folder is read no thread forks, and
// the other way round: the loader's C++ library does not survive being copied half-way.
const Snapshot* open_folder(const char* path, char* message, size_t message_size);

}  // namespace fibshim

#endif  // FIBSHIM_SHIM_LIFE_RUNTIME_H_
