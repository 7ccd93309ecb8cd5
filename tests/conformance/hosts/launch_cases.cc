// Launches, beyond hook_cases.cc's case for each function: argument forms, attributes, invalid
// calls, out-parameters, transient failures.

#include "tests/conformance/hosts/graphs.h"

namespace conform {
namespace {

// True if the last launch had the attribute. Requires the simulated driver.
bool ran_with(CUlaunchAttributeID id) {
  const SimcudaLaunch last = last_launch(nullptr);
  for (uint32_t i = 0; i < last.attribute_count; ++i) {
    if (last.attribute_ids[i] == static_cast<uint32_t>(id)) return true;
  }
  return false;
}

}  // namespace
}  // namespace conform

using namespace conform;

// Facts 4: no way of passing arguments makes the shim read memory that is not there. The driver
// decides what is wrong.
GPU_CASE(arguments_missing) {
  const CUmodule module = gpu.load_module();
  const CUfunction step = gpu.function(module);
  const CUfunction nothing = gpu.function(module, "conform_void");
  Arguments arguments_of_step(gpu.marks(), 1, 7);
  const auto launch = [&](CUfunction function, void** params, void** extra) {
    return cuda().cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, gpu.stream(), params, extra);
  };
  // A kernel without parameters needs neither form.
  OK(launch(nothing, nullptr, nullptr));
  CUlaunchConfig config = launch_config(gpu.stream());
  OK(cuda().cuLaunchKernelEx(&config, nothing, nullptr, nullptr));
  OK(cuda().cuLaunchCooperativeKernel(nothing, 1, 1, 1, 32, 1, 1, 0, gpu.stream(), nullptr));
  // Both at once.
  EXPECT_CODE(CUDA_ERROR_INVALID_VALUE,
              launch(step, arguments_of_step.params(), arguments_of_step.extra()));
  // A packed buffer whose size comes first.
  size_t bytes = 16;
  void* swapped[] = {CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes, CU_LAUNCH_PARAM_BUFFER_POINTER,
                     arguments_of_step.packed(), CU_LAUNCH_PARAM_END};
  OK(launch(step, nullptr, swapped));
  gpu.expect_ran({.curated1 = 1});
  state({.curated1 = 1, .nothing = 3}, {.hit = 1, .untracked = 4});
}

// The simulated driver refuses null pointers that a real one would dereference.
GPU_CASE(arguments_null) {
  const CUfunction step = gpu.step();
  CUlaunchConfig config = launch_config(gpu.stream());
  EXPECT_CODE(CUDA_ERROR_INVALID_VALUE,
              cuda().cuLaunchKernel(step, 1, 1, 1, 32, 1, 1, 0, gpu.stream(), nullptr, nullptr));
  EXPECT_CODE(CUDA_ERROR_INVALID_VALUE, cuda().cuLaunchKernelEx(&config, step, nullptr, nullptr));
  EXPECT_CODE(CUDA_ERROR_INVALID_VALUE,
              cuda().cuLaunchCooperativeKernel(step, 1, 1, 1, 32, 1, 1, 0, gpu.stream(), nullptr));
  EXPECT_CODE(CUDA_ERROR_INVALID_VALUE, cuda().cuLaunchKernelEx(nullptr, step, nullptr, nullptr));
  // A packed buffer that is too short, and `extra` with only the end marker.
  Arguments arguments_of_step(gpu.marks(), 1, 7);
  size_t bytes = 8;
  void* too_short[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, arguments_of_step.packed(),
                       CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes, CU_LAUNCH_PARAM_END};
  void* only_end[] = {CU_LAUNCH_PARAM_END};
  for (void** extra : {too_short, only_end}) {
    EXPECT_CODE(CUDA_ERROR_INVALID_VALUE,
                cuda().cuLaunchKernel(step, 1, 1, 1, 32, 1, 1, 0, gpu.stream(), nullptr, extra));
  }
  config.numAttrs = 3;
  EXPECT_CODE(CUDA_ERROR_INVALID_VALUE,
              cuda().cuLaunchKernelEx(&config, step, arguments_of_step.params(), nullptr));
  gpu.finish({}, {.untracked = 5});
}

// Handles that are invalid, or no longer valid.
GPU_CASE(handles_wrong) {
  int on_stack[16] = {};
  for (CUfunction function :
       {static_cast<CUfunction>(nullptr), reinterpret_cast<CUfunction>(on_stack)}) {
    const CUresult result = gpu.launch(function);
    CHECK(result == CUDA_ERROR_INVALID_HANDLE || result == CUDA_ERROR_INVALID_VALUE);
  }
  gpu.finish({}, {.untracked = 2});
}

// Attributes reach the replacement as the host gave them, except those that must suit the
// replacement.
GPU_CASE(attributes) {
  const CUfunction step = gpu.step();
  Arguments arguments_of_step(gpu.marks(), 1, 7);
  CUlaunchAttribute all[4] = {attribute_of(CU_LAUNCH_ATTRIBUTE_PRIORITY),
                              attribute_of(CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION),
                              attribute_of(CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION),
                              attribute_of(CU_LAUNCH_ATTRIBUTE_COOPERATIVE)};
  all[1].value.programmaticStreamSerializationAllowed = 1;
  all[2].value.clusterDim.x = all[2].value.clusterDim.y = all[2].value.clusterDim.z = 1;
  CUlaunchConfig config = launch_config(gpu.stream());
  config.attrs = all;
  config.numAttrs = 4;
  OK(cuda().cuLaunchKernelEx(&config, step, arguments_of_step.params(), nullptr));
  gpu.expect_ran({.curated1 = 1});
  if (cuda().is_simulated) {
    CHECK(ran_with(CU_LAUNCH_ATTRIBUTE_PRIORITY));
    CHECK(!ran_with(CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION));
    CHECK(!ran_with(CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION));
    CHECK(!ran_with(CU_LAUNCH_ATTRIBUTE_COOPERATIVE));
  }
  // A replacement with a cluster of its own gets that.
  Arguments clustered(gpu.marks(), 3, 7);
  OK(cuda().cuLaunchKernelEx(&config, step, clustered.params(), nullptr));
  if (cuda().is_simulated) {
    const SimcudaLaunch last = last_launch("curated_n3");
    EXPECT_EQUAL(2, last.cluster[0]);
    EXPECT_EQUAL(4, last.grid[0]);
  }
  // A replacement that waits by itself keeps the programmatic attribute.
  Arguments waiting(gpu.marks(), 2, 7);
  config.numAttrs = 2;
  OK(cuda().cuLaunchKernelEx(&config, step, waiting.params(), nullptr));
  if (cuda().is_simulated) CHECK(ran_with(CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION));
  // By itself, by the remembered plan, and given twice.
  CUlaunchAttribute early[] = {all[1], all[1]};
  config.attrs = early;
  for (const unsigned count : {1, 1, 2}) {
    config.numAttrs = count;
    OK(cuda().cuLaunchKernelEx(&config, step, waiting.params(), nullptr));
    if (cuda().is_simulated) {
      const SimcudaLaunch last = last_launch("curated_n2");
      EXPECT_EQUAL(count, last.attribute_count);
      EXPECT_EQUAL(CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION, last.attribute_ids[0]);
    }
  }
  config.attrs = all;
  config.numAttrs = 2;
  // An original keeps all of them.
  Arguments refused(gpu.marks(), kNoSolution, 7);
  OK(cuda().cuLaunchKernelEx(&config, step, refused.params(), nullptr));
  if (cuda().is_simulated) {
    CHECK(ran_with(CU_LAUNCH_ATTRIBUTE_PRIORITY));
    CHECK(ran_with(CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION));
  }
  gpu.finish({.step = 1, .curated1 = 1, .curated2 = 4, .curated3 = 1},
             {.hit = 6, .no_solution = 1});
}

// More attributes than there is room to copy: the original runs, with all of them.
GPU_CASE(attributes_many) {
  const CUfunction step = gpu.step();
  Arguments arguments_of_step(gpu.marks(), 1, 7);
  CUlaunchAttribute all[40];
  for (CUlaunchAttribute& one : all) one = attribute_of(CU_LAUNCH_ATTRIBUTE_PRIORITY);
  CUlaunchConfig config = launch_config(gpu.stream());
  config.attrs = all;
  config.numAttrs = 40;
  OK(cuda().cuLaunchKernelEx(&config, step, arguments_of_step.params(), nullptr));
  gpu.finish({.step = 1}, {.refused = 1});
}

// A node that the device updates keeps its kernel.
GPU_CASE(device_updatable) {
  const CUfunction step = gpu.step();
  Arguments arguments_of_step(gpu.marks(), 1, 7);
  CUlaunchAttribute attribute = attribute_of(CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE);
  attribute.value.deviceUpdatableKernelNode.deviceUpdatable = 1;
  CUlaunchConfig config = launch_config(gpu.stream());
  config.attrs = &attribute;
  config.numAttrs = 1;
  const Graph graph(gpu.capture(
      [&] { OK(cuda().cuLaunchKernelEx(&config, step, arguments_of_step.params(), nullptr)); }));
  NodeParams2 params;
  OK(cuda().cuGraphKernelNodeGetParams_v2(graph.nodes().at(0), &params));
  CHECK(kernel_name(params) == kStep);
  graph.run(gpu);
  gpu.finish({.step = 1}, {.graph = 1});
}

// Facts 3: the two forms of a launch use two default streams, redirected or not.
GPU_CASE(default_streams) {
  const CUmodule module = gpu.load_module();
  Arguments own(gpu.marks(), 1, 7);
  CUlaunchConfig config = launch_config(gpu.stream());
  config.hStream = nullptr;
  const auto expect_stream = [](int stream_kind) {
    const SimcudaLaunch last = last_launch(nullptr);
    EXPECT_EQUAL(stream_kind, last.stream_kind);
  };
  for (const char* name : {kStep, kFree}) {
    const CUfunction function = gpu.function(module, name);
    for (const auto launch : {cuda().cuLaunchKernel, cuda().cuLaunchKernel_ptsz}) {
      OK(launch(function, 1, 1, 1, 32, 1, 1, 0, nullptr, own.params(), nullptr));
      expect_stream(launch == cuda().cuLaunchKernel ? simcuda_stream_legacy
                                                    : simcuda_stream_per_thread);
    }
    for (const auto launch : {cuda().cuLaunchKernelEx, cuda().cuLaunchKernelEx_ptsz}) {
      OK(launch(&config, function, own.params(), nullptr));
      expect_stream(launch == cuda().cuLaunchKernelEx ? simcuda_stream_legacy
                                                      : simcuda_stream_per_thread);
    }
    OK(cuda().cuLaunchCooperativeKernel(function, 1, 1, 1, 32, 1, 1, 0, nullptr, own.params()));
    expect_stream(simcuda_stream_legacy);
    OK(cuda().cuLaunchCooperativeKernel_ptsz(function, 1, 1, 1, 32, 1, 1, 0, nullptr,
                                             own.params()));
    expect_stream(simcuda_stream_per_thread);
  }
  gpu.finish({.free = 6, .curated1 = 6}, {.hit = 6, .untracked = 6});
}

// A capture on the per-thread default stream, without any launch before it.
GPU_CASE(capture_per_thread) {
  const CUfunction step = gpu.step();
  Arguments arguments_of_step(gpu.marks(), 2, 7);
  OK(cuda().cuStreamBeginCapture_v2_ptsz(nullptr, CU_STREAM_CAPTURE_MODE_GLOBAL));
  OK(cuda().cuLaunchKernel_ptsz(step, 1, 1, 1, 32, 1, 1, 0, nullptr, arguments_of_step.params(),
                                nullptr));
  CUgraph captured = nullptr;
  OK(cuda().cuStreamEndCapture_ptsz(nullptr, &captured));
  const Graph graph(captured);
  graph.run(gpu, 2);
  gpu.finish({.curated2 = 2}, {.hit = 1});
}

// A thread has a different stream in each context: the end of a capture in one does not end the
// other's.
GPU_CASE(capture_per_thread_in_two_contexts) {
  CUcontext other = nullptr;
  OK(cuda().cuCtxCreate_v2(&other, 0, gpu.device()));
  const CUfunction there = gpu.step();
  gpu.enter();
  const CUfunction step = gpu.step();
  const auto begin = [] {
    OK(cuda().cuStreamBeginCapture_v2_ptsz(nullptr, CU_STREAM_CAPTURE_MODE_RELAXED));
  };
  const auto launch = [&](CUfunction function) {
    Arguments arguments_of_step(gpu.marks(), 2, 7);
    OK(cuda().cuLaunchKernel_ptsz(function, 1, 1, 1, 32, 1, 1, 0, nullptr,
                                  arguments_of_step.params(), nullptr));
  };
  const auto end = [] {
    CUgraph captured = nullptr;
    OK(cuda().cuStreamEndCapture_ptsz(nullptr, &captured));
    CHECK(Graph(captured).first_kernel() == kStep);
  };
  begin();
  OK(cuda().cuCtxSetCurrent(other));
  begin();
  launch(there);
  end();
  gpu.enter();
  launch(step);
  end();
  OK(cuda().cuCtxDestroy_v2(other));
  gpu.finish({}, {});
}

// The end of the primary context does not end captures in other contexts.
GPU_CASE(capture_beside_primary_context) {
  CUcontext own = nullptr;
  OK(cuda().cuCtxCreate_v2(&own, 0, gpu.device()));
  const CUfunction step = gpu.step();
  const CUstream stream = new_stream();
  OK(cuda().cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  OK(cuda().cuDevicePrimaryCtxRelease_v2(gpu.device()));
  OK(gpu.launch_on(stream, step));
  CUgraph captured = nullptr;
  OK(cuda().cuStreamEndCapture(stream, &captured));
  CHECK(Graph(captured).first_kernel() == kStep);
  CUcontext again = nullptr;
  OK(cuda().cuDevicePrimaryCtxRetain(&again, gpu.device()));
  CHECK(again == gpu.context());
  gpu.finish({}, {});
}

// In every capture mode, the first launch of a kernel whose module is loaded within the capture.
GPU_CASE(capture_cold) {
  long runs = 0;
  for (const auto mode : {CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
                          CU_STREAM_CAPTURE_MODE_RELAXED}) {
    const auto work = [&] {
      const CUfunction step = gpu.step();
      for (const int shape : {1, 2}) OK(gpu.launch(step, shape));
    };
    Graph(gpu.capture(work, mode)).run(gpu);
    ++runs;
  }
  gpu.finish({.curated1 = runs, .curated2 = runs}, {.hit = 2 * runs});
}

// Facts 6: everything needed is loaded when the kernel is looked up. A launch is one call.
GPU_CASE(nothing_is_loaded_at_launch) {
  const CUfunction step = gpu.step();
  const auto calls = [] { return cuda().simcuda_call_count("*"); };
  const auto loads = [] {
    return cuda().simcuda_call_count("cuLibraryLoadData") +
           cuda().simcuda_call_count("cuLibraryGetKernel") +
           cuda().simcuda_call_count("cuKernelSetAttribute");
  };
  const uint64_t loaded = loads();
  OK(gpu.launch(step, 1));
  OK(gpu.launch(step, 2));
  OK(gpu.launch(step, 3));
  EXPECT_EQUAL(loaded, loads());
  const uint64_t before = calls();
  for (int i = 0; i < 100; ++i) OK(gpu.launch(step, 1 + i % 3));
  EXPECT_EQUAL(before + 100, calls());
  gpu.finish({.curated1 = 35, .curated2 = 34, .curated3 = 34}, {.hit = 103});
}

// Facts 25: out-parameters that the driver would not write stay unchanged, and null does not crash.
GPU_CASE(out_parameters) {
  const CUmodule module = gpu.load_module();
  const CUlibrary library = gpu.load_library();
  CHECK(cuda().cuModuleGetFunction(nullptr, module, kStep) != CUDA_SUCCESS);
  CHECK(cuda().cuLibraryGetKernel(nullptr, library, kStep) != CUDA_SUCCESS);
  CHECK(cuda().cuModuleEnumerateFunctions(nullptr, 4, module) != CUDA_SUCCESS);
  CHECK(cuda().cuLibraryEnumerateKernels(nullptr, 4, library) != CUDA_SUCCESS);
  CHECK(cuda().cuKernelGetFunction(nullptr, gpu.kernel(library)) != CUDA_SUCCESS);
  CHECK(cuda().cuModuleLoadData(nullptr, image(kImage).data()) != CUDA_SUCCESS);
  // A real driver writes through null here.
  if (cuda().is_simulated) {
    CHECK(cuda().cuGetProcAddress_v2("cuLaunchKernel", nullptr, 12000, 0, nullptr) != CUDA_SUCCESS);
  }

  auto* const poison = reinterpret_cast<CUfunction>(0x5150);
  CUfunction function = poison;
  EXPECT_CODE(CUDA_ERROR_NOT_FOUND,
              cuda().cuModuleGetFunction(&function, module, "no_such_kernel"));
  CHECK(function == poison || function == nullptr);
  CUkernel kernel = reinterpret_cast<CUkernel>(poison);
  EXPECT_CODE(CUDA_ERROR_NOT_FOUND, cuda().cuLibraryGetKernel(&kernel, library, "no_such_kernel"));
  CHECK(kernel == reinterpret_cast<CUkernel>(poison) || kernel == nullptr);

  // More room than there are kernels: the rest of the array must not be written.
  CUfunction many[16];
  for (CUfunction& one : many) one = nullptr;
  OK(cuda().cuModuleEnumerateFunctions(many, 16, module));

  // Nodes: a call that fails changes neither the node nor the params.
  const Graph graph;
  CUgraphNode node = nullptr;
  CHECK(cuda().cuGraphAddKernelNode_v2(&node, graph.get(), nullptr, 0, nullptr) != CUDA_SUCCESS);
  CHECK(cuda().cuGraphKernelNodeGetParams_v2(nullptr, nullptr) != CUDA_SUCCESS);
  Arguments first(gpu.marks(), 1, 7);
  NodeParams2 params = node_params2(gpu.function(module), &first);
  CHECK(cuda().cuGraphAddKernelNode_v2(nullptr, graph.get(), nullptr, 0, &params) != CUDA_SUCCESS);
  const NodeParams2 kept = params;
  OK(cuda().cuGraphAddKernelNode_v2(&node, graph.get(), nullptr, 0, &params));
  CHECK(memcmp(&kept, &params, sizeof params) == 0);
  CUgraph not_ended = nullptr;
  CHECK(cuda().cuStreamEndCapture(gpu.stream(), &not_ended) != CUDA_SUCCESS);
  // Executable graphs: the same.
  CUgraphExec executable = nullptr;
  CHECK(cuda().cuGraphInstantiateWithFlags(nullptr, graph.get(), 0) != CUDA_SUCCESS);
  CHECK(cuda().cuGraphInstantiateWithFlags(&executable, nullptr, 0) != CUDA_SUCCESS);
  CHECK(cuda().cuGraphInstantiateWithParams(&executable, graph.get(), nullptr) != CUDA_SUCCESS);
  CHECK(cuda().cuGraphExecUpdate_v2(nullptr, graph.get(), nullptr) != CUDA_SUCCESS);
  CHECK(cuda().cuGraphExecKernelNodeSetParams_v2(nullptr, node, nullptr) != CUDA_SUCCESS);
  CHECK(cuda().cuGraphExecNodeSetParams(nullptr, nullptr, nullptr) != CUDA_SUCCESS);
  CHECK(cuda().cuGraphLaunch(nullptr, gpu.stream()) != CUDA_SUCCESS);
  CHECK(cuda().cuGraphExecDestroy(nullptr) != CUDA_SUCCESS);
  gpu.finish({}, {});
}

// Facts 11: a transient failure is not remembered.
GPU_CASE(failure_passes) {
  CHECK(cuda().simcuda_set_faults("cuLibraryLoadData=2*5") == 1);  // the five replacements
  const CUfunction step = gpu.step();
  CHECK(cuda().simcuda_set_faults("cuLibraryLoadData=2*2") == 1);
  EXPECT_CODE(CUDA_ERROR_OUT_OF_MEMORY, gpu.launch(step, 1));
  EXPECT_CODE(CUDA_ERROR_OUT_OF_MEMORY, gpu.launch(step, 1));
  OK(gpu.launch(step, 1));
  OK(gpu.launch(step, 2));
  CHECK(cuda().simcuda_set_faults("cuLaunchKernel:curated_n1=2*1") == 1);
  EXPECT_CODE(CUDA_ERROR_OUT_OF_MEMORY, gpu.launch(step, 1));
  OK(gpu.launch(step, 1));
  gpu.finish({.curated1 = 2, .curated2 = 1}, {.hit = 3, .error = 3});
}

// cuInit fails at first, as while the driver is still starting.
CASE(init_fails_first) {
  CHECK(cuda().simcuda_set_faults("cuInit=802*1") == 1);
  EXPECT_CODE(CUDA_ERROR_SYSTEM_NOT_READY, cuda().cuInit(0));
  CUmodule module = nullptr;
  EXPECT_CODE(CUDA_ERROR_NOT_INITIALIZED, cuda().cuModuleLoadData(&module, image(kImage).data()));
  const Gpu gpu;
  OK(gpu.launch(gpu.step()));
  gpu.finish({.curated1 = 1}, {.hit = 1});
}

// Facts 17: the same name with another layout is another kernel, whichever is seen first.
GPU_CASE(same_name_other_image) {
  const CUfunction step = gpu.step();
  const CUfunction other = gpu.function(gpu.load_module(kOther));
  const CUkernel kernel = gpu.kernel(gpu.load_library());
  const auto other_kernel = reinterpret_cast<CUfunction>(gpu.kernel(gpu.load_library(kOther)));
  for (int i = 0; i < 5; ++i) {
    OK(gpu.launch(step, 1));
    OK(gpu.launch_other(other));
    OK(gpu.launch(kernel, 2));
    OK(gpu.launch_other(other_kernel));
  }
  gpu.finish({.step = 10, .curated1 = 5, .curated2 = 5}, {.hit = 10, .untracked = 10});
}

// For configurations whose pattern knows another image's kernel of this name.
GPU_CASE(step_is_untracked) {
  OK(gpu.launch(gpu.step(), 1));
  OK(gpu.launch(gpu.kernel(gpu.load_library()), 2));
  gpu.finish({.step = 2}, {.untracked = 2});
}

// A fatbin with a wrapper, as compilers embed it in a program.
GPU_CASE(wrapped_image) {
  const struct {
    unsigned magic;
    unsigned version;
    const void* region;
    void* unused;
  } wrapper = {0x466243b1, 1, image(kImage).data(), nullptr};
  CUlibrary library = nullptr;
  OK(cuda().cuLibraryLoadData(&library, &wrapper, nullptr, nullptr, 0, nullptr, nullptr, 0));
  OK(gpu.launch(gpu.kernel(library), 1));
  gpu.finish({.curated1 = 1}, {.hit = 1});
}

GPU_CASE(linked_image) {
  int major = 0;
  int minor = 0;
  OK(cuda().cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
                                 gpu.device()));
  OK(cuda().cuDeviceGetAttribute(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
                                 gpu.device()));
  std::vector<char> cubin = image("conform.sm_" + std::to_string(major * 10 + minor) + ".cubin");
  CUlinkState state = nullptr;
  OK(cuda().cuLinkCreate_v2(0, nullptr, nullptr, &state));
  OK(cuda().cuLinkAddData_v2(state, CU_JIT_INPUT_CUBIN, cubin.data(), cubin.size(), "conform", 0,
                             nullptr, nullptr));
  void* linked = nullptr;
  size_t bytes = 0;
  OK(cuda().cuLinkComplete(state, &linked, &bytes));
  CUmodule module = nullptr;
  OK(cuda().cuModuleLoadData(&module, linked));
  OK(cuda().cuLinkDestroy(state));
  OK(gpu.launch(gpu.function(module), 1));
  gpu.finish({.curated1 = 1}, {.hit = 1});
}
