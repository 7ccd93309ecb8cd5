// Stream capture: the calls that it permits, and what its nodes hold
// (tools/doc/driver_facts.md, section 3).
#include <string.h>

#include "tests/driver/contract/driver_under_test.h"

namespace fibshim::contract {
namespace {

class Capture : public ContractTest {
 protected:
  void SetUp() override {
    ContractTest::SetUp();
    module_ = load_module();
    library_ = load_library();
    store_ = function(module_, "sim_store");
    store_kernel_ = as_function(kernel(library_, "sim_store"));
    to_ = make_int();
    stream_ = make_stream();
  }
  void TearDown() override {
    EXPECT_OK(cuda().cuStreamDestroy_v2(stream_));
    ContractTest::TearDown();
  }

  static CUstreamCaptureStatus status(CUstream stream) {
    CUstreamCaptureStatus value = CU_STREAM_CAPTURE_STATUS_NONE;
    EXPECT_OK(cuda().cuStreamIsCapturing(stream, &value));
    return value;
  }

  static CUgraph end_capture(CUstream stream) {
    CUgraph graph = nullptr;
    EXPECT_OK(cuda().cuStreamEndCapture(stream, &graph));
    return graph;
  }

  static std::vector<CUgraphNode> nodes_of(CUgraph graph) {
    size_t count = 0;
    EXPECT_OK(cuda().cuGraphGetNodes(graph, nullptr, &count));
    std::vector<CUgraphNode> nodes(count);
    EXPECT_OK(cuda().cuGraphGetNodes(graph, nodes.data(), &count));
    return nodes;
  }

  void replay(CUgraph graph) {
    CUgraphExec exec = nullptr;
    ASSERT_OK(cuda().cuGraphInstantiateWithFlags(&exec, graph, 0));
    EXPECT_OK(cuda().cuGraphLaunch(exec, stream_));
    EXPECT_OK(cuda().cuStreamSynchronize(stream_));
    EXPECT_OK(cuda().cuGraphExecDestroy(exec));
  }

  CUmodule module_ = nullptr;
  CUlibrary library_ = nullptr;
  CUfunction store_ = nullptr, store_kernel_ = nullptr;
  CUdeviceptr to_ = 0;
  CUstream stream_ = nullptr;
};

class CaptureMode : public Capture, public testing::WithParamInterface<CUstreamCaptureMode> {};

// Replacements are loaded when a handle is looked up, which may be during a capture.
TEST_P(CaptureMode, AllowsLoadingALibraryAndSettingAttributes) {
  const std::vector<char> image = cubin("contract");
  ASSERT_OK(cuda().cuStreamBeginCapture_v2(stream_, GetParam()));
  CUlibrary library = nullptr;
  EXPECT_OK(
      cuda().cuLibraryLoadData(&library, image.data(), nullptr, nullptr, 0, nullptr, nullptr, 0));
  CUkernel dynamic = nullptr, stored = nullptr;
  EXPECT_OK(cuda().cuLibraryGetKernel(&dynamic, library, "sim_dynamic"));
  EXPECT_OK(cuda().cuLibraryGetKernel(&stored, library, "sim_store"));
  EXPECT_OK(cuda().cuKernelSetAttribute(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 65536,
                                        dynamic, device_));
  EXPECT_OK(launch_store(as_function(stored), to_, 21, stream_));
  EXPECT_EQ(CU_STREAM_CAPTURE_STATUS_ACTIVE, status(stream_));
  const CUgraph graph = end_capture(stream_);
  ASSERT_NE(nullptr, graph);
  EXPECT_EQ(0, read_int(to_));  // captured, not run
  replay(graph);
  EXPECT_EQ(21, read_int(to_));
  EXPECT_OK(cuda().cuGraphDestroy(graph));
  unload(library);
}

TEST_P(CaptureMode, AllowsLoadingAModule) {
  const std::vector<char> image = cubin("contract");
  ASSERT_OK(cuda().cuStreamBeginCapture_v2(stream_, GetParam()));
  CUmodule module = nullptr;
  EXPECT_OK(cuda().cuModuleLoadData(&module, image.data()));
  CUfunction loaded = nullptr;
  EXPECT_OK(cuda().cuModuleGetFunction(&loaded, module, "sim_store"));
  EXPECT_OK(
      cuda().cuFuncSetAttribute(loaded, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 65536));
  EXPECT_EQ(CU_STREAM_CAPTURE_STATUS_ACTIVE, status(stream_));
  EXPECT_OK(cuda().cuGraphDestroy(end_capture(stream_)));
  unload(module);
}

TEST_P(CaptureMode, AllowsAskingAboutHandlesAndContexts) {
  ASSERT_OK(cuda().cuStreamBeginCapture_v2(stream_, GetParam()));
  const char* name = nullptr;
  size_t offset = 0, size = 0;
  CUcontext current = nullptr;
  CUdevice device = -1;
  EXPECT_OK(cuda().cuFuncGetName(&name, store_));
  EXPECT_OK(cuda().cuFuncGetParamInfo(store_, 0, &offset, &size));
  EXPECT_OK(cuda().cuCtxGetCurrent(&current));
  EXPECT_OK(cuda().cuCtxGetDevice(&device));
  // The memory type at an address; for an invalid address it is 0, without an error.
  CUpointer_attribute wanted = CU_POINTER_ATTRIBUTE_MEMORY_TYPE;
  unsigned type = 0;
  void* answers[] = {&type};
  EXPECT_OK(cuda().cuPointerGetAttributes(1, &wanted, answers, to_ + 1));
  EXPECT_EQ(CU_MEMORYTYPE_DEVICE, type);
  EXPECT_OK(cuda().cuPointerGetAttributes(1, &wanted, answers, CUdeviceptr{33} << 32 | 4096));
  EXPECT_EQ(0u, type);
  // The begin and the size of the allocation at an address.
  CUpointer_attribute range[] = {CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
                                 CU_POINTER_ATTRIBUTE_RANGE_SIZE};
  CUdeviceptr begin = 0;
  size_t bytes = 0;
  void* of_range[] = {&begin, &bytes};
  EXPECT_OK(cuda().cuPointerGetAttributes(2, range, of_range, to_ + 1));
  EXPECT_LE(begin, to_);
  EXPECT_GE(begin + bytes, to_ + sizeof(int));
  // For an invalid address the size is not written.
  begin = 1;
  bytes = 2;
  EXPECT_OK(cuda().cuPointerGetAttributes(2, range, of_range, CUdeviceptr{33} << 32 | 4096));
  EXPECT_EQ(2u, bytes);
  record("range_start_of_no_memory", begin == 1 ? "as it was" : std::to_string(begin));
  EXPECT_EQ(CU_STREAM_CAPTURE_STATUS_ACTIVE, status(stream_));
  EXPECT_OK(cuda().cuGraphDestroy(end_capture(stream_)));
}

std::string mode_name(const testing::TestParamInfo<CUstreamCaptureMode>& mode) {
  switch (mode.param) {
    case CU_STREAM_CAPTURE_MODE_GLOBAL: return "Global";
    case CU_STREAM_CAPTURE_MODE_THREAD_LOCAL: return "ThreadLocal";
    default: return "Relaxed";
  }
}
INSTANTIATE_TEST_SUITE_P(Modes, CaptureMode,
                         testing::Values(CU_STREAM_CAPTURE_MODE_GLOBAL,
                                         CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
                                         CU_STREAM_CAPTURE_MODE_RELAXED),
                         mode_name);

TEST_F(Capture, HoldsParametersByValue) {
  CUdeviceptr to = to_;
  int32_t value = 22;
  void* params[] = {&to, &value};
  ASSERT_OK(cuda().cuStreamBeginCapture_v2(stream_, CU_STREAM_CAPTURE_MODE_GLOBAL));
  EXPECT_OK(cuda().cuLaunchKernel(store_, 1, 1, 1, 1, 1, 1, 0, stream_, params, nullptr));
  to = 0;
  value = 0;
  const CUgraph graph = end_capture(stream_);
  replay(graph);
  EXPECT_EQ(22, read_int(to_));
  EXPECT_OK(cuda().cuGraphDestroy(graph));
}

TEST_F(Capture, OfAPackedBufferHoldsParametersByValueToo) {
  struct {
    CUdeviceptr to;
    int32_t value;
  } arguments = {to_, 23};
  size_t size = 12;
  void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &arguments, CU_LAUNCH_PARAM_BUFFER_SIZE, &size,
                   CU_LAUNCH_PARAM_END};
  ASSERT_OK(cuda().cuStreamBeginCapture_v2(stream_, CU_STREAM_CAPTURE_MODE_GLOBAL));
  EXPECT_OK(cuda().cuLaunchKernel(store_kernel_, 1, 1, 1, 1, 1, 1, 0, stream_, nullptr, extra));
  arguments = {0, 0};
  const CUgraph graph = end_capture(stream_);
  replay(graph);
  EXPECT_EQ(23, read_int(to_));
  EXPECT_OK(cuda().cuGraphDestroy(graph));
}

TEST_F(Capture, OfAPackedBufferReadsBackAsOneWithItsSizeFirst) {
  struct {
    CUdeviceptr to;
    int32_t values[2];
  } batch = {to_, {26, 27}};
  size_t size = sizeof batch;
  void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &batch, CU_LAUNCH_PARAM_BUFFER_SIZE, &size,
                   CU_LAUNCH_PARAM_END};
  ASSERT_OK(cuda().cuStreamBeginCapture_v2(stream_, CU_STREAM_CAPTURE_MODE_GLOBAL));
  const CUfunction kernel = function(module_, "sim_batch");
  EXPECT_OK(cuda().cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, stream_, nullptr, extra));
  const CUgraph graph = end_capture(stream_);
  const CUDA_KERNEL_NODE_PARAMS_v2 got = params_of(nodes_of(graph).at(0));
  EXPECT_EQ(nullptr, got.kernelParams);
  ASSERT_NE(nullptr, got.extra);
  ASSERT_EQ(CU_LAUNCH_PARAM_BUFFER_SIZE, got.extra[0]);
  ASSERT_EQ(CU_LAUNCH_PARAM_BUFFER_POINTER, got.extra[2]);
  EXPECT_EQ(CU_LAUNCH_PARAM_END, got.extra[4]);
  EXPECT_EQ(size, *static_cast<const size_t*>(got.extra[1]));
  EXPECT_EQ(0, memcmp(&batch, got.extra[3], size));
  replay(graph);
  EXPECT_EQ(26, read_int(to_));
  EXPECT_OK(cuda().cuGraphDestroy(graph));
}

TEST_F(Capture, OfAFunctionReadsBackAsThatFunction) {
  CUdeviceptr to = to_;
  int32_t value = 24;
  void* params[] = {&to, &value};
  ASSERT_OK(cuda().cuStreamBeginCapture_v2(stream_, CU_STREAM_CAPTURE_MODE_GLOBAL));
  EXPECT_OK(cuda().cuLaunchKernel(store_, 3, 2, 1, 4, 2, 1, 64, stream_, params, nullptr));
  const CUgraph graph = end_capture(stream_);
  const std::vector<CUgraphNode> nodes = nodes_of(graph);
  ASSERT_EQ(1u, nodes.size());
  CUgraphNodeType type = CU_GRAPH_NODE_TYPE_EMPTY;
  EXPECT_OK(cuda().cuGraphNodeGetType(nodes[0], &type));
  EXPECT_EQ(CU_GRAPH_NODE_TYPE_KERNEL, type);
  CUDA_KERNEL_NODE_PARAMS_v2 got = params_of(nodes[0]);
  EXPECT_EQ(store_, got.func);
  EXPECT_EQ(3u, got.gridDimX);
  EXPECT_EQ(2u, got.gridDimY);
  EXPECT_EQ(4u, got.blockDimX);
  EXPECT_EQ(64u, got.sharedMemBytes);
  ASSERT_NE(nullptr, got.kernelParams);
  EXPECT_EQ(0, memcmp(got.kernelParams[0], &to_, sizeof to_));
  EXPECT_EQ(0, memcmp(got.kernelParams[1], &value, sizeof value));
  CUDA_KERNEL_NODE_PARAMS_v1 old{};
  EXPECT_OK(cuda().cuGraphKernelNodeGetParams(nodes[0], &old));
  EXPECT_EQ(store_, old.func);
  EXPECT_OK(cuda().cuGraphDestroy(graph));
}

TEST_F(Capture, OfAKernelReadsBackAsThatKernelAndReplays) {
  ASSERT_OK(cuda().cuStreamBeginCapture_v2(stream_, CU_STREAM_CAPTURE_MODE_GLOBAL));
  EXPECT_OK(launch_store(store_kernel_, to_, 25, stream_));
  const CUgraph graph = end_capture(stream_);
  const std::vector<CUgraphNode> nodes = nodes_of(graph);
  ASSERT_EQ(1u, nodes.size());
  CUDA_KERNEL_NODE_PARAMS_v2 got = params_of(nodes[0]);
  EXPECT_EQ(kOfAKernel, handles_of(got));
  EXPECT_EQ("sim_store", kernel_name(got));
  EXPECT_EQ(0, memcmp(got.kernelParams[0], &to_, sizeof to_));
  record_old_form(nodes[0]);
  replay(graph);
  EXPECT_EQ(25, read_int(to_));
  EXPECT_OK(cuda().cuGraphDestroy(graph));
}

// Programs do this to change one parameter of a captured node.
TEST_F(Capture, OfAKernelTakesWhatWasReadFromItBack) {
  ASSERT_OK(cuda().cuStreamBeginCapture_v2(stream_, CU_STREAM_CAPTURE_MODE_GLOBAL));
  EXPECT_OK(launch_store(store_kernel_, to_, 32, stream_));
  const CUgraph graph = end_capture(stream_);
  const std::vector<CUgraphNode> nodes = nodes_of(graph);
  ASSERT_EQ(1u, nodes.size());
  CUDA_KERNEL_NODE_PARAMS_v2 got = params_of(nodes[0]);
  int32_t value = 33;
  void* params[] = {&to_, &value};
  got.kernelParams = params;
  got.extra = nullptr;
  EXPECT_OK(cuda().cuGraphKernelNodeSetParams_v2(nodes[0], &got));
  replay(graph);
  EXPECT_EQ(33, read_int(to_));
  EXPECT_EQ(kOfAKernel, handles_of(params_of(nodes[0])));
  CUDA_KERNEL_NODE_PARAMS_v2 by_kernel = got;
  by_kernel.func = nullptr;
  EXPECT_OK(cuda().cuGraphKernelNodeSetParams_v2(nodes[0], &by_kernel));
  EXPECT_EQ(kOfAKernel, handles_of(params_of(nodes[0])));
  CUDA_KERNEL_NODE_PARAMS_v2 by_function = got;
  by_function.kern = nullptr;
  EXPECT_OK(cuda().cuGraphKernelNodeSetParams_v2(nodes[0], &by_function));
  EXPECT_EQ(kOfAKernel, handles_of(params_of(nodes[0])));
  EXPECT_OK(cuda().cuGraphDestroy(graph));
}

TEST_F(Capture, OfABlockingStreamForbidsTheLegacyStream) {
  const CUstream blocking = make_stream(CU_STREAM_DEFAULT);
  ASSERT_OK(cuda().cuStreamBeginCapture_v2(blocking, CU_STREAM_CAPTURE_MODE_GLOBAL));
  CUstreamCaptureStatus ignored = CU_STREAM_CAPTURE_STATUS_NONE;
  EXPECT_CUDA(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, cuda().cuStreamIsCapturing(nullptr, &ignored));
  EXPECT_EQ(CU_STREAM_CAPTURE_STATUS_ACTIVE, status(blocking));  // the query did not invalidate it
  EXPECT_CUDA(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, launch_store(store_, to_, 26));
  CUgraph graph = nullptr;
  EXPECT_CUDA(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuda().cuStreamEndCapture(blocking, &graph));
  EXPECT_EQ(nullptr, graph);
  EXPECT_EQ(0, read_int(to_));
  EXPECT_OK(cuda().cuStreamDestroy_v2(blocking));
}

TEST_F(Capture, OfANonBlockingStreamLeavesTheLegacyStreamAlone) {
  ASSERT_OK(cuda().cuStreamBeginCapture_v2(stream_, CU_STREAM_CAPTURE_MODE_RELAXED));
  EXPECT_OK(launch_store(store_, to_, 27));
  EXPECT_EQ(CU_STREAM_CAPTURE_STATUS_ACTIVE, status(stream_));
  EXPECT_OK(cuda().cuGraphDestroy(end_capture(stream_)));
  EXPECT_EQ(27, read_int(to_));
}

TEST_F(Capture, CannotBeginOnTheLegacyStream) {
  EXPECT_CUDA(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
              cuda().cuStreamBeginCapture_v2(nullptr, CU_STREAM_CAPTURE_MODE_RELAXED));
}

TEST_F(Capture, BeginsOnThePerThreadStream) {
  ASSERT_OK(cuda().cuStreamBeginCapture_v2_ptsz(nullptr, CU_STREAM_CAPTURE_MODE_RELAXED));
  int32_t value = 28;
  void* params[] = {&to_, &value};
  EXPECT_OK(cuda().cuLaunchKernel_ptsz(store_, 1, 1, 1, 1, 1, 1, 0, nullptr, params, nullptr));
  CUstreamCaptureStatus value_status = CU_STREAM_CAPTURE_STATUS_NONE;
  EXPECT_OK(cuda().cuStreamIsCapturing_ptsz(nullptr, &value_status));
  EXPECT_EQ(CU_STREAM_CAPTURE_STATUS_ACTIVE, value_status);
  CUgraph graph = nullptr;
  ASSERT_OK(cuda().cuStreamEndCapture_ptsz(nullptr, &graph));
  EXPECT_EQ(1u, nodes_of(graph).size());
  EXPECT_EQ(0, read_int(to_));
  EXPECT_OK(cuda().cuGraphDestroy(graph));
}

TEST_F(Capture, IsBrokenBySynchronizingItsStream) {
  ASSERT_OK(cuda().cuStreamBeginCapture_v2(stream_, CU_STREAM_CAPTURE_MODE_RELAXED));
  EXPECT_CUDA(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuda().cuStreamSynchronize(stream_));
  EXPECT_EQ(CU_STREAM_CAPTURE_STATUS_INVALIDATED, status(stream_));
  EXPECT_CUDA(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, launch_store(store_, to_, 29, stream_));
  CUgraph graph = nullptr;
  EXPECT_CUDA(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuda().cuStreamEndCapture(stream_, &graph));
}

// cuMemAlloc may synchronize, so a shim must not allocate device memory while launching.
TEST_F(Capture, InGlobalModeForbidsMemAlloc) {
  ASSERT_OK(cuda().cuStreamBeginCapture_v2(stream_, CU_STREAM_CAPTURE_MODE_GLOBAL));
  CUdeviceptr pointer = 0;
  EXPECT_CUDA(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuda().cuMemAlloc_v2(&pointer, 256));
  CUgraph graph = nullptr;
  EXPECT_CUDA(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuda().cuStreamEndCapture(stream_, &graph));
}

TEST_F(Capture, InRelaxedModeAllowsMemAlloc) {
  ASSERT_OK(cuda().cuStreamBeginCapture_v2(stream_, CU_STREAM_CAPTURE_MODE_RELAXED));
  CUdeviceptr pointer = 0;
  EXPECT_OK(cuda().cuMemAlloc_v2(&pointer, 256));
  EXPECT_OK(cuda().cuGraphDestroy(end_capture(stream_)));
  EXPECT_OK(cuda().cuMemFree_v2(pointer));
}

TEST_F(Capture, SpreadsThroughEventsAndMustBeJoined) {
  const CUstream side = make_stream();
  CUevent fork = nullptr, join = nullptr;
  ASSERT_OK(cuda().cuEventCreate(&fork, CU_EVENT_DISABLE_TIMING));
  ASSERT_OK(cuda().cuEventCreate(&join, CU_EVENT_DISABLE_TIMING));
  ASSERT_OK(cuda().cuStreamBeginCapture_v2(stream_, CU_STREAM_CAPTURE_MODE_GLOBAL));
  EXPECT_OK(launch_store(store_, to_, 1, stream_));
  EXPECT_OK(cuda().cuEventRecord(fork, stream_));
  EXPECT_OK(cuda().cuStreamWaitEvent(side, fork, 0));
  EXPECT_EQ(CU_STREAM_CAPTURE_STATUS_ACTIVE, status(side));
  EXPECT_OK(launch_store(store_, to_, 30, side));
  EXPECT_OK(cuda().cuEventRecord(join, side));
  EXPECT_OK(cuda().cuStreamWaitEvent(stream_, join, 0));
  const CUgraph graph = end_capture(stream_);
  EXPECT_EQ(2u, nodes_of(graph).size());
  replay(graph);
  EXPECT_EQ(30, read_int(to_));
  EXPECT_OK(cuda().cuGraphDestroy(graph));

  ASSERT_OK(cuda().cuStreamBeginCapture_v2(stream_, CU_STREAM_CAPTURE_MODE_GLOBAL));
  EXPECT_OK(cuda().cuEventRecord(fork, stream_));
  EXPECT_OK(cuda().cuStreamWaitEvent(side, fork, 0));
  EXPECT_OK(launch_store(store_, to_, 31, side));
  CUgraph unjoined = nullptr;
  EXPECT_CUDA(CUDA_ERROR_STREAM_CAPTURE_UNJOINED, cuda().cuStreamEndCapture(stream_, &unjoined));
  EXPECT_OK(cuda().cuEventDestroy_v2(fork));
  EXPECT_OK(cuda().cuEventDestroy_v2(join));
  EXPECT_OK(cuda().cuStreamDestroy_v2(side));
}

}  // namespace
}  // namespace fibshim::contract
