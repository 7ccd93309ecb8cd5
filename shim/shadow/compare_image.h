// The image of compare.cu, for all GPUs for which kernels are built.
#pragma once

namespace fibshim {
extern "C" const char fibshim_compare_image[] __attribute__((visibility("hidden")));
}  // namespace fibshim
