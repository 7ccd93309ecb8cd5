// Finds the length of an image that a host passes as a bare pointer, from its headers. The bytes are the
// host's, and the driver may have read fewer of them than a hash needs, so no byte is read before the
// kernel has confirmed that it is mapped.
#pragma once

#include <stdint.h>

#include "shim/abi/recording_format.h"

namespace fibshim {

struct ImageExtent {
  RecordedImage kind;  // unknown: no image, or one that does not lie in memory as it claims
  uint64_t bytes;      // readable ones from the image's beginning
};

// Calls into the kernel: not for the launch path. Any thread.
ImageExtent measure_image(const void* image);

// Returns the kind of an image by its first bytes, of which `bytes` are readable.
RecordedImage kind_of_image(const void* image, uint64_t bytes);

// What a fat binary's wrapper, as compilers embed it in a program, points to. Null: it is not one.
const void* region_of_wrapper(const void* image);

}  // namespace fibshim
