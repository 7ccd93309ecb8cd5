// Where memory ends. A slow path: one driver call.
#pragma once

#include "shim/driver/driver.h"

namespace fibshim {

// The end of the allocation that a pointer leads into; of memory that is mapped piece by piece (cuMemMap) that of the
// reserved addresses, as cuMemGetAddressRange knows of one piece only. 0: there is none, or the driver does not tell.
inline uint64_t find_end_of_memory(CUdeviceptr pointer) {
  const auto get_attributes = FIBSHIM_REAL(cuPointerGetAttributes);
  CUpointer_attribute wanted[] = {CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
                                  CU_POINTER_ATTRIBUTE_RANGE_SIZE};
  CUdeviceptr begin = 0;
  size_t size = 0;
  void* answers[] = {&begin, &size};
  if (get_attributes == nullptr || get_attributes(2, wanted, answers, pointer) != CUDA_SUCCESS ||
      pointer - begin >= size) {
    return 0;
  }
  return begin + size;
}

}  // namespace fibshim
