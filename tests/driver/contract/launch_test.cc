// Launches: both kinds of handle, both ways to pass arguments, contexts, limits.
#include <thread>

#include "tests/driver/contract/driver_under_test.h"

namespace fibshim::contract {
namespace {

class Launches : public ContractTest {
 protected:
  void SetUp() override {
    ContractTest::SetUp();
    module_ = load_module();
    library_ = load_library();
    to_ = make_int();
  }
  CUfunction store() { return function(module_, "sim_store"); }
  CUfunction store_kernel() { return as_function(kernel(library_, "sim_store")); }

  CUresult launch_empty(unsigned grid_x, unsigned block_x, unsigned shared_mem = 0) {
    return cuda().cuLaunchKernel(function(module_, "sim_empty"), grid_x, 1, 1, block_x, 1, 1,
                                 shared_mem, nullptr, nullptr, nullptr);
  }

  static CUlaunchConfig one_thread() {
    CUlaunchConfig config{};
    config.gridDimX = config.gridDimY = config.gridDimZ = 1;
    config.blockDimX = config.blockDimY = config.blockDimZ = 1;
    return config;
  }

  CUresult launch_with(CUlaunchAttribute attribute, unsigned grid_x) {
    CUlaunchConfig config = one_thread();
    config.gridDimX = grid_x;
    config.attrs = &attribute;
    config.numAttrs = 1;
    return cuda().cuLaunchKernelEx(&config, function(module_, "sim_empty"), nullptr, nullptr);
  }

  CUmodule module_ = nullptr;
  CUlibrary library_ = nullptr;
  CUdeviceptr to_ = 0;
};

TEST_F(Launches, TakeFunctionsAndKernels) {
  expect_stores(store(), to_, 1);
  expect_stores(store_kernel(), to_, 2);
}

TEST_F(Launches, TakeAPackedBuffer) {
  struct {
    CUdeviceptr to;
    int32_t value;
  } arguments = {to_, 3};
  size_t size = 12;  // to the end of the last parameter, without padding
  void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &arguments, CU_LAUNCH_PARAM_BUFFER_SIZE, &size,
                   CU_LAUNCH_PARAM_END};
  EXPECT_OK(cuda().cuLaunchKernel(store(), 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, extra));
  EXPECT_EQ(3, read_int(to_));
  arguments.value = 4;
  // The two may come in any order.
  void* swapped[] = {CU_LAUNCH_PARAM_BUFFER_SIZE, &size, CU_LAUNCH_PARAM_BUFFER_POINTER, &arguments,
                     CU_LAUNCH_PARAM_END};
  const CUlaunchConfig config = one_thread();
  EXPECT_OK(cuda().cuLaunchKernelEx(&config, store_kernel(), nullptr, swapped));
  EXPECT_EQ(4, read_int(to_));
}

// NCCL passes no more of its 4 KB than it uses.
TEST_F(Launches, TakeAPackedBufferThatEndsEarly) {
  struct {
    CUdeviceptr to;
    int32_t values[2];
  } batch = {to_, {5, 0}};
  size_t size = sizeof batch;
  void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &batch, CU_LAUNCH_PARAM_BUFFER_SIZE, &size,
                   CU_LAUNCH_PARAM_END};
  const CUfunction kernel = function(module_, "sim_batch");
  EXPECT_OK(cuda().cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, extra));
  EXPECT_EQ(5, read_int(to_));
}

TEST_F(Launches, RefuseBothFormsAtOnce) {
  struct {
    CUdeviceptr to;
    int32_t value;
  } arguments = {to_, 9};
  void* params[] = {&arguments.to, &arguments.value};
  size_t size = 12;
  void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &arguments, CU_LAUNCH_PARAM_BUFFER_SIZE, &size,
                   CU_LAUNCH_PARAM_END};
  EXPECT_CUDA(CUDA_ERROR_INVALID_VALUE,
              cuda().cuLaunchKernel(store(), 1, 1, 1, 1, 1, 1, 0, nullptr, params, extra));
  EXPECT_EQ(0, read_int(to_));
}

// Arguments are copied during the call.
TEST_F(Launches, KeepNoHoldOnTheArguments) {
  CUdeviceptr to = to_;
  int32_t value = 5;
  void* params[] = {&to, &value};
  EXPECT_OK(cuda().cuLaunchKernel(store(), 1, 1, 1, 1, 1, 1, 0, nullptr, params, nullptr));
  value = 6;
  to = 0;
  EXPECT_EQ(5, read_int(to_));
}

TEST_F(Launches, AKernelRunsInAnyContext) {
  const CUfunction handle = store_kernel();
  const CUcontext other = make_context();
  expect_stores(handle, make_int(), 7);
  end_context(other);
}

TEST_F(Launches, AKernelRunsWhereItsStreamIs) {
  const CUfunction handle = store_kernel();
  const CUcontext other = make_context();
  const CUdeviceptr to = make_int();
  const CUstream stream = make_stream();
  EXPECT_OK(cuda().cuCtxSetCurrent(context_));
  EXPECT_OK(launch_store(handle, to, 8, stream));
  EXPECT_OK(cuda().cuCtxSetCurrent(other));
  EXPECT_OK(cuda().cuStreamSynchronize(stream));
  EXPECT_EQ(8, read_int(to));
  end_context(other);
}

TEST_F(Launches, AFunctionOfAnotherContextIsAnInvalidHandle) {
  const CUfunction handle = store();
  const CUcontext other = make_context();
  const CUdeviceptr to = make_int();
  EXPECT_CUDA(CUDA_ERROR_INVALID_HANDLE, launch_store(handle, to, 9));
  end_context(other);
}

TEST_F(Launches, NeedAContext) {
  const CUfunction handle = store();
  CUresult result = CUDA_SUCCESS;
  std::thread([&] { result = launch_store(handle, to_, 1); }).join();
  EXPECT_CUDA(CUDA_ERROR_INVALID_CONTEXT, result);
}

TEST_F(Launches, NeedAHandle) {
  EXPECT_CUDA(CUDA_ERROR_INVALID_HANDLE, launch_store(nullptr, to_, 1));
}

TEST_F(Launches, RefuseImpossibleGeometry) {
  EXPECT_OK(launch_empty(1, 1024));
  EXPECT_CUDA(CUDA_ERROR_INVALID_VALUE, launch_empty(0, 1));
  EXPECT_CUDA(CUDA_ERROR_INVALID_VALUE, launch_empty(1, 0));
  EXPECT_CUDA(CUDA_ERROR_INVALID_VALUE, launch_empty(1, 1025));
}

TEST_F(Launches, WantAnAttributeForMoreThan48KilobytesOfSharedMemory) {
  constexpr int kBytes = 64 * 1024;
  const CUfunction dynamic = function(module_, "sim_dynamic");
  int32_t last = kBytes / 4 - 1;
  void* params[] = {&to_, &last};
  const auto launch = [&](CUfunction handle, unsigned bytes) {
    return cuda().cuLaunchKernel(handle, 1, 1, 1, 1, 1, 1, bytes, nullptr, params, nullptr);
  };
  EXPECT_CUDA(CUDA_ERROR_INVALID_VALUE, launch(dynamic, kBytes));
  EXPECT_OK(
      cuda().cuFuncSetAttribute(dynamic, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, kBytes));
  EXPECT_OK(launch(dynamic, kBytes));
  EXPECT_CUDA(CUDA_ERROR_INVALID_VALUE, launch(dynamic, kBytes + 1024));

  const CUkernel by_library = kernel(library_, "sim_dynamic");
  EXPECT_CUDA(CUDA_ERROR_INVALID_VALUE, launch(as_function(by_library), kBytes));
  EXPECT_OK(cuda().cuKernelSetAttribute(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, kBytes,
                                        by_library, device_));
  EXPECT_OK(launch(as_function(by_library), kBytes));
  int value = 0;
  EXPECT_OK(cuda().cuKernelGetAttribute(&value, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                                        by_library, device_));
  EXPECT_EQ(kBytes, value);
  EXPECT_OK(cuda().cuCtxSynchronize());
}

TEST_F(Launches, KnowTheStaticSharedMemory) {
  int bytes = 0;
  EXPECT_OK(cuda().cuFuncGetAttribute(&bytes, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES,
                                      function(module_, "sim_bounded")));
  EXPECT_EQ(400, bytes);
  EXPECT_OK(cuda().cuFuncGetAttribute(&bytes, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES,
                                      function(module_, "sim_empty")));
  EXPECT_EQ(0, bytes);
  int threads = 0;
  EXPECT_OK(cuda().cuFuncGetAttribute(&threads, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK,
                                      function(module_, "sim_bounded")));
  EXPECT_EQ(256, threads);
}

TEST_F(Launches, ExtendedTakeNoAttributes) {
  const CUlaunchConfig config = one_thread();
  int32_t value = 11;
  void* params[] = {&to_, &value};
  EXPECT_OK(cuda().cuLaunchKernelEx(&config, store_kernel(), params, nullptr));
  EXPECT_EQ(11, read_int(to_));
}

TEST_F(Launches, TakeClustersThatDivideTheGrid) {
  if (sm() < 90) GTEST_SKIP() << "clusters came with sm_90";
  CUlaunchAttribute cluster{};
  cluster.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
  cluster.value.clusterDim = {2, 1, 1};
  EXPECT_OK(launch_with(cluster, 4));
  EXPECT_CUDA(CUDA_ERROR_INVALID_CLUSTER_SIZE, launch_with(cluster, 3));
  EXPECT_OK(cuda().cuCtxSynchronize());
}

TEST_F(Launches, TakeProgrammaticStreamSerialization) {
  if (sm() < 90) GTEST_SKIP() << "programmatic launches came with sm_90";
  CUlaunchAttribute pdl{};
  pdl.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
  pdl.value.programmaticStreamSerializationAllowed = 1;
  EXPECT_OK(launch_with(pdl, 4));
  EXPECT_OK(cuda().cuCtxSynchronize());
}

TEST_F(Launches, CooperativeOnesAreLimitedToWhatFits) {
  const CUfunction empty = function(module_, "sim_empty");
  EXPECT_OK(cuda().cuLaunchCooperativeKernel(empty, 4, 1, 1, 32, 1, 1, 0, nullptr, nullptr));
  EXPECT_CUDA(
      CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE,
      cuda().cuLaunchCooperativeKernel(empty, 1 << 20, 1, 1, 32, 1, 1, 0, nullptr, nullptr));
}

TEST_F(Launches, ReachThePerThreadStream) {
  int32_t value = 12;
  void* params[] = {&to_, &value};
  EXPECT_OK(cuda().cuLaunchKernel_ptsz(store(), 1, 1, 1, 1, 1, 1, 0, nullptr, params, nullptr));
  EXPECT_OK(cuda().cuStreamSynchronize(CU_STREAM_PER_THREAD));
  EXPECT_EQ(12, read_int(to_));
  value = 13;
  EXPECT_OK(
      cuda().cuLaunchKernel(store(), 1, 1, 1, 1, 1, 1, 0, CU_STREAM_PER_THREAD, params, nullptr));
  EXPECT_OK(cuda().cuStreamSynchronize_ptsz(nullptr));
  EXPECT_EQ(13, read_int(to_));
}

// cuLaunchGrid and its settings are deprecated but still exported.
TEST_F(Launches, OfTheOldKindStillRun) {
  const CUfunction handle = store();
  EXPECT_OK(cuda().cuFuncSetBlockShape(handle, 1, 1, 1));
  EXPECT_OK(cuda().cuParamSetv(handle, 0, &to_, sizeof to_));
  EXPECT_OK(cuda().cuParamSeti(handle, 8, 14));
  EXPECT_OK(cuda().cuParamSetSize(handle, 12));
  EXPECT_OK(cuda().cuLaunchGrid(handle, 1, 1));
  EXPECT_EQ(14, read_int(to_));
}

TEST_F(Launches, CountUpFromManyThreads) {
  constexpr int kThreads = 8, kLaunches = 100;
  const CUfunction increment = as_function(kernel(library_, "sim_increment"));
  std::vector<CUdeviceptr> counters;
  for (int i = 0; i < kThreads; ++i) counters.push_back(make_int());
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      EXPECT_OK(cuda().cuCtxSetCurrent(context_));
      void* params[] = {&counters[static_cast<size_t>(i)]};
      for (int launch = 0; launch < kLaunches; ++launch)
        EXPECT_OK(
            cuda().cuLaunchKernel_ptsz(increment, 2, 1, 1, 1, 1, 1, 0, nullptr, params, nullptr));
      EXPECT_OK(cuda().cuStreamSynchronize_ptsz(nullptr));
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const CUdeviceptr counter : counters) EXPECT_EQ(2 * kLaunches, read_int(counter));
}

}  // namespace
}  // namespace fibshim::contract
