// Images that are kept beside a recording, so that their kernels can be launched again when the program is gone
// (`fibshim record --keep-images`): each once, by its hash, in images/ below FIBSHIM_RECORD, all processes'
// together within FIBSHIM_RECORD_LIMIT. Slow paths only; any thread.
#pragma once

#include <stdint.h>

#include "shim/abi/recording_format.h"
#include "shim/abi/snapshot.h"

namespace fibshim {

// Whether the kernel's name fits FIBSHIM_RECORD_IMAGES.
bool is_image_kept_for(const char* kernel);

// Writes the image, unless it is there or finds no room. A file appears whole, or not at all.
void keep_image(const ImageHash& hash, RecordedImage kind, const void* image, uint64_t bytes);

}  // namespace fibshim
