// How long an image is that a host hands to the driver as a mere pointer: its headers say so. They are
// somebody else's bytes, and the driver may have looked at less of them than their hash would, so no
// byte is read before the kernel has said that it is there.
#ifndef FIBSHIM_SHIM_REGISTRY_IMAGE_BYTES_H_
#define FIBSHIM_SHIM_REGISTRY_IMAGE_BYTES_H_

#include <stdint.h>

#include "shim/abi/recording_format.h"

namespace fibshim {

struct ImageExtent {
  RecordedImage kind;  // unknown: no image, or one that does not lie in memory as it claims
  uint64_t bytes;      // readable ones from the image's beginning
};

// Calls into the kernel: not for the launch path. Any thread.
ImageExtent measure_image(const void* image);

// The same by the first bytes alone, of which there are `bytes`.
RecordedImage kind_of_image(const void* image, uint64_t bytes);

// A fat binary's wrapper, as compilers lay it into a program: what it points to. Null: it is none.
const void* region_of_wrapper(const void* image);

}  // namespace fibshim

#endif  // FIBSHIM_SHIM_REGISTRY_IMAGE_BYTES_H_
