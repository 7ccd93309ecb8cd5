// Replacement kernels in the driver: which image for which GPU.
//
// Images are loaded with cuLibraryLoadData, so that one CUkernel serves every context, once for each
// content and kind of GPU (loaded_images.h). Loading holds no lock; of two threads that load the same
// image at once one unloads its copy. Only success is remembered.
#pragma once

#include "shim/registry/generation.h"

namespace fibshim {

enum class LoadState : uint8_t {
  ready,     // `kernel` may be launched
  no_image,  // no image for this GPU
  not_yet,   // could not be tried: the driver is not initialised
  failed,    // `error` says why; a message was logged
};

struct Replacement {
  LoadState state;
  CUresult error;
  CUkernel kernel;
  uint64_t image = 0;  // that it is of (SeriesEntry::image)
};

// The solution's kernel for a class: loads it if need be. Calls the driver; slow path only.
// `binding` tells what the kernel's parameters must be.
Replacement load_replacement(const Generation& generation, const Binding& binding,
                             uint32_t device_class);

// Does the same without calling the driver: `not_yet` if it was not loaded before.
Replacement find_replacement(const Generation& generation, const Binding& binding,
                             uint32_t device_class);

// Whether a solution of it is broken, or an image that was to be loaded could not be: what `check` calls
// an error, or the driver refuses. `message` says which.
bool find_fault(const Generation& generation, char* message, size_t size);

// Into every primary context that is active, whatever of the generation is loaded: a lazy load at a
// launch would wait for the GPU. For threads that have no context of their own.
void load_into_contexts(const Generation& generation);

}  // namespace fibshim
