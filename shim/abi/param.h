// Where a kernel parameter lies in a packed buffer, as the shim stores it and passes it to the
// recorder.
#pragma once

#include <stdint.h>

namespace fibshim {

struct Param {
  uint32_t offset;  // bytes
  uint32_t size;
};

}  // namespace fibshim
