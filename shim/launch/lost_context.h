// Reports a lost CUDA context: once for each context, at the first hooked call that returns a sticky
// error, with the solutions that have run on its device.
//
// Only calls that return to the shim are seen: hooks, and redirected launches. Launches of kernels
// that no pattern fits jump to the driver. Any thread; calls the driver, and logs.
#pragma once

#include "shim/driver/sticky_errors.h"

namespace fibshim {

// Reports the current context if `result`, which `call` has returned in it, is a sticky error.
void report_if_lost(const char* call, CUresult result);

// Call when the context, or a device's primary one, ends: its handle may be reused at once.
void forget_lost_context(CUcontext context);
void forget_lost_primary_context(CUdevice device);

}  // namespace fibshim
