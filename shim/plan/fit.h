// Whether a pattern fits a kernel whose symbol it matches.
//
// Pure: reads the snapshot and its arguments; no driver, no globals, no allocation. The shim calls
// it when it learns a handle, `fibshim record` and `check --against` call it for recorded kernels.
#pragma once

#include <stdint.h>

#include "shim/abi/param.h"
#include "shim/abi/snapshot.h"

namespace fibshim {

enum class Fit : uint8_t {
  fits,
  other_layout,  // "params" gives other sizes, or the pattern reads beyond the parameters
  other_image,   // "image" names others, or the kernel's is unknown
};

// `image`: null if it is unknown.
Fit fit_pattern(const Snapshot& snapshot, const Pattern& pattern, const Param* params,
                uint32_t param_count, const ImageHashes* image);

// True if everything that the program, or the binding, reads lies within the parameters.
bool fits_program(const Snapshot& snapshot, Program program, const Param* params,
                  uint32_t param_count);
bool fits_binding(const Snapshot& snapshot, const Binding& binding, const Param* params,
                  uint32_t param_count);

}  // namespace fibshim
