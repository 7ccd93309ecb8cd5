// The driver's functions by their exported names, for programs that find them at run time. There is
// one member for each row of symbols.def; it is null if the driver lacks the function.
#pragma once

#include <dlfcn.h>

#include "tests/driver/cuda_api.h"
#include "tests/driver/simcuda.h"

namespace simcuda {

struct Functions {
  void* library;  // for dlsym
  bool is_simulated;
#define SYMBOL(exported, base, version, form) decltype(&::exported) exported;
#include "tests/driver/symbols.def"
#undef SYMBOL

  explicit Functions(void* driver) : library(driver) {
    is_simulated = dlsym(library, "simcuda_is_simulated") != nullptr;
#define SYMBOL(exported, base, version, form) \
  exported = reinterpret_cast<decltype(exported)>(dlsym(library, #exported));
#include "tests/driver/symbols.def"
#undef SYMBOL
  }
};

}  // namespace simcuda
