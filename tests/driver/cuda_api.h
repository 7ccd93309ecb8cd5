// cuda.h as the driver itself sees it: every exported name is declared as it is spelt, including
// old forms and _ptsz ones, and nothing is renamed. Include this instead of <cuda.h> everywhere.
#pragma once

#define __CUDA_API_VERSION_INTERNAL 1
#include <cuda.h>
#include <cudaTypedefs.h>
