// The driver that the suite speaks to: whichever libcuda.so.1 the dynamic linker finds first. The
// same tests run against the simulated one and the real one; what they state are the facts that
// the shim relies on. With DRIVER_UNDER_TEST=real in the environment the simulated one will not do.
#ifndef FIBSHIM_TESTS_DRIVER_CONTRACT_DRIVER_UNDER_TEST_H_
#define FIBSHIM_TESTS_DRIVER_CONTRACT_DRIVER_UNDER_TEST_H_

#include <gtest/gtest.h>
#include <stddef.h>
#include <stdint.h>

#include <string>
#include <vector>

#include "tests/driver/cuda_api.h"
#include "tests/driver/simcuda.h"

namespace fibshim::contract {

// Exported names, as dlsym knows them.
#define CONTRACT_FUNCTIONS(FUNCTION)          \
  FUNCTION(cuInit)                            \
  FUNCTION(cuGetErrorName)                    \
  FUNCTION(cuDeviceGet)                       \
  FUNCTION(cuDeviceGetCount)                  \
  FUNCTION(cuDeviceGetAttribute)              \
  FUNCTION(cuDeviceGetDevResource)            \
  FUNCTION(cuDevicePrimaryCtxRetain)          \
  FUNCTION(cuDevicePrimaryCtxRelease_v2)      \
  FUNCTION(cuDevicePrimaryCtxReset_v2)        \
  FUNCTION(cuDevicePrimaryCtxGetState)        \
  FUNCTION(cuCtxCreate_v4)                    \
  FUNCTION(cuCtxDestroy_v2)                   \
  FUNCTION(cuCtxSetCurrent)                   \
  FUNCTION(cuCtxGetCurrent)                   \
  FUNCTION(cuCtxGetDevice)                    \
  FUNCTION(cuCtxPushCurrent_v2)               \
  FUNCTION(cuCtxPopCurrent_v2)                \
  FUNCTION(cuCtxSynchronize)                  \
  FUNCTION(cuCtxFromGreenCtx)                 \
  FUNCTION(cuDevResourceGenerateDesc)         \
  FUNCTION(cuGreenCtxCreate)                  \
  FUNCTION(cuGreenCtxDestroy)                 \
  FUNCTION(cuGreenCtxStreamCreate)            \
  FUNCTION(cuModuleLoad)                      \
  FUNCTION(cuModuleLoadData)                  \
  FUNCTION(cuModuleLoadDataEx)                \
  FUNCTION(cuModuleLoadFatBinary)             \
  FUNCTION(cuModuleUnload)                    \
  FUNCTION(cuModuleGetFunction)               \
  FUNCTION(cuModuleGetFunctionCount)          \
  FUNCTION(cuModuleEnumerateFunctions)        \
  FUNCTION(cuModuleGetGlobal_v2)              \
  FUNCTION(cuLibraryLoadData)                 \
  FUNCTION(cuLibraryLoadFromFile)             \
  FUNCTION(cuLibraryUnload)                   \
  FUNCTION(cuLibraryGetKernel)                \
  FUNCTION(cuLibraryGetKernelCount)           \
  FUNCTION(cuLibraryEnumerateKernels)         \
  FUNCTION(cuLibraryGetModule)                \
  FUNCTION(cuKernelGetFunction)               \
  FUNCTION(cuKernelGetLibrary)                \
  FUNCTION(cuKernelGetName)                   \
  FUNCTION(cuKernelGetParamInfo)              \
  FUNCTION(cuKernelGetAttribute)              \
  FUNCTION(cuKernelSetAttribute)              \
  FUNCTION(cuFuncGetName)                     \
  FUNCTION(cuFuncGetParamInfo)                \
  FUNCTION(cuFuncGetAttribute)                \
  FUNCTION(cuFuncSetAttribute)                \
  FUNCTION(cuFuncGetModule)                   \
  FUNCTION(cuFuncSetBlockShape)               \
  FUNCTION(cuParamSetSize)                    \
  FUNCTION(cuParamSetv)                       \
  FUNCTION(cuParamSeti)                       \
  FUNCTION(cuLaunchGrid)                      \
  FUNCTION(cuMemAlloc_v2)                     \
  FUNCTION(cuMemFree_v2)                      \
  FUNCTION(cuMemcpyHtoD_v2)                   \
  FUNCTION(cuMemcpyDtoH_v2)                   \
  FUNCTION(cuStreamCreate)                    \
  FUNCTION(cuStreamDestroy_v2)                \
  FUNCTION(cuStreamSynchronize)               \
  FUNCTION(cuStreamWaitEvent)                 \
  FUNCTION(cuStreamIsCapturing)               \
  FUNCTION(cuStreamIsCapturing_ptsz)          \
  FUNCTION(cuStreamBeginCapture_v2)           \
  FUNCTION(cuStreamBeginCapture_v2_ptsz)      \
  FUNCTION(cuStreamEndCapture)                \
  FUNCTION(cuStreamEndCapture_ptsz)           \
  FUNCTION(cuStreamSynchronize_ptsz)          \
  FUNCTION(cuEventCreate)                     \
  FUNCTION(cuEventDestroy_v2)                 \
  FUNCTION(cuEventRecord)                     \
  FUNCTION(cuLaunchKernel)                    \
  FUNCTION(cuLaunchKernel_ptsz)               \
  FUNCTION(cuLaunchKernelEx)                  \
  FUNCTION(cuLaunchKernelEx_ptsz)             \
  FUNCTION(cuLaunchCooperativeKernel)         \
  FUNCTION(cuGraphCreate)                     \
  FUNCTION(cuGraphDestroy)                    \
  FUNCTION(cuGraphClone)                      \
  FUNCTION(cuGraphGetNodes)                   \
  FUNCTION(cuGraphNodeGetType)                \
  FUNCTION(cuGraphAddKernelNode)              \
  FUNCTION(cuGraphAddKernelNode_v2)           \
  FUNCTION(cuGraphAddNode)                    \
  FUNCTION(cuGraphAddNode_v2)                 \
  FUNCTION(cuGraphAddChildGraphNode)          \
  FUNCTION(cuGraphKernelNodeGetParams)        \
  FUNCTION(cuGraphKernelNodeGetParams_v2)     \
  FUNCTION(cuGraphKernelNodeSetParams_v2)     \
  FUNCTION(cuGraphNodeSetParams)              \
  FUNCTION(cuGraphInstantiateWithFlags)       \
  FUNCTION(cuGraphExecKernelNodeSetParams_v2) \
  FUNCTION(cuGraphExecUpdate_v2)              \
  FUNCTION(cuGraphLaunch)                     \
  FUNCTION(cuGraphExecDestroy)                \
  FUNCTION(cuGetProcAddress)                  \
  FUNCTION(cuGetProcAddress_v2)

struct Driver {
  void* library;  // for dlsym
  bool is_simulated;
#define MEMBER(name) decltype(&::name) name;
  CONTRACT_FUNCTIONS(MEMBER)
#undef MEMBER
};

// Loads the driver once; ends the program with a message when there is none.
const Driver& cuda();

std::string error_name(CUresult error);

// Notes a fact that a driver may decide either way: as a property of the test (`key` is one word),
// and as a line "measured: Suite.Test key: value", which tests/gpu/run.sh collects.
void record(const std::string& key, const std::string& value);

// Compares by name, so that a failure reads "CUDA_ERROR_INVALID_VALUE", not "1".
#define EXPECT_CUDA(expected, call) EXPECT_EQ(error_name(expected), error_name(call)) << #call
#define ASSERT_CUDA(expected, call) ASSERT_EQ(error_name(expected), error_name(call)) << #call
#define EXPECT_OK(call) EXPECT_CUDA(CUDA_SUCCESS, call)
#define ASSERT_OK(call) ASSERT_CUDA(CUDA_SUCCESS, call)

// A file of build/tests/data, found from the program's own place.
std::string data_path(const std::string& name);
std::vector<char> read_file(const std::string& path);

// Device 0's primary context, retained anew for each test: at the test's end everything in it goes.
class ContractTest : public testing::Test {
 protected:
  void SetUp() override;
  void TearDown() override;

  // The cubin of this name for device 0, and those that no device of this machine can run.
  std::string cubin_path(const std::string& name) const;
  std::vector<std::string> foreign_cubin_paths(const std::string& name) const;
  std::vector<char> cubin(const std::string& name) const { return read_file(cubin_path(name)); }

  CUmodule load_module(const std::string& name = "contract");
  CUlibrary load_library(const std::string& name = "contract");
  CUfunction function(CUmodule module, const char* name);
  CUkernel kernel(CUlibrary library, const char* name);
  static CUfunction as_function(CUkernel kernel) { return reinterpret_cast<CUfunction>(kernel); }

  // An int on the device, starting at 0.
  CUdeviceptr make_int();
  static int32_t read_int(CUdeviceptr pointer);

  CUstream make_stream(unsigned flags = CU_STREAM_NON_BLOCKING);

  // sim_store(to, value) as one thread.
  static CUresult launch_store(CUfunction function, CUdeviceptr to, int32_t value,
                               CUstream stream = nullptr);
  static CUDA_KERNEL_NODE_PARAMS_v2 store_node(void** params);

  // The name of the kernel that a node was read to hold, by whichever handle it was given.
  static std::string kernel_name(const CUDA_KERNEL_NODE_PARAMS_v2& params);
  // Which handles those were: "func: CUfunction, kern: null, ctx: null".
  std::string handles_of(const CUDA_KERNEL_NODE_PARAMS_v2& params) const;

  int attribute(CUdevice_attribute which) const;
  int sm() const;

  CUdevice device_ = 0;
  CUcontext context_ = nullptr;
};

}  // namespace fibshim::contract

#endif  // FIBSHIM_TESTS_DRIVER_CONTRACT_DRIVER_UNDER_TEST_H_
