// The images that `fibshim record --keep-images` keeps beside a recording.
#pragma once

#include "loader/read/result.h"
#include "tools/record/recording.h"

namespace fibshim::tools {

// The folder of a recording's images: "FILE.images" for `record -o FILE`; "images" in a folder of
// recordings.
std::string kept_images_folder(const std::string& recording);

// The image from which the kernel was loaded, checked against its hash. The error says what to do.
Result<std::string> read_kept_image(const std::string& recording, const KernelRecord& kernel);

struct KeptImages {
  size_t count = 0;
  uint64_t bytes = 0;
};

// Copies the images of a folder of recordings beside the file that was made from it. They replace
// an earlier file's.
Result<KeptImages> move_kept_images(const std::string& folder, const std::string& file);

}  // namespace fibshim::tools
