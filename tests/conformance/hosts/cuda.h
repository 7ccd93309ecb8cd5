// The driver as the host programs see it: functions by their exported names, found with dlsym in
// the libcuda.so.1 that the linker finds first, real or simulated. Under the shim, hooked functions
// are the shim's. A function that this driver lacks is null.
#pragma once

#include "tests/driver/functions.h"

namespace conform {

// The simulated driver's own functions; null with a real one.
#define CONFORM_SIMCUDA_FUNCTIONS(FUNCTION) \
  FUNCTION(simcuda_launch_count)            \
  FUNCTION(simcuda_captured_count)          \
  FUNCTION(simcuda_call_count)              \
  FUNCTION(simcuda_last_launch)             \
  FUNCTION(simcuda_stale_launch_count)      \
  FUNCTION(simcuda_live_count)              \
  FUNCTION(simcuda_set_faults)              \
  FUNCTION(simcuda_begin_host_call)         \
  FUNCTION(simcuda_end_host_call)           \
  FUNCTION(simcuda_seed_thread)             \
  FUNCTION(simcuda_has_struck)              \
  FUNCTION(simcuda_own_faults)              \
  FUNCTION(simcuda_last_launch_of_thread)   \
  FUNCTION(simcuda_launches_of_thread)      \
  FUNCTION(simcuda_node)

struct Cuda : simcuda::Functions {
  explicit Cuda(void* driver);
#define FUNCTION(name) decltype(&::name) name;
  CONFORM_SIMCUDA_FUNCTIONS(FUNCTION)
#undef FUNCTION
};

// Opens the driver at the first call; ends the program if there is none.
const Cuda& cuda();

}  // namespace conform
