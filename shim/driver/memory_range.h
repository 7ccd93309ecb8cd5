// Finds the allocation that a pointer points into. A slow path: one driver call.
#pragma once

#include "shim/driver/driver.h"

namespace fibshim {

// Finds the allocation. For memory that is mapped in pieces (cuMemMap) that is the reserved address
// range; cuMemGetAddressRange would report only one piece. False: there is none, or the driver does
// not report it.
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

// Returns the end of that allocation, or 0 if find_memory() fails.
inline uint64_t find_end_of_memory(CUdeviceptr pointer) {
  CUdeviceptr begin;
  size_t size;
  return find_memory(pointer, &begin, &size) ? begin + size : 0;
}

}  // namespace fibshim
