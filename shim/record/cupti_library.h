// Finds libcupti: the process may hold it already; else it lies beside the CUDA libraries that the process has
// loaded, where the linker looks, or in a toolkit.
#pragma once

#include "shim/abi/recorder_api.h"
#include "shim/record/cupti_api.h"

namespace fibshim {

// Opens it for good. `driver_version` as cuDriverGetVersion has it: a newer libcupti would not work. False: there is
// none, or it lacks a function.
bool open_cupti(const RecorderHost& host, int driver_version, CuptiFunctions* out);

}  // namespace fibshim
