// The generation in force, and the loader that made its snapshot. Put in place by life/; read by whatever
// needs to know which folder the process is in. Any thread; never blocks, never starts anything.
#ifndef FIBSHIM_SHIM_REGISTRY_IN_FORCE_H_
#define FIBSHIM_SHIM_REGISTRY_IN_FORCE_H_

#include "shim/abi/snapshot.h"
#include "shim/registry/generation.h"

namespace fibshim {

// Whether there is a generation.
bool has_started();

// The generation in force, once one was seen. Within a read section: it stays until that is left.
const Generation* current_generation();

// Puts `next` in its place, and returns the one before. For life/runtime.cc, and for put_in_force() under its
// lock.
Generation* exchange_generation(Generation* next);

// The loader's functions; valid once a generation was seen. Set before the first is in force.
const LoaderApi& loader();
void set_loader(const LoaderApi* api);

}  // namespace fibshim

#endif  // FIBSHIM_SHIM_REGISTRY_IN_FORCE_H_
