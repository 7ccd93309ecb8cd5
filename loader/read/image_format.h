// Tells by the first bytes what a GPU image is.
#pragma once

#include <stdint.h>

#include <string_view>

namespace fibshim {

enum class ImageFormat : uint8_t { unknown, cubin, fatbin, ptx };

// By the first bytes. A fatbin is its region, without the wrapper struct.
ImageFormat detect_image_format(std::string_view bytes);

}  // namespace fibshim
