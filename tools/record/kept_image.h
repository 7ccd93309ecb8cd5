// The images that `fibshim record --keep-images` keeps beside a recording.
#pragma once

#include "loader/read/result.h"
#include "tools/record/recording.h"

namespace fibshim::tools {

// Of "FILE", what `record -o` wrote: "FILE.images"; of a folder of recordings: "images" in it.
std::string kept_images_folder(const std::string& recording);

// The image that the kernel came from; checked against its hash. The error says what to do.
Result<std::string> read_kept_image(const std::string& recording, const KernelRecord& kernel);

struct KeptImages {
  size_t count = 0;
  uint64_t bytes = 0;
};

// Puts the images of a folder of recordings beside the file made of it, in the place of those of an earlier one.
Result<KeptImages> move_kept_images(const std::string& folder, const std::string& file);

}  // namespace fibshim::tools
