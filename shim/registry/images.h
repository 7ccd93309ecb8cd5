// Loads replacement kernels into the driver, from the image that suits the GPU.
//
// Images are loaded with cuLibraryLoadData, so that one CUkernel serves every context, once per
// content and kind of GPU (loaded_images.h). Loading holds no lock; if two threads load the same
// image at once, one of them unloads its copy. Only success is cached.
#pragma once

#include "shim/registry/generation.h"

namespace fibshim {

enum class LoadState : uint8_t {
  ready,     // `kernel` may be launched
  no_image,  // no image for this GPU
  not_yet,   // not loaded: the driver is not initialised, or was not called
  failed,    // `error` says why; a message was logged
};

struct Replacement {
  LoadState state;
  CUresult error;
  CUkernel kernel;
  uint64_t image = 0;  // that it is of (SeriesEntry::image)
};

// Returns the solution's kernel for a class of GPUs, loading it if needed. Calls the driver; slow
// path only. `binding` states what the kernel's parameters must be.
Replacement load_replacement(const Generation& generation, const Binding& binding,
                             uint32_t device_class);

// The same without calling the driver: `not_yet` if it was not loaded before.
Replacement find_replacement(const Generation& generation, const Binding& binding,
                             uint32_t device_class);

// True if a solution of the generation is broken, as `fibshim check` would report, or an image
// could not be loaded. `message` says which.
bool find_fault(const Generation& generation, char* message, size_t size);

// Loads the generation's kernels that are loaded already into every active primary context, since a
// lazy load at a launch would wait for the GPU. For threads that have no context of their own.
void load_into_contexts(const Generation& generation);

}  // namespace fibshim
