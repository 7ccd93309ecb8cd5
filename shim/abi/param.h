// Where a kernel parameter lies in a packed buffer: what the shim keeps of it, and tells the recorder.
#ifndef FIBSHIM_SHIM_ABI_PARAM_H_
#define FIBSHIM_SHIM_ABI_PARAM_H_

#include <stdint.h>

namespace fibshim {

struct Param {
  uint32_t offset;  // bytes
  uint32_t size;
};

}  // namespace fibshim

#endif  // FIBSHIM_SHIM_ABI_PARAM_H_
