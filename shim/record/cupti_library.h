// Finds libcupti: loaded in the process already, beside the CUDA libraries that the process has
// loaded, in the linker's search path, or in a toolkit.
#pragma once

#include "shim/abi/recorder_api.h"
#include "shim/record/cupti_api.h"

namespace fibshim {

// Opens it and never closes it. `driver_version`: from cuDriverGetVersion, as a newer libcupti
// would not work. False: there is none, or it lacks a function.
bool open_cupti(const RecorderHost& host, int driver_version, CuptiFunctions* out);

}  // namespace fibshim
