// Where a kernel parameter lies in a packed buffer, for the shim and the recorder.
#pragma once

#include <stdint.h>

namespace fibshim {

struct Param {
  uint32_t offset;  // bytes
  uint32_t size;
};

}  // namespace fibshim
