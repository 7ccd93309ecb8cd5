// Does a pattern fit a kernel whose symbol it matches?
//
// Pure: reads the snapshot and what it is given; no driver, no globals, no allocation. The shim asks when a
// handle is learnt, `fibshim record` and `check --against` ask of recorded kernels.
#pragma once

#include <stdint.h>

#include "shim/abi/param.h"
#include "shim/abi/snapshot.h"

namespace fibshim {

enum class Fit : uint8_t {
  fits,
  other_layout,  // "params" gives other sizes, or the pattern reads beyond the parameters
  other_image,   // "image" names others, or the kernel's is not known
};

// `image`: null when it is not known.
Fit fit_pattern(const Snapshot& snapshot, const Pattern& pattern, const Param* params,
                uint32_t param_count, const ImageHashes* image);

// Whether everything that the program reads lies within the parameters.
bool fits_program(const Snapshot& snapshot, Program program, const Param* params,
                  uint32_t param_count);

// Whether everything that the binding reads lies within the parameters.
bool fits_binding(const Snapshot& snapshot, const Binding& binding, const Param* params,
                  uint32_t param_count);

}  // namespace fibshim
