// The real driver: pointers to the functions that the shim hooks or calls itself.
//
// Resolved on demand, all at once, from the libcuda.so.1 that the process has loaded. Every thread
// would find the same values, and publishes them by atomic stores, so no thread ever waits here. A
// failure is never cached. Callable from any thread at any time, even before cuInit.
#pragma once

#include <atomic>

#include "shim/base/hot.h"
#include "shim/driver/cuda_names.h"

namespace fibshim {

// Driver functions that the shim calls but does not hook. Absent ones stay null; callers check.
#define FIBSHIM_CALLED_FUNCTIONS(CALL)                                            \
  CALL(cuDriverGetVersion, PFN_cuDriverGetVersion_v2020)                          \
  CALL(cuGetErrorName, PFN_cuGetErrorName_v6000)                                  \
  CALL(cuDeviceGetCount, PFN_cuDeviceGetCount_v2000)                              \
  CALL(cuDeviceGet, PFN_cuDeviceGet_v2000)                                        \
  CALL(cuDeviceGetName, PFN_cuDeviceGetName_v2000)                                \
  CALL(cuDeviceGetAttribute, PFN_cuDeviceGetAttribute_v2000)                      \
  CALL(cuCtxGetDevice, PFN_cuCtxGetDevice_v2000)                                  \
  CALL(cuCtxFromGreenCtx, PFN_cuCtxFromGreenCtx_v12040)                           \
  CALL(cuDevicePrimaryCtxGetState, PFN_cuDevicePrimaryCtxGetState_v7000)          \
  CALL(cuFuncGetName, PFN_cuFuncGetName_v12030)                                   \
  CALL(cuKernelGetName, PFN_cuKernelGetName_v12030)                               \
  CALL(cuFuncGetModule, PFN_cuFuncGetModule_v11000)                               \
  CALL(cuKernelGetLibrary, PFN_cuKernelGetLibrary_v12050)                         \
  CALL(cuFuncGetParamInfo, PFN_cuFuncGetParamInfo_v12040)                         \
  CALL(cuKernelGetParamInfo, PFN_cuKernelGetParamInfo_v12040)                     \
  CALL(cuKernelGetAttribute, PFN_cuKernelGetAttribute_v12000)                     \
  CALL(cuKernelSetAttribute, PFN_cuKernelSetAttribute_v12000)                     \
  CALL(cuStreamGetCtx, PFN_cuStreamGetCtx_v9020)                                  \
  CALL(cuStreamGetId, PFN_cuStreamGetId_v12000)                                   \
  CALL(cuMemAlloc_v2, PFN_cuMemAlloc_v3020)                                       \
  CALL(cuMemFree_v2, PFN_cuMemFree_v3020)                                         \
  CALL(cuMemsetD8Async, PFN_cuMemsetD8Async_v3020)                                \
  CALL(cuCtxPushCurrent_v2, PFN_cuCtxPushCurrent_v4000)                           \
  CALL(cuCtxPopCurrent_v2, PFN_cuCtxPopCurrent_v4000)                             \
  CALL(cuGraphGetNodes, PFN_cuGraphGetNodes_v10000)                               \
  CALL(cuGraphGetEdges_v2, PFN_cuGraphGetEdges_v12030)                            \
  CALL(cuGraphAddChildGraphNode, PFN_cuGraphAddChildGraphNode_v10000)             \
  CALL(cuGraphDestroyNode, PFN_cuGraphDestroyNode_v10000)                         \
  CALL(cuGraphMemcpyNodeGetParams, PFN_cuGraphMemcpyNodeGetParams_v10000)         \
  CALL(cuGraphMemsetNodeGetParams, PFN_cuGraphMemsetNodeGetParams_v10000)         \
  CALL(cuGraphNodeGetType, PFN_cuGraphNodeGetType_v10000)                         \
  CALL(cuGraphChildGraphNodeGetGraph, PFN_cuGraphChildGraphNodeGetGraph_v10000)   \
  CALL(cuGraphClone, PFN_cuGraphClone_v10000)                                     \
  CALL(cuGraphDestroy, PFN_cuGraphDestroy_v10000)                                 \
  CALL(cuGraphNodeFindInClone, PFN_cuGraphNodeFindInClone_v10000)                 \
  CALL(cuGraphKernelNodeGetParams_v2, PFN_cuGraphKernelNodeGetParams_v12000)      \
  CALL(cuGraphKernelNodeSetParams_v2, PFN_cuGraphKernelNodeSetParams_v12000)      \
  CALL(cuGraphKernelNodeGetAttribute, PFN_cuGraphKernelNodeGetAttribute_v11000)   \
  CALL(cuGraphKernelNodeSetAttribute, PFN_cuGraphKernelNodeSetAttribute_v11000)   \
  CALL(cuGraphNodeGetDependencies_v2, PFN_cuGraphNodeGetDependencies_v12030)      \
  CALL(cuGraphNodeGetDependentNodes_v2, PFN_cuGraphNodeGetDependentNodes_v12030)  \
  CALL(cuGraphAddKernelNode_v2, PFN_cuGraphAddKernelNode_v12000)                  \
  CALL(cuGraphAddDependencies_v2, PFN_cuGraphAddDependencies_v12030)              \
  CALL(cuGraphRemoveDependencies_v2, PFN_cuGraphRemoveDependencies_v12030)        \
  CALL(cuGraphNodeGetEnabled, PFN_cuGraphNodeGetEnabled_v11060)                   \
  CALL(cuGraphExecGetFlags, PFN_cuGraphExecGetFlags_v12000)                       \
  CALL(cuGraphNodeSetParams, PFN_cuGraphNodeSetParams_v12020)                     \
  CALL(cuGraphMemcpyNodeSetParams, PFN_cuGraphMemcpyNodeSetParams_v10000)         \
  CALL(cuGraphMemsetNodeSetParams, PFN_cuGraphMemsetNodeSetParams_v10000)         \
  CALL(cuGraphHostNodeSetParams, PFN_cuGraphHostNodeSetParams_v10000)             \
  CALL(cuGraphEventRecordNodeSetEvent, PFN_cuGraphEventRecordNodeSetEvent_v11010) \
  CALL(cuGraphEventWaitNodeSetEvent, PFN_cuGraphEventWaitNodeSetEvent_v11010)     \
  CALL(cuGraphExternalSemaphoresSignalNodeSetParams,                              \
       PFN_cuGraphExternalSemaphoresSignalNodeSetParams_v11020)                   \
  CALL(cuGraphExternalSemaphoresWaitNodeSetParams,                                \
       PFN_cuGraphExternalSemaphoresWaitNodeSetParams_v11020)                     \
  CALL(cuGraphBatchMemOpNodeSetParams, PFN_cuGraphBatchMemOpNodeSetParams_v11070) \
  CALL(cuPointerGetAttributes, PFN_cuPointerGetAttributes_v7000)                  \
  CALL(cuStreamCreate, PFN_cuStreamCreate_v2000)                                  \
  CALL(cuStreamSynchronize, PFN_cuStreamSynchronize_v2000)                        \
  CALL(cuCtxSynchronize, PFN_cuCtxSynchronize_v2000)                              \
  CALL(cuStreamIsCapturing, PFN_cuStreamIsCapturing_v10000)                       \
  CALL(cuCtxGetCurrent, PFN_cuCtxGetCurrent_v4000)                                \
  CALL(cuThreadExchangeStreamCaptureMode, PFN_cuThreadExchangeStreamCaptureMode_v10010)

// The pointers, one variable each. Relaxed loads suffice: they are code addresses, and libcuda is
// mapped before it is found.
namespace real {
#define HOOK(name, type) extern std::atomic<type> name __attribute__((visibility("hidden")));
#include "shim/driver/hook_table.h"
#undef HOOK
#define CALL(name, type) extern std::atomic<type> name __attribute__((visibility("hidden")));
FIBSHIM_CALLED_FUNCTIONS(CALL)
#undef CALL

// The fast side passes launches to these.
#define LAUNCH(name) extern FIBSHIM_HOT_DATA decltype(name) name
LAUNCH(cuLaunchKernel);
LAUNCH(cuLaunchKernel_ptsz);
LAUNCH(cuLaunchKernelEx);
LAUNCH(cuLaunchKernelEx_ptsz);
LAUNCH(cuLaunchCooperativeKernel);
LAUNCH(cuLaunchCooperativeKernel_ptsz);
#undef LAUNCH
}  // namespace real

#define FIBSHIM_REAL(name) (::fibshim::real::name.load(std::memory_order_relaxed))

// std::atomic of a function pointer and of void* have the same representation on this platform.
template <class Function>
std::atomic<void*>* as_slot(std::atomic<Function>* slot) {
  static_assert(sizeof(*slot) == sizeof(std::atomic<void*>));
  return reinterpret_cast<std::atomic<void*>*>(slot);
}

// Fills in the pointers. False: the process has no libcuda.so.1; the next call tries again.
bool resolve_driver();

// Calls the real function. Returns CUDA_ERROR_NOT_SUPPORTED if there is none.
template <class Function, class... Arguments>
inline CUresult call_driver(const std::atomic<Function>& slot, Arguments... arguments) {
  Function function = slot.load(std::memory_order_relaxed);
  if (__builtin_expect(function == nullptr, 0)) {
    (void)resolve_driver();
    function = slot.load(std::memory_order_relaxed);
    if (function == nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  }
  return function(arguments...);
}

// "CUDA_ERROR_INVALID_CLUSTER_SIZE (912)", for messages.
struct ErrorText {
  explicit ErrorText(CUresult result);
  char text[64];
};

// Returns the name of the function whose real pointer is in this slot.
const char* name_of_function(const void* slot);

// Finds a driver function that need not be in either list, for the recorder and shadow checks.
// Null: the driver does not have it.
void* find_driver_function(const char* name);

// During its life this thread may do what a stream capture in progress would otherwise forbid: load
// modules, make and query events.
class RelaxedCapture {
 public:
  RelaxedCapture() : exchange_(FIBSHIM_REAL(cuThreadExchangeStreamCaptureMode)) {
    is_changed_ = exchange_ != nullptr && exchange_(&mode_) == CUDA_SUCCESS;
  }
  ~RelaxedCapture() {
    if (is_changed_) (void)exchange_(&mode_);
  }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  PFN_cuThreadExchangeStreamCaptureMode_v10010 exchange_;
  CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;
  bool is_changed_;
};

}  // namespace fibshim
