// Helpers that the readers of GPU images share: numbers read from bytes, and errors.
#pragma once

#include <string.h>

#include <string_view>

#include "loader/read/result.h"

namespace fibshim {

// Requires that the whole value lies within `bytes`.
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
