// Detects the format of a GPU image.
#pragma once

#include <stdint.h>

#include <string_view>

namespace fibshim {

enum class ImageFormat : uint8_t { unknown, cubin, fatbin, ptx };

// Decides by the first bytes. A fatbin is a region without the wrapper struct.
ImageFormat detect_image_format(std::string_view bytes);

}  // namespace fibshim
