// What the readers of GPU images share: numbers within bytes, and how they refuse an image.
#pragma once

#include <string.h>

#include <string_view>

#include "loader/read/result.h"

namespace fibshim {

// All of it must lie within the bytes.
template <class T>
T read_at(std::string_view bytes, size_t offset) {
  T value;
  memcpy(&value, bytes.data() + offset, sizeof value);
  return value;
}

inline tl::unexpected<Error> invalid(std::string message, size_t offset = 0) {
  return fail(ErrorCode::invalid_image, std::move(message), offset);
}

}  // namespace fibshim
