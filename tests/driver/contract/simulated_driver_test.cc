// The simulated driver's own features: counts, records, faults, devices. Skipped on a real driver.
#include <dlfcn.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

#include "tests/driver/contract/driver_under_test.h"

namespace fibshim::contract {
namespace {

template <class F>
F* control(const char* name) {
  return reinterpret_cast<F*>(dlsym(cuda().library, name));
}

class SimulatedDriver : public ContractTest {
 protected:
  void SetUp() override {
    if (!cuda().is_simulated) GTEST_SKIP() << "a real driver";
    control<void()>("simcuda_reset")();
    ContractTest::SetUp();
    library_ = load_library();
    to_ = make_int();
  }
  void TearDown() override {
    if (!cuda().is_simulated) return;
    set_faults(nullptr);
    ContractTest::TearDown();
  }

  static int set_faults(const char* text) {
    return control<int(const char*)>("simcuda_set_faults")(text);
  }
  static uint64_t count(const char* kernel) {
    return control<uint64_t(const char*)>("simcuda_launch_count")(kernel);
  }

  CUlibrary library_ = nullptr;
  CUdeviceptr to_ = 0;
};

TEST_F(SimulatedDriver, CountsExactlyFromManyThreads) {
  constexpr int kThreads = 8, kLaunches = 1000;
  const CUfunction empty = as_function(kernel(library_, "sim_empty"));
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i)
    threads.emplace_back([&] {
      EXPECT_OK(cuda().cuCtxSetCurrent(context_));
      for (int launch = 0; launch < kLaunches; ++launch)
        EXPECT_OK(cuda().cuLaunchKernel(empty, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr));
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(uint64_t{kThreads * kLaunches}, count("sim_empty"));
  EXPECT_EQ(uint64_t{kThreads * kLaunches}, count("sim_*"));
  EXPECT_EQ(uint64_t{kThreads * kLaunches}, count(nullptr));
  EXPECT_EQ(uint64_t{kThreads * kLaunches},
            control<uint64_t(const char*)>("simcuda_call_count")("cuLaunchKernel"));
  control<void()>("simcuda_reset")();
  EXPECT_EQ(0u, count("sim_empty"));
}

TEST_F(SimulatedDriver, RecordsWhatALaunchWas) {
  CUlaunchAttribute attributes[2] = {};
  attributes[0].id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
  attributes[0].value.clusterDim = {2, 1, 1};
  attributes[1].id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
  attributes[1].value.programmaticStreamSerializationAllowed = 1;
  const bool has_clusters = sm() >= 90;
  CUlaunchConfig config{};
  config.gridDimX = 4;
  config.gridDimY = 3;
  config.gridDimZ = config.blockDimY = config.blockDimZ = 1;
  config.blockDimX = 32;
  config.sharedMemBytes = 128;
  config.attrs = has_clusters ? attributes : nullptr;
  config.numAttrs = has_clusters ? 2 : 0;
  int32_t value = 77;
  void* params[] = {&to_, &value};
  ASSERT_OK(cuda().cuLaunchKernelEx_ptsz(&config, as_function(kernel(library_, "sim_store")),
                                         params, nullptr));
  SimcudaLaunch launch;
  ASSERT_EQ(1,
            control<int(const char*, SimcudaLaunch*)>("simcuda_last_launch")("sim_store", &launch));
  EXPECT_STREQ("cuLaunchKernelEx_ptsz", launch.api);
  EXPECT_EQ(4u, launch.grid[0]);
  EXPECT_EQ(3u, launch.grid[1]);
  EXPECT_EQ(32u, launch.block[0]);
  EXPECT_EQ(has_clusters ? 2u : 1u, launch.cluster[0]);
  EXPECT_EQ(128u, launch.shared_mem);
  EXPECT_TRUE(launch.is_ptsz);
  EXPECT_FALSE(launch.is_from_graph);
  EXPECT_EQ(simcuda_stream_per_thread, launch.stream_kind);
  EXPECT_EQ(simcuda_handle_kernel, launch.handle_kind);
  EXPECT_TRUE(launch.was_emulated);
  EXPECT_EQ(context_, launch.context);
  EXPECT_EQ(config.numAttrs, launch.attribute_count);
  EXPECT_EQ(12u, launch.param_bytes);
  EXPECT_EQ(0, memcmp(launch.params, &to_, 8));
  EXPECT_EQ(0, memcmp(launch.params + 8, &value, 4));
}

TEST_F(SimulatedDriver, FaultsStrikeByNameKernelAndTimes) {
  const CUfunction store = as_function(kernel(library_, "sim_store"));
  const CUfunction empty = as_function(kernel(library_, "sim_empty"));
  const auto launch_empty = [&] {
    return cuda().cuLaunchKernel(empty, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr);
  };
  ASSERT_EQ(1, set_faults("cuLaunchKernel:sim_s*=719,cuMemAlloc=2*1"));
  EXPECT_CUDA(CUDA_ERROR_LAUNCH_FAILED, launch_store(store, to_, 1));
  EXPECT_OK(launch_empty());
  CUdeviceptr pointer = 0;
  EXPECT_CUDA(CUDA_ERROR_OUT_OF_MEMORY, cuda().cuMemAlloc_v2(&pointer, 64));
  EXPECT_OK(cuda().cuMemAlloc_v2(&pointer, 64));
  EXPECT_EQ(0, set_faults("nonsense"));
  EXPECT_CUDA(CUDA_ERROR_LAUNCH_FAILED, launch_store(store, to_, 1));  // the old faults stay
  ASSERT_EQ(1, set_faults(""));
  EXPECT_OK(launch_store(store, to_, 1));
}

TEST_F(SimulatedDriver, AKernelSpoilsItsContextForEveryLaterCall) {
  ASSERT_EQ(1, set_faults("poison:sim_store=700*1"));
  EXPECT_OK(launch_store(as_function(kernel(library_, "sim_store")), to_, 1));
  ASSERT_EQ(1, set_faults(""));
  EXPECT_CUDA(CUDA_ERROR_ILLEGAL_ADDRESS, cuda().cuCtxSynchronize());
  EXPECT_CUDA(CUDA_ERROR_ILLEGAL_ADDRESS, cuda().cuCtxSynchronize());
  CUdeviceptr pointer = 0;
  EXPECT_CUDA(CUDA_ERROR_ILLEGAL_ADDRESS, cuda().cuMemAlloc_v2(&pointer, 64));
  EXPECT_EQ(0, set_faults("poison=700"));
  // The fixture goes on in the new primary context.
  EXPECT_OK(cuda().cuDevicePrimaryCtxReset_v2(0));
  EXPECT_OK(cuda().cuCtxSynchronize());
}

TEST_F(SimulatedDriver, RefusesAndCountsStaleHandles) {
  const CUlibrary library = load_library("renamed");
  const CUfunction other = as_function(kernel(library, "sim_other"));
  unload(library);
  void* params[] = {&to_};
  EXPECT_CUDA(CUDA_ERROR_INVALID_HANDLE,
              cuda().cuLaunchKernel(other, 1, 1, 1, 1, 1, 1, 0, nullptr, params, nullptr));
  EXPECT_EQ(1u, control<uint64_t()>("simcuda_stale_launch_count")());
}

TEST_F(SimulatedDriver, TellsCapturedLaunchesFromExecutedOnes) {
  const CUfunction store = as_function(kernel(library_, "sim_store"));
  const CUstream stream = make_stream();
  ASSERT_OK(cuda().cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  EXPECT_OK(launch_store(store, to_, 3, stream));
  CUgraph graph = nullptr;
  ASSERT_OK(cuda().cuStreamEndCapture(stream, &graph));
  EXPECT_EQ(0u, count("sim_store"));
  EXPECT_EQ(1u, control<uint64_t(const char*)>("simcuda_captured_count")("sim_store"));
  CUgraphExec exec = nullptr;
  ASSERT_OK(cuda().cuGraphInstantiateWithFlags(&exec, graph, 0));
  EXPECT_OK(cuda().cuGraphLaunch(exec, stream));
  EXPECT_OK(cuda().cuGraphLaunch(exec, stream));
  EXPECT_EQ(2u, count("sim_store"));
  SimcudaLaunch launch;
  ASSERT_EQ(1,
            control<int(const char*, SimcudaLaunch*)>("simcuda_last_launch")("sim_store", &launch));
  EXPECT_TRUE(launch.is_from_graph);
  EXPECT_STREQ("cuGraphLaunch", launch.api);
  EXPECT_OK(cuda().cuGraphExecDestroy(exec));
  EXPECT_OK(cuda().cuGraphDestroy(graph));
  EXPECT_OK(cuda().cuStreamDestroy_v2(stream));
}

// The driver itself leaks no handles, so that tests can look for leaks of the shim.
TEST_F(SimulatedDriver, CountsLivingHandles) {
  const auto live = control<int64_t(const char*)>("simcuda_live_count");
  const int64_t libraries = live("library"), kernels = live("kernel");
  const CUlibrary library = load_library();
  kernel(library, "sim_store");
  kernel(library, "sim_empty");
  EXPECT_EQ(libraries + 1, live("library"));
  EXPECT_EQ(kernels + 2, live("kernel"));
  unload(library);
  EXPECT_EQ(libraries, live("library"));
  EXPECT_EQ(kernels, live("kernel"));
  EXPECT_EQ(-1, live("nonsense"));
}

// These calls crash the process in the real driver (580, with SIGSEGV), so the suite cannot make
// them with both drivers. The simulated one ends the process, too, so that a shim that passes a
// truncated image or such a node to the driver fails every test.
using CrashesOfTheRealDriver = SimulatedDriver;

TEST_F(CrashesOfTheRealDriver, ATruncatedImageFile) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const std::vector<char> image = cubin("contract");
  const int fd = memfd_create("truncated.cubin", MFD_CLOEXEC);
  ASSERT_GE(fd, 0);
  const size_t half = image.size() / 2;
  ASSERT_EQ(static_cast<ssize_t>(half), write(fd, image.data(), half));
  const std::string path = "/proc/self/fd/" + std::to_string(fd);
  CUmodule module = nullptr;
  EXPECT_EXIT(cuda().cuModuleLoad(&module, path.c_str()), testing::KilledBySignal(SIGSEGV),
              "image file is truncated");
  CUlibrary library = nullptr;
  EXPECT_EXIT(cuda().cuLibraryLoadFromFile(&library, path.c_str(), nullptr, nullptr, 0, nullptr,
                                           nullptr, 0),
              testing::KilledBySignal(SIGSEGV), "image file is truncated");
  close(fd);
}

TEST_F(CrashesOfTheRealDriver, AKernelAsTheFuncOfAGraphNode) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  CUgraph graph = nullptr;
  ASSERT_OK(cuda().cuGraphCreate(&graph, 0));
  int32_t value = 1;
  void* params[] = {&to_, &value};
  CUDA_KERNEL_NODE_PARAMS_v2 node = store_node(params);
  node.func = as_function(kernel(library_, "sim_store"));
  CUgraphNode added = nullptr;
  EXPECT_EXIT(cuda().cuGraphAddKernelNode_v2(&added, graph, nullptr, 0, &node),
              testing::KilledBySignal(SIGSEGV), "func of a graph's kernel node is a CUkernel");
  EXPECT_OK(cuda().cuGraphDestroy(graph));
}

// As with a real driver, CUDA does not work in a forked child.
TEST_F(SimulatedDriver, IsNotInitializedInAForkedChild) {
  const pid_t child = fork();
  if (child == 0) {
    CUdevice device = 0;
    _exit(cuda().cuDeviceGet(&device, 0) == CUDA_ERROR_NOT_INITIALIZED &&
                  cuda().cuInit(0) == CUDA_ERROR_NOT_INITIALIZED
              ? 0
              : 1);
  }
  int status = -1;
  ASSERT_EQ(child, waitpid(child, &status, 0));
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(0, WEXITSTATUS(status));
}

// Runs in a process of its own, since the environment is read when the library is loaded.
void two_devices() {
  CUdevice device = 0;
  int first = 0, second = 0;
  const bool is_right =
      cuda().cuInit(0) == CUDA_SUCCESS && cuda().cuDeviceGet(&device, 1) == CUDA_SUCCESS &&
      cuda().cuDeviceGetAttribute(&first, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 0) ==
          CUDA_SUCCESS &&
      cuda().cuDeviceGetAttribute(&second, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 1) ==
          CUDA_SUCCESS &&
      first == 9 && second == 8 && cuda().cuDeviceGet(&device, 2) == CUDA_ERROR_INVALID_DEVICE;
  _exit(is_right ? 0 : 1);
}

TEST(SimulatedDevices, ComeFromTheEnvironment) {
  if (!cuda().is_simulated) GTEST_SKIP() << "a real driver";
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  setenv("SIMCUDA_DEVICES", "90,80", 1);
  EXPECT_EXIT(two_devices(), testing::ExitedWithCode(0), "");
  unsetenv("SIMCUDA_DEVICES");
}

}  // namespace
}  // namespace fibshim::contract
