// Finds the allocation that a pointer points into. A slow path: one driver call.
#pragma once

#include "shim/driver/driver.h"

namespace fibshim {

// The allocation; of memory that is mapped piece by piece (cuMemMap) the reserved addresses, as cuMemGetAddressRange
// knows of one piece only. False: there is none, or the driver does not tell.
inline bool find_memory(CUdeviceptr pointer, CUdeviceptr* begin, size_t* size) {
  const auto get_attributes = FIBSHIM_REAL(cuPointerGetAttributes);
  CUpointer_attribute wanted[] = {CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
                                  CU_POINTER_ATTRIBUTE_RANGE_SIZE};
  *begin = 0;
  *size = 0;
  void* answers[] = {begin, size};
  return get_attributes != nullptr && get_attributes(2, wanted, answers, pointer) == CUDA_SUCCESS &&
         pointer - *begin < *size;
}

// Returns the end of that allocation. 0: there is none, or the driver cannot tell.
inline uint64_t find_end_of_memory(CUdeviceptr pointer) {
  CUdeviceptr begin;
  size_t size;
  return find_memory(pointer, &begin, &size) ? begin + size : 0;
}

}  // namespace fibshim
