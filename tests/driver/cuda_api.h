// cuda.h as the driver itself sees it: every exported name is declared as it is spelt, old forms
// and _ptsz ones too, and nothing is renamed. Include this instead of <cuda.h>, everywhere.
#ifndef FIBSHIM_TESTS_DRIVER_CUDA_API_H_
#define FIBSHIM_TESTS_DRIVER_CUDA_API_H_

#define __CUDA_API_VERSION_INTERNAL 1
#include <cuda.h>
#include <cudaTypedefs.h>

#endif  // FIBSHIM_TESTS_DRIVER_CUDA_API_H_
