// The addresses of the hooks, by exported name and by the driver's own pointer, and calls to the driver on
// a hook's behalf.
#ifndef FIBSHIM_SHIM_HOOKS_HOOK_ADDRESSES_H_
#define FIBSHIM_SHIM_HOOKS_HOOK_ADDRESSES_H_

#include "shim/driver/driver.h"

namespace fibshim {

// The hook for a pointer that the real driver gave out, or the pointer itself when it is not one
// that the shim hooks. Exact pointers are compared, never names.
void* exchange_pointer(void* given);

// The hook for an exported name, or nullptr. Takes no lock and allocates nothing.
void* hook_for_name(const char* name);

// Reports the current context if `result` says that it is lost. `slot`: the real pointer of the function that
// was called.
void report_failed_call(const void* slot, CUresult result);

// call_driver() for a hook: errors that it returns tell of the current context.
template <class Function, class... Arguments>
inline CUresult call_real(const std::atomic<Function>& slot, Arguments... arguments) {
  const CUresult result = call_driver(slot, arguments...);
  if (__builtin_expect(result != CUDA_SUCCESS, 0)) report_failed_call(&slot, result);
  return result;
}

}  // namespace fibshim

#endif  // FIBSHIM_SHIM_HOOKS_HOOK_ADDRESSES_H_
