// The image of compare.cu, for each GPU that kernels are built for.
#pragma once

namespace fibshim {
extern "C" const char fibshim_compare_image[] __attribute__((visibility("hidden")));
}  // namespace fibshim
