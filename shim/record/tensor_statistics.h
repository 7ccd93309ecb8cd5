// Statistics of a tensor's elements in host memory.
#pragma once

#include "shim/abi/tensor_plan.h"

namespace fibshim {

// Fills in all but `tensor` and `bytes`.
void add_statistics(const TensorPlanTensor& tensor, const void* data, uint64_t bytes,
                    KeptTensor* out);

}  // namespace fibshim
