// Calls of the driver's own functions by hooks.
#pragma once

#include "shim/driver/driver.h"

namespace fibshim {

// Reports the current context if `result` shows that it is lost. `slot`: the real pointer of the
// called function.
void report_failed_call(const void* slot, CUresult result);

// call_driver() for a hook, whose errors are about the current context.
template <class Function, class... Arguments>
inline CUresult call_real(const std::atomic<Function>& slot, Arguments... arguments) {
  const CUresult result = call_driver(slot, arguments...);
  if (__builtin_expect(result != CUDA_SUCCESS, 0)) report_failed_call(&slot, result);
  return result;
}

}  // namespace fibshim
