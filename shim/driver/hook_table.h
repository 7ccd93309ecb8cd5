// Every driver function that the shim hooks, as one row. The only list of them.
//
//   HOOK(exported name as libcuda spells it, its type in cudaTypedefs.h)
//
// From a row come the exported symbol, the real pointer (driver.h), the hook's declaration
// (hooks.h, asserted against the type) and its address (hooks/resolve_hooks.cc). Adding a hook is one
// row here and one function hook_<name> in shim/hooks. EXPORT rows are exported but not driver
// functions.
//
// Included several times with different definitions of HOOK and EXPORT, so it has no include guard.

#ifndef EXPORT
#define EXPORT(name)
#endif

EXPORT(dlsym)
EXPORT(dlvsym)
EXPORT(dlopen)

// Look up functions
HOOK(cuGetProcAddress, PFN_cuGetProcAddress_v11030)
HOOK(cuGetProcAddress_v2, PFN_cuGetProcAddress_v12000)

// Create contexts, which shows that a second device is used
HOOK(cuDevicePrimaryCtxRetain, PFN_cuDevicePrimaryCtxRetain_v7000)
HOOK(cuCtxCreate, PFN_fibshim_cuCtxCreate_v2000)
HOOK(cuCtxCreate_v2, PFN_cuCtxCreate_v3020)
HOOK(cuCtxCreate_v3, PFN_cuCtxCreate_v11040)
HOOK(cuCtxCreate_v4, PFN_cuCtxCreate_v12050)
HOOK(cuGreenCtxCreate, PFN_cuGreenCtxCreate_v12040)

// Load images
HOOK(cuModuleLoad, PFN_cuModuleLoad_v2000)
HOOK(cuModuleLoadData, PFN_cuModuleLoadData_v2000)
HOOK(cuModuleLoadDataEx, PFN_cuModuleLoadDataEx_v2010)
HOOK(cuModuleLoadFatBinary, PFN_cuModuleLoadFatBinary_v2000)
HOOK(cuLibraryLoadData, PFN_cuLibraryLoadData_v12000)
HOOK(cuLibraryLoadFromFile, PFN_cuLibraryLoadFromFile_v12000)

// Return handles
HOOK(cuModuleGetFunction, PFN_cuModuleGetFunction_v2000)
HOOK(cuModuleEnumerateFunctions, PFN_cuModuleEnumerateFunctions_v12040)
HOOK(cuLibraryGetKernel, PFN_cuLibraryGetKernel_v12000)
HOOK(cuLibraryEnumerateKernels, PFN_cuLibraryEnumerateKernels_v12040)
HOOK(cuLibraryGetModule, PFN_cuLibraryGetModule_v12000)
HOOK(cuKernelGetFunction, PFN_cuKernelGetFunction_v12000)

// Launch
HOOK(cuLaunchKernel, PFN_cuLaunchKernel_v4000)
HOOK(cuLaunchKernel_ptsz, PFN_cuLaunchKernel_v7000_ptsz)
HOOK(cuLaunchKernelEx, PFN_cuLaunchKernelEx_v11060)
HOOK(cuLaunchKernelEx_ptsz, PFN_cuLaunchKernelEx_v11060_ptsz)
HOOK(cuLaunchCooperativeKernel, PFN_cuLaunchCooperativeKernel_v9000)
HOOK(cuLaunchCooperativeKernel_ptsz, PFN_cuLaunchCooperativeKernel_v9000_ptsz)

// Launch in the way of CUDA before 4, and on several devices at once: counted, never redirected
HOOK(cuLaunch, PFN_cuLaunch_v2000)
HOOK(cuLaunchGrid, PFN_cuLaunchGrid_v2000)
HOOK(cuLaunchGridAsync, PFN_cuLaunchGridAsync_v2000)
HOOK(cuLaunchCooperativeKernelMultiDevice, PFN_cuLaunchCooperativeKernelMultiDevice_v9000)

// Add nodes: the only place where the driver reports the bodies of conditional nodes
HOOK(cuGraphAddNode, PFN_cuGraphAddNode_v12020)
HOOK(cuGraphAddNode_v2, PFN_cuGraphAddNode_v12030)

// Let graphs keep objects alive, which no query reports
HOOK(cuGraphRetainUserObject, PFN_cuGraphRetainUserObject_v11030)

// Create, launch, change and destroy executable graphs, and with them what runs in their place
HOOK(cuGraphInstantiate, PFN_fibshim_cuGraphInstantiate)
HOOK(cuGraphInstantiate_v2, PFN_fibshim_cuGraphInstantiate)
HOOK(cuGraphInstantiateWithFlags, PFN_cuGraphInstantiateWithFlags_v11040)
HOOK(cuGraphInstantiateWithParams, PFN_cuGraphInstantiateWithParams_v12000)
HOOK(cuGraphInstantiateWithParams_ptsz, PFN_cuGraphInstantiateWithParams_v12000_ptsz)
HOOK(cuGraphExecDestroy, PFN_cuGraphExecDestroy_v10000)
HOOK(cuGraphLaunch, PFN_cuGraphLaunch_v10000)
HOOK(cuGraphLaunch_ptsz, PFN_cuGraphLaunch_v10000_ptsz)
HOOK(cuGraphUpload, PFN_cuGraphUpload_v11010)
HOOK(cuGraphUpload_ptsz, PFN_cuGraphUpload_v11010_ptsz)
HOOK(cuGraphExecUpdate, PFN_cuGraphExecUpdate_v10020)
HOOK(cuGraphExecUpdate_v2, PFN_cuGraphExecUpdate_v12000)
HOOK(cuGraphExecKernelNodeSetParams, PFN_cuGraphExecKernelNodeSetParams_v10010)
HOOK(cuGraphExecKernelNodeSetParams_v2, PFN_cuGraphExecKernelNodeSetParams_v12000)
HOOK(cuGraphExecNodeSetParams, PFN_cuGraphExecNodeSetParams_v12020)
HOOK(cuGraphExecMemcpyNodeSetParams, PFN_cuGraphExecMemcpyNodeSetParams_v10020)
HOOK(cuGraphExecMemsetNodeSetParams, PFN_cuGraphExecMemsetNodeSetParams_v10020)
HOOK(cuGraphExecHostNodeSetParams, PFN_cuGraphExecHostNodeSetParams_v10020)
HOOK(cuGraphExecEventRecordNodeSetEvent, PFN_cuGraphExecEventRecordNodeSetEvent_v11010)
HOOK(cuGraphExecEventWaitNodeSetEvent, PFN_cuGraphExecEventWaitNodeSetEvent_v11010)
HOOK(cuGraphNodeSetEnabled, PFN_cuGraphNodeSetEnabled_v11060)
HOOK(cuGraphExecChildGraphNodeSetParams, PFN_cuGraphExecChildGraphNodeSetParams_v11010)
HOOK(cuGraphExecExternalSemaphoresSignalNodeSetParams,
     PFN_cuGraphExecExternalSemaphoresSignalNodeSetParams_v11020)
HOOK(cuGraphExecExternalSemaphoresWaitNodeSetParams,
     PFN_cuGraphExecExternalSemaphoresWaitNodeSetParams_v11020)
HOOK(cuGraphExecBatchMemOpNodeSetParams, PFN_cuGraphExecBatchMemOpNodeSetParams_v11070)

// Begin and end stream captures, whose launches become unchanged nodes; destroy streams
HOOK(cuStreamBeginCapture, PFN_fibshim_cuStreamBeginCapture_v10000)
HOOK(cuStreamBeginCapture_ptsz, PFN_fibshim_cuStreamBeginCapture_v10000)
HOOK(cuStreamBeginCapture_v2, PFN_cuStreamBeginCapture_v10010)
HOOK(cuStreamBeginCapture_v2_ptsz, PFN_cuStreamBeginCapture_v10010_ptsz)
HOOK(cuStreamBeginCaptureToGraph, PFN_cuStreamBeginCaptureToGraph_v12030)
HOOK(cuStreamBeginCaptureToGraph_ptsz, PFN_cuStreamBeginCaptureToGraph_v12030_ptsz)
HOOK(cuStreamEndCapture, PFN_cuStreamEndCapture_v10000)
HOOK(cuStreamEndCapture_ptsz, PFN_cuStreamEndCapture_v10000_ptsz)
HOOK(cuStreamDestroy, PFN_fibshim_cuStreamDestroy_v2000)
HOOK(cuStreamDestroy_v2, PFN_cuStreamDestroy_v4000)

// End modules, libraries and contexts, and their handles
HOOK(cuModuleUnload, PFN_cuModuleUnload_v2000)
HOOK(cuLibraryUnload, PFN_cuLibraryUnload_v12000)
HOOK(cuCtxDestroy, PFN_fibshim_cuCtxDestroy_v2000)
HOOK(cuCtxDestroy_v2, PFN_cuCtxDestroy_v4000)
HOOK(cuCtxDetach, PFN_cuCtxDetach_v2000)
HOOK(cuDevicePrimaryCtxRelease, PFN_fibshim_cuDevicePrimaryCtxRelease_v7000)
HOOK(cuDevicePrimaryCtxRelease_v2, PFN_cuDevicePrimaryCtxRelease_v11000)
HOOK(cuDevicePrimaryCtxReset, PFN_fibshim_cuDevicePrimaryCtxReset_v7000)
HOOK(cuDevicePrimaryCtxReset_v2, PFN_cuDevicePrimaryCtxReset_v11000)
HOOK(cuGreenCtxDestroy, PFN_cuGreenCtxDestroy_v12040)

#undef EXPORT
