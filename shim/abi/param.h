// Where a kernel parameter lies in a packed buffer: what the shim keeps of it, and tells the recorder.
#pragma once

#include <stdint.h>

namespace fibshim {

struct Param {
  uint32_t offset;  // bytes
  uint32_t size;
};

}  // namespace fibshim
