// A minimal config folder that `fibshim check` finds no mistake in, for tests to break one thing
// of. Its kernel is `scale` of tests/tools/data/kernels.cu.
#pragma once

#include "tests/tools/fibshim_program.h"

namespace fibshim::test {

// Copies the image and writes definition, solution and pattern below `folder`.
void write_config_folder(const std::string& folder);

}  // namespace fibshim::test
