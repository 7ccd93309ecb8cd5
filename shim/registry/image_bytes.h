// Finds the length of an image that a host passes as a bare pointer, from its headers. The bytes
// belong to the host, and the driver may have read fewer of them than a hash needs, so no byte is
// read before the operating system has confirmed that it is mapped.
#pragma once

#include <stdint.h>

#include "shim/abi/recording_format.h"

namespace fibshim {

struct ImageExtent {
  RecordedImage kind;  // unknown: no image, or not completely mapped
  uint64_t bytes;      // its size, all readable
};

// Makes system calls: not for the launch path. Any thread.
ImageExtent measure_image(const void* image);

// Returns the kind of an image by its first bytes, of which `bytes` are readable.
RecordedImage kind_of_image(const void* image, uint64_t bytes);

// Returns what a fat binary's wrapper, which compilers embed, points to. Null: not a wrapper.
const void* region_of_wrapper(const void* image);

}  // namespace fibshim
