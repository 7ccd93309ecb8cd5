// The driver as the host programs see it: functions by their exported names, found with dlsym in the
// libcuda.so.1 that the linker finds first, real or simulated. Under the shim the hooked ones are
// its hooks. A function that this driver lacks is null.
#ifndef FIBSHIM_TESTS_CONFORMANCE_HOSTS_CUDA_H_
#define FIBSHIM_TESTS_CONFORMANCE_HOSTS_CUDA_H_

#include "tests/driver/cuda_api.h"
#include "tests/driver/simcuda.h"

namespace conform {

#define CONFORM_FUNCTIONS(FUNCTION)              \
  FUNCTION(cuInit)                               \
  FUNCTION(cuGetErrorName)                       \
  FUNCTION(cuDeviceGet)                          \
  FUNCTION(cuDeviceGetCount)                     \
  FUNCTION(cuDeviceGetAttribute)                 \
  FUNCTION(cuDeviceGetDevResource)               \
  FUNCTION(cuDevResourceGenerateDesc)            \
  FUNCTION(cuDevicePrimaryCtxRetain)             \
  FUNCTION(cuDevicePrimaryCtxRelease)            \
  FUNCTION(cuDevicePrimaryCtxRelease_v2)         \
  FUNCTION(cuDevicePrimaryCtxReset)              \
  FUNCTION(cuDevicePrimaryCtxReset_v2)           \
  FUNCTION(cuCtxAttach)                          \
  FUNCTION(cuCtxCreate_v2)                       \
  FUNCTION(cuCtxDestroy)                         \
  FUNCTION(cuCtxDestroy_v2)                      \
  FUNCTION(cuCtxDetach)                          \
  FUNCTION(cuCtxFromGreenCtx)                    \
  FUNCTION(cuCtxGetCurrent)                      \
  FUNCTION(cuCtxGetDevice)                       \
  FUNCTION(cuCtxPopCurrent_v2)                   \
  FUNCTION(cuCtxPushCurrent_v2)                  \
  FUNCTION(cuCtxSetCurrent)                      \
  FUNCTION(cuCtxSynchronize)                     \
  FUNCTION(cuGreenCtxCreate)                     \
  FUNCTION(cuGreenCtxDestroy)                    \
  FUNCTION(cuGreenCtxStreamCreate)               \
  FUNCTION(cuGetProcAddress)                     \
  FUNCTION(cuGetProcAddress_v2)                  \
  FUNCTION(cuModuleLoad)                         \
  FUNCTION(cuModuleLoadData)                     \
  FUNCTION(cuModuleLoadDataEx)                   \
  FUNCTION(cuModuleLoadFatBinary)                \
  FUNCTION(cuModuleUnload)                       \
  FUNCTION(cuModuleGetFunction)                  \
  FUNCTION(cuModuleGetFunctionCount)             \
  FUNCTION(cuModuleEnumerateFunctions)           \
  FUNCTION(cuLibraryLoadData)                    \
  FUNCTION(cuLibraryLoadFromFile)                \
  FUNCTION(cuLibraryUnload)                      \
  FUNCTION(cuLibraryGetKernel)                   \
  FUNCTION(cuLibraryGetKernelCount)              \
  FUNCTION(cuLibraryEnumerateKernels)            \
  FUNCTION(cuLibraryGetModule)                   \
  FUNCTION(cuKernelGetFunction)                  \
  FUNCTION(cuKernelGetName)                      \
  FUNCTION(cuFuncGetName)                        \
  FUNCTION(cuFuncSetBlockShape)                  \
  FUNCTION(cuParamSetSize)                       \
  FUNCTION(cuParamSeti)                          \
  FUNCTION(cuParamSetv)                          \
  FUNCTION(cuLinkCreate_v2)                      \
  FUNCTION(cuLinkAddData_v2)                     \
  FUNCTION(cuLinkComplete)                       \
  FUNCTION(cuLinkDestroy)                        \
  FUNCTION(cuMemHostAlloc)                       \
  FUNCTION(cuMemFreeHost)                        \
  FUNCTION(cuStreamCreate)                       \
  FUNCTION(cuStreamDestroy)                      \
  FUNCTION(cuStreamDestroy_v2)                   \
  FUNCTION(cuStreamSynchronize)                  \
  FUNCTION(cuStreamBeginCapture)                 \
  FUNCTION(cuStreamBeginCapture_ptsz)            \
  FUNCTION(cuStreamBeginCapture_v2)              \
  FUNCTION(cuStreamBeginCapture_v2_ptsz)         \
  FUNCTION(cuStreamBeginCaptureToGraph)          \
  FUNCTION(cuStreamBeginCaptureToGraph_ptsz)     \
  FUNCTION(cuStreamEndCapture)                   \
  FUNCTION(cuStreamEndCapture_ptsz)              \
  FUNCTION(cuLaunchKernel)                       \
  FUNCTION(cuLaunchKernel_ptsz)                  \
  FUNCTION(cuLaunchKernelEx)                     \
  FUNCTION(cuLaunchKernelEx_ptsz)                \
  FUNCTION(cuLaunchCooperativeKernel)            \
  FUNCTION(cuLaunchCooperativeKernel_ptsz)       \
  FUNCTION(cuLaunchCooperativeKernelMultiDevice) \
  FUNCTION(cuLaunch)                             \
  FUNCTION(cuLaunchGrid)                         \
  FUNCTION(cuLaunchGridAsync)                    \
  FUNCTION(cuGraphCreate)                        \
  FUNCTION(cuGraphDestroy)                       \
  FUNCTION(cuGraphClone)                         \
  FUNCTION(cuGraphGetNodes)                      \
  FUNCTION(cuGraphAddKernelNode)                 \
  FUNCTION(cuGraphAddKernelNode_v2)              \
  FUNCTION(cuGraphAddNode)                       \
  FUNCTION(cuGraphAddNode_v2)                    \
  FUNCTION(cuGraphAddChildGraphNode)             \
  FUNCTION(cuGraphChildGraphNodeGetGraph)        \
  FUNCTION(cuGraphDestroyNode)                   \
  FUNCTION(cuGraphKernelNodeGetParams)           \
  FUNCTION(cuGraphKernelNodeGetParams_v2)        \
  FUNCTION(cuGraphKernelNodeSetParams)           \
  FUNCTION(cuGraphKernelNodeSetParams_v2)        \
  FUNCTION(cuGraphNodeSetParams)                 \
  FUNCTION(cuGraphKernelNodeGetAttribute)        \
  FUNCTION(cuGraphKernelNodeSetAttribute)        \
  FUNCTION(cuGraphExecKernelNodeSetParams)       \
  FUNCTION(cuGraphExecKernelNodeSetParams_v2)    \
  FUNCTION(cuGraphExecNodeSetParams)             \
  FUNCTION(cuGraphInstantiateWithFlags)          \
  FUNCTION(cuGraphExecDestroy)                   \
  FUNCTION(cuGraphExecUpdate_v2)                 \
  FUNCTION(cuGraphLaunch)                        \
  FUNCTION(cuGraphLaunch_ptsz)

// The simulated driver's own functions; null with a real one.
#define CONFORM_SIMCUDA_FUNCTIONS(FUNCTION) \
  FUNCTION(simcuda_launch_count)            \
  FUNCTION(simcuda_captured_count)          \
  FUNCTION(simcuda_call_count)              \
  FUNCTION(simcuda_last_launch)             \
  FUNCTION(simcuda_stale_launch_count)      \
  FUNCTION(simcuda_live_count)              \
  FUNCTION(simcuda_set_faults)              \
  FUNCTION(simcuda_begin_host_call)         \
  FUNCTION(simcuda_end_host_call)           \
  FUNCTION(simcuda_seed_thread)             \
  FUNCTION(simcuda_has_struck)              \
  FUNCTION(simcuda_own_faults)              \
  FUNCTION(simcuda_last_launch_of_thread)   \
  FUNCTION(simcuda_node)

struct Cuda {
  void* library;
  bool is_simulated;
#define FUNCTION(name) decltype(&::name) name;
  CONFORM_FUNCTIONS(FUNCTION)
  CONFORM_SIMCUDA_FUNCTIONS(FUNCTION)
#undef FUNCTION
};

// Opens the driver at the first call; ends the program where there is none.
const Cuda& cuda();

}  // namespace conform

#endif  // FIBSHIM_TESTS_CONFORMANCE_HOSTS_CUDA_H_
