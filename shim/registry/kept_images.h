// Keeps images beside a recording, so that their kernels can be launched again after the program
// has ended (`fibshim record --keep-images`). Each is stored once, by its hash, in images/ below
// FIBSHIM_RECORD; those of all processes together stay within FIBSHIM_RECORD_LIMIT. Slow paths
// only; any thread.
#pragma once

#include <stdint.h>

#include "shim/abi/recording_format.h"
#include "shim/abi/snapshot.h"

namespace fibshim {

// True if the kernel's name matches FIBSHIM_RECORD_IMAGES.
bool is_image_kept_for(const char* kernel);

// Writes the image, unless it exists or there is no room. A file appears complete or not at all.
void keep_image(const ImageHash& hash, RecordedImage kind, const void* image, uint64_t bytes);

}  // namespace fibshim
