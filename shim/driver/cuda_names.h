// cuda.h without its renaming macros: a name means what libcuda exports under that very name.
//
// cuda.h defines cuGetProcAddress as cuGetProcAddress_v2. In a table that lists both, two rows
// would then name one function, and the shim would hand out the wrong ABI. Every file of the shim
// that names a driver function includes this header instead of cuda.h.
#pragma once

#include <cuda.h>
#include <cudaTypedefs.h>

#undef cuCtxCreate
#undef cuCtxDestroy
#undef cuDevicePrimaryCtxRelease
#undef cuDevicePrimaryCtxReset
#undef cuEventElapsedTime
#undef cuGetProcAddress
#undef cuGraphAddKernelNode
#undef cuGraphAddNode
#undef cuGraphExecKernelNodeSetParams
#undef cuGraphExecUpdate
#undef cuGraphInstantiate
#undef cuGraphKernelNodeGetParams
#undef cuGraphKernelNodeSetParams
#undef cuStreamBeginCapture
#undef cuStreamDestroy

// cudaTypedefs.h declares the first versions of these for NVIDIA's own use only.
using PFN_fibshim_cuCtxCreate_v2000 = CUresult(CUDAAPI*)(CUcontext* context, unsigned flags,
                                                         CUdevice device);
using PFN_fibshim_cuCtxDestroy_v2000 = CUresult(CUDAAPI*)(CUcontext context);
using PFN_fibshim_cuDevicePrimaryCtxRelease_v7000 = CUresult(CUDAAPI*)(CUdevice device);
using PFN_fibshim_cuDevicePrimaryCtxReset_v7000 = CUresult(CUDAAPI*)(CUdevice device);
using PFN_fibshim_cuStreamBeginCapture_v10000 = CUresult(CUDAAPI*)(CUstream stream);
using PFN_fibshim_cuStreamDestroy_v2000 = CUresult(CUDAAPI*)(CUstream stream);
using PFN_fibshim_cuGraphInstantiate = CUresult(CUDAAPI*)(CUgraphExec* executable, CUgraph graph,
                                                          CUgraphNode* error_node, char* log,
                                                          size_t log_size);
