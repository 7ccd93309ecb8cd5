// Which objects end with which others (tools/doc/driver_facts.md, section 3).
#include "tests/driver/contract/driver_under_test.h"

namespace fibshim::contract {
namespace {

using Lifetimes = ContractTest;

// A library belongs to no context: kernels loaded once serve contexts that come later.
TEST_F(Lifetimes, ALibrarySurvivesAResetOfThePrimaryContext) {
  const CUlibrary library = load_library();
  const CUfunction store = as_function(kernel(library, "sim_store"));
  CUdeviceptr to = make_int();
  expect_stores(store, to, 60);
  ASSERT_OK(cuda().cuDevicePrimaryCtxReset_v2(device_));
  CUcontext again = nullptr;
  ASSERT_OK(cuda().cuDevicePrimaryCtxRetain(&again, device_));
  ASSERT_OK(cuda().cuCtxSetCurrent(again));
  to = make_int();
  expect_stores(store, to, 61);
  EXPECT_EQ(kernel(library, "sim_store"), reinterpret_cast<CUkernel>(store));
  unload(library);
  EXPECT_OK(cuda().cuDevicePrimaryCtxRelease_v2(device_));
}

TEST_F(Lifetimes, ALibrarySurvivesTheLastReleaseOfThePrimaryContext) {
  const CUlibrary library = load_library();
  const CUfunction store = as_function(kernel(library, "sim_store"));
  CUdeviceptr to = make_int();
  expect_stores(store, to, 62);
  EXPECT_OK(cuda().cuCtxSetCurrent(nullptr));
  ASSERT_OK(cuda().cuDevicePrimaryCtxRelease_v2(device_));
  unsigned flags = 0;
  int is_active = -1;
  EXPECT_OK(cuda().cuDevicePrimaryCtxGetState(device_, &flags, &is_active));
  EXPECT_EQ(0, is_active);
  ASSERT_OK(cuda().cuDevicePrimaryCtxRetain(&context_, device_));
  ASSERT_OK(cuda().cuCtxSetCurrent(context_));
  to = make_int();
  expect_stores(store, to, 63);
}

TEST_F(Lifetimes, ALibrarySurvivesAContextThatItRanIn) {
  const CUlibrary library = load_library();
  const CUfunction store = as_function(kernel(library, "sim_store"));
  const CUcontext other = make_context();
  CUdeviceptr to = make_int();
  expect_stores(store, to, 64);
  end_context(other);
  to = make_int();
  expect_stores(store, to, 65);
}

TEST_F(Lifetimes, LibrariesLoadWithoutAContext) {
  EXPECT_OK(cuda().cuCtxSetCurrent(nullptr));
  const CUlibrary library = load_library();
  const CUkernel store = kernel(library, "sim_store");
  const char* name = nullptr;
  EXPECT_OK(cuda().cuKernelGetName(&name, store));
  EXPECT_STREQ("sim_store", name);
}

TEST_F(Lifetimes, ModulesNeedAContext) {
  const std::vector<char> image = cubin("contract");
  EXPECT_OK(cuda().cuCtxSetCurrent(nullptr));
  CUmodule module = nullptr;
  EXPECT_CUDA(CUDA_ERROR_INVALID_CONTEXT, cuda().cuModuleLoadData(&module, image.data()));
}

TEST_F(Lifetimes, AKernelRunsInAGreenContextAndOutlivesIt) {
  const CUlibrary library = load_library();
  const CUfunction store = as_function(kernel(library, "sim_store"));
  CUdevResource all{};
  ASSERT_OK(cuda().cuDeviceGetDevResource(device_, &all, CU_DEV_RESOURCE_TYPE_SM));
  CUdevResourceDesc description = nullptr;
  ASSERT_OK(cuda().cuDevResourceGenerateDesc(&description, &all, 1));
  CUgreenCtx green = nullptr;
  ASSERT_OK(cuda().cuGreenCtxCreate(&green, description, device_, CU_GREEN_CTX_DEFAULT_STREAM));
  CUstream stream = nullptr;
  ASSERT_OK(cuda().cuGreenCtxStreamCreate(&stream, green, CU_STREAM_NON_BLOCKING, 0));
  CUcontext inside = nullptr;
  ASSERT_OK(cuda().cuCtxFromGreenCtx(&inside, green));
  ASSERT_OK(cuda().cuCtxPushCurrent_v2(inside));
  const CUdeviceptr to = make_int();
  EXPECT_OK(launch_store(store, to, 66, stream));
  EXPECT_OK(cuda().cuStreamSynchronize(stream));
  EXPECT_EQ(66, read_int(to));
  EXPECT_OK(cuda().cuStreamDestroy_v2(stream));
  CUcontext popped = nullptr;
  EXPECT_OK(cuda().cuCtxPopCurrent_v2(&popped));
  EXPECT_EQ(inside, popped);
  ASSERT_OK(cuda().cuGreenCtxDestroy(green));
  const CUdeviceptr outside = make_int();
  expect_stores(store, outside, 67);
}

}  // namespace
}  // namespace fibshim::contract
