// A minimal config folder in which `fibshim check` finds no mistake. Tests break one thing
// in it. Its kernel is `scale` of tests/tools/data/kernels.cu.
#pragma once

#include "tests/tools/fibshim_program.h"

namespace fibshim::test {

// Copies the image and writes definition, solution and pattern below `folder`.
void write_config_folder(const std::string& folder);

}  // namespace fibshim::test
