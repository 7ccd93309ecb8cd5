// One check of behaviour for every row of the hook table: `conform hook NAME`. A row without an
// entry here fails, so a new hook comes with its check. Each check calls the function by that very
// name and says what must have run; the test that starts this compares the counters.

#include <sys/mman.h>

#include <atomic>
#include <memory>
#include <type_traits>

#include "tests/conformance/hosts/graphs.h"

namespace conform {
namespace {

struct HookCheck {
  const char* name;
  void (*check)(const Gpu& gpu);
  const HookCheck* next;
};
const HookCheck* g_checks = nullptr;

#define HOOK(name)                                                                  \
  void check_##name(const Gpu& gpu);                                                \
  const HookCheck entry_##name = {#name, check_##name, g_checks};                   \
  [[maybe_unused]] const bool is_##name##_known = (g_checks = &entry_##name, true); \
  void check_##name(const Gpu& gpu)

// The check that the function `check` makes with the driver's function.
#define HOOK_BY(check, name) \
  HOOK(name) { check(gpu, cuda().name); }

// ---- resolve, bring images in, hand handles out: the kernel then runs as its replacement, once

void runs_curated(const Gpu& gpu, CUfunction function) {
  OK(gpu.launch(function));
  gpu.expect_last_value(7);
  gpu.finish({.curated1 = 1}, {.hit = 1});
}
void runs_curated(const Gpu& gpu, CUkernel kernel) {
  runs_curated(gpu, reinterpret_cast<CUfunction>(kernel));
}

void runs_curated_through(const Gpu& gpu, void* launch) {
  CHECK(launch == reinterpret_cast<void*>(cuda().cuLaunchKernel));
  Arguments arguments(gpu.marks(), 1, 7);
  OK(reinterpret_cast<PFN_cuLaunchKernel_v4000>(launch)(gpu.step(), 1, 1, 1, 32, 1, 1, 0,
                                                        gpu.stream(), arguments.params(), nullptr));
  gpu.finish({.curated1 = 1}, {.hit = 1});
}

// The one of that name among handles that were enumerated.
template <class Handle, class GetName>
Handle pick(const std::vector<Handle>& handles, GetName get_name) {
  for (const Handle handle : handles) {
    const char* name = nullptr;
    OK(get_name(&name, handle));
    if (strcmp(name, kStep) == 0) return handle;
  }
  fail(__FILE__, __LINE__, "conform_step is not among the kernels that were enumerated");
}

// ---- launch

// Tracked and untracked kernels of both handle kinds, arguments passed both ways. `launch` takes
// (function, params, extra).
template <class Launch>
void runs_each(const Gpu& gpu, bool takes_extra, Launch launch) {
  const auto own = gpu.handles();
  const auto kernel = reinterpret_cast<CUfunction>(gpu.kernel(gpu.load_library()));
  const auto run = [&](CUfunction function, int shape, int value, bool is_packed) {
    Arguments arguments(gpu.marks(), shape, value);
    is_packed = is_packed && takes_extra;
    OK(launch(function, is_packed ? nullptr : arguments.params(),
              is_packed ? arguments.extra() : nullptr));
    gpu.expect_last_value(value);
  };
  run(own.step, 1, 21, false);
  run(own.step, 1, 22, true);
  run(kernel, 2, 23, false);
  run(kernel, 2, 24, true);
  run(own.step, 3, 25, false);
  run(own.step, kNoSolution, 26, true);
  run(own.step, 1, kRefusedValue, false);
  run(own.free, 1, 27, false);
  run(own.free, 1, 28, true);
  gpu.finish({.step = 2, .free = 2, .curated1 = 2, .curated2 = 2, .curated3 = 1},
             {.hit = 5, .no_solution = 1, .where = 1, .untracked = 2});
}

void launch_plain(const Gpu& gpu, PFN_cuLaunchKernel_v4000 launch) {
  runs_each(gpu, true, [&](CUfunction function, void** params, void** extra) {
    return launch(function, 1, 1, 1, 32, 1, 1, 0, gpu.stream(), params, extra);
  });
}

void launch_ex(const Gpu& gpu, PFN_cuLaunchKernelEx_v11060 launch) {
  runs_each(gpu, true, [&](CUfunction function, void** params, void** extra) {
    const CUlaunchConfig config = launch_config(gpu.stream());
    return launch(&config, function, params, extra);
  });
}

void launch_cooperative(const Gpu& gpu, PFN_cuLaunchCooperativeKernel_v9000 launch) {
  runs_each(gpu, false, [&](CUfunction function, void** params, void**) {
    return launch(function, 1, 1, 1, 32, 1, 1, 0, gpu.stream(), params);
  });
}

// The calls from before CUDA 4: geometry and arguments are set on the function. They pass through:
// nothing says which shape they are.
template <class Launch>
void runs_originals(const Gpu& gpu, Launch launch) {
  const CUmodule module = gpu.load_module();
  for (const char* name : {kStep, kFree}) {
    const CUfunction function = gpu.function(module, name);
    Arguments arguments(gpu.marks(), 1, 31);
    OK(cuda().cuFuncSetBlockShape(function, 32, 1, 1));
    OK(cuda().cuParamSetSize(function, 16));
    OK(cuda().cuParamSetv(function, 0, arguments.packed(), 16));
    OK(launch(function));
    gpu.expect_last_value(31);
  }
  gpu.finish({.step = 1, .free = 1}, {.refused = 1, .untracked = 1});
}

void launch_on_several_devices(const Gpu& gpu) {
  const CUmodule module = gpu.load_module();
  for (const char* name : {kStep, kFree}) {
    Arguments arguments(gpu.marks(), 1, 33);
    auto launch = one_block<CUDA_LAUNCH_PARAMS>();
    launch.function = gpu.function(module, name);
    launch.hStream = gpu.stream();
    launch.kernelParams = arguments.params();
    const CUresult result = cuda().cuLaunchCooperativeKernelMultiDevice(&launch, 1, 0);
    if (result == CUDA_ERROR_NOT_SUPPORTED) skip("this driver launches on one device only");
    OK(result);
    gpu.expect_last_value(33);
  }
  gpu.finish({.step = 1, .free = 1}, {.refused = 1, .untracked = 1});
}

// ---- executable graphs

// `make` instantiates a graph. Three launches of one with a tracked node of each shape and an untracked one; the
// host's graph holds the host's kernels before and after.
template <class Make>
void instantiates(const Gpu& gpu, Make make) {
  const CUmodule module = gpu.load_module();
  const Graph graph;
  CUgraphNode last = nullptr;
  for (const int shape : {1, 2, 3, kNoSolution}) {
    last = graph.add(gpu.function(module), Arguments(gpu.marks(), shape, 40 + shape), last);
  }
  graph.add(gpu.function(module, kFree), Arguments(gpu.marks(), 1, 44), last);
  CUgraphExec made = nullptr;
  OK(make(&made, graph.get()));
  for (const CUgraphNode node : graph.nodes()) {
    const std::string name = kernel_name(params_of(node));
    CHECK(name == kStep || name == kFree);
  }
  for (int i = 0; i < 3; ++i) OK(cuda().cuGraphLaunch(made, gpu.stream()));
  gpu.expect_last_value(44);
  OK(cuda().cuGraphExecDestroy(made));
  gpu.finish({.step = 3, .free = 3, .curated1 = 3, .curated2 = 3, .curated3 = 3},
             {.hit = 3, .no_solution = 1, .untracked = 1});
}

template <class Instantiate>
void instantiates_with_log(const Gpu& gpu, Instantiate instantiate) {
  instantiates(gpu, [&](CUgraphExec* made, CUgraph graph) {
    char log[64];
    CUgraphNode error_node = nullptr;
    return instantiate(made, graph, &error_node, log, sizeof log);
  });
}

template <class Instantiate>
void instantiates_with_params(const Gpu& gpu, Instantiate instantiate) {
  instantiates(gpu, [&](CUgraphExec* made, CUgraph graph) {
    auto params = zeroed<CUDA_GRAPH_INSTANTIATE_PARAMS>();
    params.flags = CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD;
    params.hUploadStream = gpu.stream();
    const CUresult result = instantiate(made, graph, &params);
    EXPECT_EQUAL(CUDA_GRAPH_INSTANTIATE_SUCCESS, params.result_out);
    cuuint64_t flags = 0;
    OK(cuda().cuGraphExecGetFlags(*made, &flags));
    EXPECT_EQUAL(0, flags);  // the upload is over
    return result;
  });
}

// One tracked node of shape 1, and what is made of it.
struct OneNode {
  explicit OneNode(const Gpu& gpu, int value = 71)
      : step(gpu.step()), arguments(gpu.marks(), 1, value), node(graph.add(step, &arguments)) {}
  CUfunction step;
  Arguments arguments;
  Graph graph;
  CUgraphNode node;
};

template <class Launch>
void launches_graphs(const Gpu& gpu, Launch launch) {
  const OneNode one(gpu);
  const Executable executable(one.graph.get());
  for (int i = 0; i < 4; ++i) OK(launch(executable.get(), gpu.stream()));
  gpu.expect_last_value(71);
  gpu.finish({.curated1 = 4}, {.hit = 1});
}

template <class Upload>
void uploads_graphs(const Gpu& gpu, Upload upload) {
  const OneNode one(gpu);
  const Executable executable(one.graph.get());
  OK(upload(executable.get(), gpu.stream()));
  executable.run_for(gpu, 71);
  gpu.finish({.curated1 = 1}, {.hit = 1});
}

// An exec's value goes to another one. What was kept of the first must not run for it; and nothing stays.
void ends_execs(const Gpu& gpu) {
  const CUmodule module = gpu.load_module();
  const auto live = [] {
    return cuda().is_simulated
               ? cuda().simcuda_live_count("graph_exec") + cuda().simcuda_live_count("graph")
               : 0;
  };
  const int64_t before = live();
  for (int round = 0; round < 20; ++round) {
    const bool is_tracked = round % 2 == 0;
    const Graph graph;
    graph.add(gpu.function(module, is_tracked ? kStep : kFree),
              Arguments(gpu.marks(), 1, 100 + round));
    const Executable executable(graph.get());
    executable.run_for(gpu, 100 + round);
  }
  EXPECT_EQUAL(before, live());
  gpu.finish({.free = 10, .curated1 = 10}, {.hit = 10, .untracked = 10});
}

// `update` gives an exec another graph; returns its verdict.
template <class Update>
void updates_execs(const Gpu& gpu, Update update) {
  const auto own = gpu.handles();
  const OneNode one(gpu, 81);
  const Executable executable(one.graph.get());
  executable.run_for(gpu, 81);
  for (const auto& [function, shape] : {std::pair(own.step, 2),
                                        {own.step, kNoSolution},
                                        {own.free, 1},
                                        {own.step, 3},
                                        {own.step, 1}}) {
    const Graph next;
    next.add(function, Arguments(gpu.marks(), shape, 82 + shape));
    OK(update(executable.get(), next.get()));
    executable.run_for(gpu, 82 + shape);
  }
  // A graph of another shape is refused, and nothing changes.
  const Graph other;
  Arguments arguments(gpu.marks(), 2, 99);
  other.add(own.step, &arguments, other.add(own.step, &arguments));
  EXPECT_CODE(CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE, update(executable.get(), other.get()));
  executable.run_for(gpu, 83);
  // Nodes are counted when a graph is instantiated.
  gpu.finish({.step = 1, .free = 1, .curated1 = 3, .curated2 = 1, .curated3 = 1}, {.hit = 1});
}

// `set` sets the parameters of (exec, node, function, arguments). The graph stays as it is.
template <class Set>
void sets_executable_nodes(const Gpu& gpu, Set set) {
  const auto own = gpu.handles();
  const OneNode one(gpu);
  {
    const Executable executable(one.graph.get());
    for (const auto& [function, shape] : {std::pair(own.step, 2),
                                          {own.step, kNoSolution},
                                          {own.free, 1},
                                          {own.step, 3},
                                          {own.step, 1}}) {
      Arguments arguments(gpu.marks(), shape, 72 + shape);
      set(executable.get(), one.node, function, &arguments);
      executable.run_for(gpu, 72 + shape);
    }
  }
  one.graph.run_for(gpu, 71);
  gpu.finish({.step = 1, .free = 1, .curated1 = 2, .curated2 = 1, .curated3 = 1}, {.hit = 2});
}

// A graph of a tracked node and another one. `add` adds that, `set` sets it in an exec; what each makes of `kSeen`
// values is then in `read`. The exec keeps its copy: a replacement with a cluster, which needs that, runs afterwards.
template <class Add, class Set, class Read>
void sets_other_nodes(const Gpu& gpu, Add add, Set set, Read read) {
  const OneNode one(gpu);
  const CUgraphNode other = add(one.graph.get());
  const Executable executable(one.graph.get());
  executable.run_for(gpu, 71);
  EXPECT_EQUAL(1, read());
  OK(set(executable.get(), other));
  executable.run_for(gpu, 71);
  EXPECT_EQUAL(2, read());
  // A change of the kernel node leaves the other as it was set.
  executable.set(one.node, one.step, Arguments(gpu.marks(), 3, 73));
  executable.run_for(gpu, 73);
  EXPECT_EQUAL(2, read());
  gpu.finish({.curated1 = 2, .curated3 = 1}, {.hit = 1});
}

CUdeviceptr device_word(unsigned value) {
  const CUdeviceptr out = device_memory(sizeof value);
  OK(cuda().cuMemcpyHtoD_v2(out, &value, sizeof value));
  return out;
}
int read_word(CUdeviceptr from) {
  unsigned value = 0;
  OK(cuda().cuCtxSynchronize());
  OK(cuda().cuMemcpyDtoH_v2(&value, from, sizeof value));
  return static_cast<int>(value);
}

void sets_fills(const Gpu& gpu) {
  const CUdeviceptr word = device_word(0);
  sets_other_nodes(
      gpu,
      [&](CUgraph graph) {
        CUgraphNode node = nullptr;
        const CUDA_MEMSET_NODE_PARAMS fill = fill_of(word, 1);
        OK(cuda().cuGraphAddMemsetNode(&node, graph, nullptr, 0, &fill, gpu.context()));
        return node;
      },
      [&](CUgraphExec executable, CUgraphNode node) {
        const CUDA_MEMSET_NODE_PARAMS fill = fill_of(word, 2);
        return cuda().cuGraphExecMemsetNodeSetParams(executable, node, &fill, gpu.context());
      },
      [&] { return read_word(word); });
}

void sets_copies(const Gpu& gpu) {
  const CUdeviceptr to = device_word(0);
  const CUdeviceptr from[2] = {device_word(1), device_word(2)};
  CUDA_MEMCPY3D copy = copy_of(to, from[0], sizeof(unsigned));
  sets_other_nodes(
      gpu,
      [&](CUgraph graph) {
        CUgraphNode node = nullptr;
        OK(cuda().cuGraphAddMemcpyNode(&node, graph, nullptr, 0, &copy, gpu.context()));
        return node;
      },
      [&](CUgraphExec executable, CUgraphNode node) {
        copy.srcDevice = from[1];
        return cuda().cuGraphExecMemcpyNodeSetParams(executable, node, &copy, gpu.context());
      },
      [&] { return read_word(to); });
}

void sets_host_functions(const Gpu& gpu) {
  static int seen = 0;
  auto host = zeroed<CUDA_HOST_NODE_PARAMS>();
  host.fn = [](void* data) { seen = *static_cast<int*>(data); };
  int values[2] = {1, 2};
  sets_other_nodes(
      gpu,
      [&](CUgraph graph) {
        CUgraphNode node = nullptr;
        host.userData = &values[0];
        OK(cuda().cuGraphAddHostNode(&node, graph, nullptr, 0, &host));
        return node;
      },
      [&](CUgraphExec executable, CUgraphNode node) {
        host.userData = &values[1];
        return cuda().cuGraphExecHostNodeSetParams(executable, node, &host);
      },
      [&] {
        OK(cuda().cuCtxSynchronize());
        return seen;
      });
}

// Which of two events was recorded last tells which one the node has.
void sets_recorded_events(const Gpu& gpu) {
  CUevent events[2];
  for (CUevent& event : events) OK(cuda().cuEventCreate(&event, CU_EVENT_DEFAULT));
  for (const CUevent event : events) OK(cuda().cuEventRecord(event, gpu.stream()));
  sets_other_nodes(
      gpu,
      [&](CUgraph graph) {
        CUgraphNode node = nullptr;
        OK(cuda().cuGraphAddEventRecordNode(&node, graph, nullptr, 0, events[0]));
        return node;
      },
      [&](CUgraphExec executable, CUgraphNode node) {
        return cuda().cuGraphExecEventRecordNodeSetEvent(executable, node, events[1]);
      },
      [&] {
        OK(cuda().cuCtxSynchronize());
        float milliseconds = 0;
        OK(cuda().cuEventElapsedTime(&milliseconds, events[0], events[1]));
        return milliseconds < 0 ? 1 : 2;
      });
}

void sets_awaited_events(const Gpu& gpu) {
  CUevent events[2];
  for (CUevent& event : events) OK(cuda().cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
  for (const CUevent event : events) OK(cuda().cuEventRecord(event, gpu.stream()));
  int seen = 1;
  sets_other_nodes(
      gpu,
      [&](CUgraph graph) {
        CUgraphNode node = nullptr;
        OK(cuda().cuGraphAddEventWaitNode(&node, graph, nullptr, 0, events[0]));
        return node;
      },
      [&](CUgraphExec executable, CUgraphNode node) {
        seen = 2;  // only the driver knows which one
        return cuda().cuGraphExecEventWaitNodeSetEvent(executable, node, events[1]);
      },
      [&] { return seen; });
}

// Of two nodes one is switched off, and on again. Only what runs is an execution.
void switches_nodes(const Gpu& gpu) {
  const auto own = gpu.handles();
  const Graph graph;
  const CUgraphNode one = graph.add(own.step, Arguments(gpu.marks(), 1, 91));
  const CUgraphNode two = graph.add(own.step, Arguments(gpu.marks(), 2, 92), one);
  const Executable executable(graph.get());
  executable.run_for(gpu, 92);
  executable.enable(two, false);
  CHECK(!executable.is_enabled(two) && executable.is_enabled(one));
  executable.run_for(gpu, 91);
  // Set meanwhile, to what needs another exec of ours: it stays off.
  executable.set(two, own.step, Arguments(gpu.marks(), 3, 93));
  executable.run_for(gpu, 91);
  executable.enable(two, true);
  executable.enable(two, true);
  CHECK(executable.is_enabled(two));
  executable.run_for(gpu, 93);
  gpu.finish({.curated1 = 4, .curated2 = 1, .curated3 = 1}, {.hit = 2});
}

// Its child graph set in an exec: replaced as the one before.
void sets_child_graphs(const Gpu& gpu) {
  const auto own = gpu.handles();
  const Graph children[2];
  for (int i = 0; i < 2; ++i) {
    children[i].add(own.step, Arguments(gpu.marks(), 1 + i, 94 + i));
  }
  const Graph graph;
  const CUgraphNode node = add_child(graph.get(), children[0].get());
  const Executable executable(graph.get());
  executable.run_for(gpu, 94);
  OK(cuda().cuGraphExecChildGraphNodeSetParams(executable.get(), node, children[1].get()));
  executable.run_for(gpu, 95);
  gpu.finish({.curated1 = 1, .curated2 = 1}, {.hit = 1});
}

// Of a node that signals a semaphore, or waits for it (of which the file tells at `offset`); by the value.
template <class Params, class OneParams, class AddNode, class SetNode>
void sets_semaphores(const Gpu& gpu, AddNode add_node, SetNode set_node, off_t offset) {
  const int file = memfd_create("semaphore", MFD_CLOEXEC);
  CHECK(file >= 0);
  auto description = zeroed<CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC>();
  description.type = CU_EXTERNAL_SEMAPHORE_HANDLE_TYPE_TIMELINE_SEMAPHORE_FD;
  description.handle.fd = dup(file);
  CUexternalSemaphore semaphore = nullptr;
  if (cuda().cuImportExternalSemaphore(&semaphore, &description) != CUDA_SUCCESS) {
    skip("this driver takes no file for a semaphore");
  }
  auto values = zeroed<OneParams>();
  const Params params = {&semaphore, &values, 1};
  sets_other_nodes(
      gpu,
      [&](CUgraph graph) {
        CUgraphNode node = nullptr;
        values.params.fence.value = 1;
        OK(add_node(&node, graph, nullptr, 0, &params));
        return node;
      },
      [&](CUgraphExec executable, CUgraphNode node) {
        values.params.fence.value = 2;
        return set_node(executable, node, &params);
      },
      [&] {
        OK(cuda().cuCtxSynchronize());
        uint64_t value = 0;
        const uint64_t none = 0;
        CHECK(pread(file, &value, sizeof value, offset) == sizeof value);
        CHECK(pwrite(file, &none, sizeof none, offset) == sizeof none);
        return static_cast<int>(value);
      });
  OK(cuda().cuDestroyExternalSemaphore(semaphore));
}

void sets_operations(const Gpu& gpu) {
  const CUdeviceptr word = device_word(0);
  auto operation = zeroed<CUstreamBatchMemOpParams>();
  operation.writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
  operation.writeValue.address = word;
  const CUDA_BATCH_MEM_OP_NODE_PARAMS params = {gpu.context(), 1, &operation, 0};
  sets_other_nodes(
      gpu,
      [&](CUgraph graph) {
        CUgraphNode node = nullptr;
        operation.writeValue.value = 1;
        OK(cuda().cuGraphAddBatchMemOpNode(&node, graph, nullptr, 0, &params));
        return node;
      },
      [&](CUgraphExec executable, CUgraphNode node) {
        operation.writeValue.value = 2;
        return cuda().cuGraphExecBatchMemOpNodeSetParams(executable, node, &params);
      },
      [&] {
        const int value = read_word(word);
        OK(cuda().cuMemsetD32_v2(word, 0, 1));
        return value;
      });
}

// ---- captures

// `begin` and `end` are of one kind. The stream is `gpu`'s.
template <class Begin, class End>
void captures(const Gpu& gpu, Begin begin, End end) {
  const CUmodule module = gpu.load_module();
  const CUfunction step = gpu.function(module);
  OK(begin(gpu.stream()));
  OK(gpu.launch(step, 1, 81));
  OK(gpu.launch(step, 2, 82));
  OK(gpu.launch(gpu.function(module, kFree), 1, 83));
  OK(gpu.launch(step, kNoSolution, 84));
  CUgraph captured = nullptr;
  OK(end(gpu.stream(), &captured));
  const Graph graph(captured);
  EXPECT_EQUAL(4, graph.nodes().size());
  gpu.expect_ran({});
  // Reading a captured node gives what was launched.
  const NodeParams2 params = params_of(graph.nodes().at(1));
  CHECK(kernel_name(params) == kStep);
  EXPECT_EQUAL(2, shape_of(params));
  graph.run(gpu, 2);
  gpu.expect_last_value(84);
  gpu.finish({.step = 2, .free = 2, .curated1 = 2, .curated2 = 2},
             {.hit = 2, .no_solution = 1, .untracked = 1});
}

// Ten launches; with no capture under way none needs more than its own call.
void launches_are_single_calls(const Gpu& gpu, CUfunction step) {
  const uint64_t before = cuda().is_simulated ? cuda().simcuda_call_count("*") : 0;
  for (int i = 0; i < 10; ++i) OK(gpu.launch(step));
  if (cuda().is_simulated) EXPECT_EQUAL(before + 10, cuda().simcuda_call_count("*"));
}

constexpr CUstreamCaptureMode kMode = CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;

// A way to begin a capture that takes its mode, too.
template <class Begin>
auto with_mode(Begin begin) {
  return [begin](CUstream stream) { return begin(stream, kMode); };
}

template <class Begin>
void begins_captures(const Gpu& gpu, Begin begin) {
  captures(gpu, begin, cuda().cuStreamEndCapture);
}
template <class Begin>
void begins_captures_with_mode(const Gpu& gpu, Begin begin) {
  begins_captures(gpu, with_mode(begin));
}
template <class End>
void ends_captures_by(const Gpu& gpu, End end) {
  captures(gpu, with_mode(cuda().cuStreamBeginCapture_v2), end);
}

// The graph belongs to the host here; what is captured is added to it.
template <class Begin>
void captures_to_graph(const Gpu& gpu, Begin begin) {
  static Graph* graph;
  graph = new Graph;
  static Begin* begin_capture;
  begin_capture = &begin;
  captures(
      gpu,
      [](CUstream stream) {
        return (*begin_capture)(stream, graph->get(), nullptr, nullptr, 0, kMode);
      },
      [](CUstream stream, CUgraph* captured) {
        const CUresult result = cuda().cuStreamEndCapture(stream, captured);
        CHECK(*captured == graph->get());
        return result;
      });
}

// A capture that ends with its stream, before cuStreamEndCapture: launches are single calls again.
void ends_captures(const Gpu& gpu, CUresult (*destroy)(CUstream)) {
  const CUfunction step = gpu.step();
  OK(gpu.launch(step));
  for (int round = 0; round < 3; ++round) {
    const CUstream stream = new_stream();
    OK(cuda().cuStreamBeginCapture_v2(stream, kMode));
    OK(gpu.launch_on(stream, step));
    (void)destroy(stream);  // an error where a capture forbids it
  }
  launches_are_single_calls(gpu, step);
  gpu.finish({.curated1 = 11}, {.hit = 11});
}

template <class Function>
Function function_of(const char* name) {
  void* const found = dlsym(cuda().library, name);
  if (found == nullptr) skip(std::string("this driver has no ") + name);
  return reinterpret_cast<Function>(found);
}

// ---- end handles

// A tracked handle dies, and another kernel is given the next ones: whatever they were called
// before, each launch runs what it names. `end` ends the module in the current context.
template <class End>
void ends_modules(const Gpu& gpu, End end) {
  constexpr int rounds = 30;
  for (int round = 0; round < rounds; ++round) {
    CUmodule module = gpu.load_module();
    OK(gpu.launch(gpu.function(module), 1 + round % 2));
    OK(end(module));
    module = gpu.load_module(kOther);
    OK(gpu.launch_other(gpu.function(module)));
    OK(gpu.launch_other(gpu.function(module, "conform_other")));
    OK(end(module));
  }
  gpu.finish({.step = rounds, .other = rounds, .curated1 = rounds / 2, .curated2 = rounds / 2},
             {.hit = rounds, .untracked = 2 * rounds});
}

void ends_libraries(const Gpu& gpu) {
  constexpr int rounds = 30;
  for (int round = 0; round < rounds; ++round) {
    CUlibrary library = gpu.load_library();
    OK(gpu.launch(gpu.kernel(library), 1 + round % 2));
    OK(cuda().cuLibraryUnload(library));
    library = gpu.load_library(kOther);
    OK(gpu.launch_other(reinterpret_cast<CUfunction>(gpu.kernel(library))));
    OK(cuda().cuLibraryUnload(library));
  }
  gpu.finish({.step = rounds, .curated1 = rounds / 2, .curated2 = rounds / 2},
             {.hit = rounds, .untracked = rounds});
}

// The same where the module's context ends. `make` makes a context and leaves it current.
template <class Make, class End>
void ends_contexts(const Gpu& gpu, Make make, End end) {
  const int rounds = cuda().is_simulated ? 10 : 3;  // contexts take a real driver long to make
  // On the context's own default stream.
  const auto run = [](CUfunction function, Arguments&& arguments) {
    OK(cuda().cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, nullptr, arguments.params(), nullptr));
    OK(cuda().cuCtxSynchronize());
  };
  for (int round = 0; round < rounds; ++round) {
    auto context = make();
    run(gpu.function(gpu.load_module()), Arguments(gpu.marks(), 1, 7));
    // Captures in it end with it.
    const CUstream stream = new_stream();
    OK(cuda().cuStreamBeginCapture_v2(stream, kMode));
    OK(end(context));
    context = make();
    run(gpu.function(gpu.load_module(kOther)), Arguments(Arguments::Other{}, gpu.marks(), 7));
    OK(end(context));
  }
  gpu.enter();
  const CUfunction step = gpu.step();
  OK(gpu.launch(step));
  launches_are_single_calls(gpu, step);
  gpu.finish({.step = rounds, .curated1 = rounds + 11}, {.hit = rounds + 11, .untracked = rounds});
}

CUcontext new_context() {
  CUdevice device = 0;
  CUcontext context = nullptr;
  OK(cuda().cuDeviceGet(&device, 0));
  OK(cuda().cuCtxCreate_v2(&context, 0, device));
  return context;
}

// Ends the primary context, with all that is in it, and begins a new one. The marks end with it.
template <class End>
void ends_primary_contexts(const Gpu& first, End end) {
  const int rounds = cuda().is_simulated ? 10 : 3;  // contexts take a real driver long to make
  OK(end(first.device()));
  for (int round = 0; round < rounds; ++round) {
    const Gpu gpu;
    const Ran before = what_ran(gpu.marks());
    OK(gpu.launch(gpu.function(gpu.load_module())));
    OK(gpu.launch_other(gpu.function(gpu.load_module(kOther))));
    OK(cuda().cuCtxSynchronize());
    const Ran after = what_ran(gpu.marks());
    EXPECT_EQUAL(before.curated1 + 1, after.curated1);
    EXPECT_EQUAL(before.step + 1, after.step);
    // Captures in it end with it.
    OK(cuda().cuStreamBeginCapture_v2(gpu.stream(), kMode));
    OK(end(gpu.device()));
  }
  const Gpu last;
  const CUfunction step = last.step();
  OK(last.launch(step));
  launches_are_single_calls(last, step);
  OK(cuda().cuCtxSynchronize());
  state({.step = rounds, .curated1 = rounds + 11}, {.hit = rounds + 11, .untracked = rounds});
}

template <class End>
void ends_made_contexts(const Gpu& gpu, End end) {
  ends_contexts(gpu, new_context, end);
}

struct Green {
  CUgreenCtx green = nullptr;
};

Green new_green_context_of(CUdevice device) {
  auto resource = zeroed<CUdevResource>();
  OK(cuda().cuDeviceGetDevResource(device, &resource, CU_DEV_RESOURCE_TYPE_SM));
  CUdevResourceDesc description = nullptr;
  OK(cuda().cuDevResourceGenerateDesc(&description, &resource, 1));
  Green made;
  OK(cuda().cuGreenCtxCreate(&made.green, description, device, CU_GREEN_CTX_DEFAULT_STREAM));
  CUcontext context = nullptr;
  OK(cuda().cuCtxFromGreenCtx(&context, made.green));
  OK(cuda().cuCtxSetCurrent(context));
  return made;
}

Green new_green_context() {
  CUdevice device = 0;
  OK(cuda().cuDeviceGet(&device, 0));
  return new_green_context_of(device);
}

// ---- make contexts: what is launched there is counted, for its device

// The context that the named function makes is current then.
void make_context_by(const std::string& name, CUdevice device) {
  CUcontext context = nullptr;
  const char* const symbol = name.c_str();
  if (name == "cuDevicePrimaryCtxRetain") {
    OK(cuda().cuDevicePrimaryCtxRetain(&context, device));
  } else if (name == "cuCtxCreate" || name == "cuCtxCreate_v2") {
    OK(function_of<PFN_cuCtxCreate_v3020>(symbol)(&context, 0, device));
  } else if (name == "cuCtxCreate_v3") {
    OK(function_of<PFN_cuCtxCreate_v11040>(symbol)(&context, nullptr, 0, 0, device));
  } else if (name == "cuCtxCreate_v4") {
    OK(function_of<PFN_cuCtxCreate_v12050>(symbol)(&context, nullptr, 0, device));
  } else {
    CHECK(name == "cuGreenCtxCreate");
    (void)new_green_context_of(device);
    return;
  }
  OK(cuda().cuCtxSetCurrent(context));
}

CUresult launch_here(const Gpu& gpu, CUfunction function) {
  return gpu.launch_on(CU_STREAM_PER_THREAD, function);
}

void makes_a_context(const Gpu& gpu, const char* name) {
  if (!cuda().is_simulated && strcmp(name, "cuCtxCreate") == 0) {
    skip("a real driver refuses the oldest form, as out of memory");
  }
  if (!cuda().is_simulated && strcmp(name, "cuGreenCtxCreate") == 0) {
    skip("a real driver refuses launches into a green context's per-thread stream");
  }
  const auto kernel = reinterpret_cast<CUfunction>(gpu.kernel(gpu.load_library()));
  OK(launch_here(gpu, kernel));
  OK(cuda().cuCtxSynchronize());
  make_context_by(name, gpu.device());
  OK(launch_here(gpu, kernel));
  OK(launch_here(gpu, gpu.step()));
  OK(cuda().cuCtxSynchronize());
  gpu.enter();
  gpu.finish({.curated1 = 3}, {.hit = 3});
}

// Each layout of a node's parameters by one name.
template <class Params>
Params params_of(CUfunction function, Arguments* arguments) {
  if constexpr (std::is_same_v<Params, NodeParams1>) {
    return node_params1(function, arguments);
  } else if constexpr (std::is_same_v<Params, NodeParams2>) {
    return node_params2(function, arguments);
  } else {
    return node_params(function, arguments);
  }
}

template <class Params, class Set>
void sets_executable(const Gpu& gpu, Set set) {
  sets_executable_nodes(gpu, [&](CUgraphExec executable, CUgraphNode node, CUfunction function,
                                 Arguments* arguments) {
    auto params = params_of<Params>(function, arguments);
    OK(set(executable, node, &params));
  });
}

// `source` is a path, or an image; `more` is what the function takes after it.
template <class Load, class... More>
void loads_a_module(const Gpu& gpu, Load load, const char* source, More... more) {
  CUmodule module = nullptr;
  OK(load(&module, source, more...));
  runs_curated(gpu, gpu.function(module));
}

template <class Load>
void loads_a_library(const Gpu& gpu, Load load, const char* source) {
  CUlibrary library = nullptr;
  OK(load(&library, source, nullptr, nullptr, 0, nullptr, nullptr, 0));
  runs_curated(gpu, gpu.kernel(library));
}

HOOK(cuGetProcAddress) {
  void* found = nullptr;
  OK(cuda().cuGetProcAddress("cuLaunchKernel", &found, 4000, 0));
  runs_curated_through(gpu, found);
}
HOOK(cuGetProcAddress_v2) {
  void* found = nullptr;
  OK(cuda().cuGetProcAddress_v2("cuLaunchKernel", &found, 4000, 0, nullptr));
  runs_curated_through(gpu, found);
}
HOOK(cuDevicePrimaryCtxRetain) { makes_a_context(gpu, "cuDevicePrimaryCtxRetain"); }
HOOK(cuCtxCreate) { makes_a_context(gpu, "cuCtxCreate"); }
HOOK(cuCtxCreate_v2) { makes_a_context(gpu, "cuCtxCreate_v2"); }
HOOK(cuCtxCreate_v3) { makes_a_context(gpu, "cuCtxCreate_v3"); }
HOOK(cuCtxCreate_v4) { makes_a_context(gpu, "cuCtxCreate_v4"); }
HOOK(cuGreenCtxCreate) { makes_a_context(gpu, "cuGreenCtxCreate"); }
HOOK(cuModuleLoad) { loads_a_module(gpu, cuda().cuModuleLoad, data_path(kImage).c_str()); }
HOOK(cuModuleLoadData) { loads_a_module(gpu, cuda().cuModuleLoadData, image(kImage).data()); }
HOOK(cuModuleLoadDataEx) {
  loads_a_module(gpu, cuda().cuModuleLoadDataEx, image(kImage).data(), 0, nullptr, nullptr);
}
HOOK(cuModuleLoadFatBinary) {
  loads_a_module(gpu, cuda().cuModuleLoadFatBinary, image(kImage).data());
}
HOOK(cuLibraryLoadData) { loads_a_library(gpu, cuda().cuLibraryLoadData, image(kImage).data()); }
HOOK(cuLibraryLoadFromFile) {
  loads_a_library(gpu, cuda().cuLibraryLoadFromFile, data_path(kImage).c_str());
}
HOOK(cuModuleGetFunction) {
  CUfunction function = nullptr;
  OK(cuda().cuModuleGetFunction(&function, gpu.load_module(), kStep));
  runs_curated(gpu, function);
}
HOOK(cuModuleEnumerateFunctions) {
  const CUmodule module = gpu.load_module();
  unsigned count = 0;
  OK(cuda().cuModuleGetFunctionCount(&count, module));
  std::vector<CUfunction> all(count);
  OK(cuda().cuModuleEnumerateFunctions(all.data(), count, module));
  runs_curated(gpu, pick(all, cuda().cuFuncGetName));
}
HOOK(cuLibraryGetKernel) {
  CUkernel kernel = nullptr;
  OK(cuda().cuLibraryGetKernel(&kernel, gpu.load_library(), kStep));
  runs_curated(gpu, kernel);
}
HOOK(cuLibraryEnumerateKernels) {
  const CUlibrary library = gpu.load_library();
  unsigned count = 0;
  OK(cuda().cuLibraryGetKernelCount(&count, library));
  std::vector<CUkernel> all(count);
  OK(cuda().cuLibraryEnumerateKernels(all.data(), count, library));
  runs_curated(gpu, pick(all, cuda().cuKernelGetName));
}
HOOK(cuKernelGetFunction) {
  CUfunction function = nullptr;
  OK(cuda().cuKernelGetFunction(&function, gpu.kernel(gpu.load_library())));
  runs_curated(gpu, function);
}
HOOK(cuLibraryGetModule) {
  CUmodule module = nullptr;
  OK(cuda().cuLibraryGetModule(&module, gpu.load_library()));
  runs_curated(gpu, gpu.function(module));
}
HOOK_BY(launch_plain, cuLaunchKernel)
HOOK_BY(launch_plain, cuLaunchKernel_ptsz)
HOOK_BY(launch_ex, cuLaunchKernelEx)
HOOK_BY(launch_ex, cuLaunchKernelEx_ptsz)
HOOK_BY(launch_cooperative, cuLaunchCooperativeKernel)
HOOK_BY(launch_cooperative, cuLaunchCooperativeKernel_ptsz)
HOOK(cuLaunchCooperativeKernelMultiDevice) { launch_on_several_devices(gpu); }
HOOK_BY(runs_originals, cuLaunch)
HOOK(cuLaunchGrid) {
  runs_originals(gpu, [](CUfunction function) { return cuda().cuLaunchGrid(function, 1, 1); });
}
HOOK(cuLaunchGridAsync) {
  runs_originals(gpu, [&](CUfunction function) {
    return cuda().cuLaunchGridAsync(function, 1, 1, gpu.stream());
  });
}
HOOK_BY(instantiates_with_log, cuGraphInstantiate)
HOOK_BY(instantiates_with_log, cuGraphInstantiate_v2)
HOOK(cuGraphInstantiateWithFlags) {
  instantiates(gpu, [](CUgraphExec* made, CUgraph graph) {
    return cuda().cuGraphInstantiateWithFlags(made, graph,
                                              CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY);
  });
}
HOOK_BY(instantiates_with_params, cuGraphInstantiateWithParams)
HOOK_BY(instantiates_with_params, cuGraphInstantiateWithParams_ptsz)
HOOK(cuGraphExecDestroy) { ends_execs(gpu); }
HOOK_BY(launches_graphs, cuGraphLaunch)
HOOK_BY(launches_graphs, cuGraphLaunch_ptsz)
HOOK_BY(uploads_graphs, cuGraphUpload)
HOOK_BY(uploads_graphs, cuGraphUpload_ptsz)
HOOK(cuGraphExecUpdate) {
  updates_execs(gpu, [](CUgraphExec executable, CUgraph graph) {
    CUgraphNode error_node = nullptr;
    CUgraphExecUpdateResult verdict = CU_GRAPH_EXEC_UPDATE_SUCCESS;
    return cuda().cuGraphExecUpdate(executable, graph, &error_node, &verdict);
  });
}
HOOK(cuGraphExecUpdate_v2) {
  updates_execs(gpu, [](CUgraphExec executable, CUgraph graph) {
    auto info = zeroed<CUgraphExecUpdateResultInfo>();
    return cuda().cuGraphExecUpdate_v2(executable, graph, &info);
  });
}
// What a graph keeps alive ends with the graph, and with the exec that has taken it over: a copy of ours must not keep it.
HOOK(cuGraphRetainUserObject) {
  const CUfunction step = gpu.step();
  const CUhostFn destroy = [](void* data) { ++*static_cast<std::atomic<int>*>(data); };
  std::atomic<int> ended[4] = {};
  const auto make = [&](int i) {
    auto graph = std::make_unique<Graph>();
    graph->add(step, Arguments(gpu.marks(), 1, i));
    CUuserObject object = nullptr;
    OK(cuda().cuUserObjectCreate(&object, &ended[i], destroy, 1,
                                 CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
    OK(cuda().cuGraphRetainUserObject(graph->get(), object, 1, CU_GRAPH_USER_OBJECT_MOVE));
    return graph;
  };
  const Executable executable(make(0)->get());
  executable.run_for(gpu, 0);
  for (int i = 1; i < 4; ++i) {
    executable.update(*make(i));
    executable.run_for(gpu, i);
    EXPECT_EQUAL(0, ended[i].load());
    // The driver calls it on a thread of its own.
    for (int k = 0; k < 10'000 && ended[i - 1] == 0; ++k) usleep(1'000);
    EXPECT_EQUAL(1, ended[i - 1].load());
  }
  gpu.finish({.curated1 = 4}, {.hit = 1});
}
HOOK_BY(sets_executable<NodeParams1>, cuGraphExecKernelNodeSetParams)
HOOK_BY(sets_executable<NodeParams2>, cuGraphExecKernelNodeSetParams_v2)
HOOK_BY(sets_executable<CUgraphNodeParams>, cuGraphExecNodeSetParams)
// What is in the body is replaced, and counts as no node.
template <class Add>
void adds_bodies(const Gpu& gpu, const Add& add) {
  const CUfunction step = gpu.step();
  const Graph graph;
  const Graph body(add_conditional(gpu, graph.get(), true, {}, add(graph.get())).body);
  (void)body.add(step, Arguments(gpu.marks(), 1, 5));
  (void)graph.add(step, Arguments(gpu.marks(), 2, 6));
  graph.run(gpu, 2);
  (void)const_cast<Graph&>(body).release();
  gpu.finish({.curated1 = 2, .curated2 = 2}, {.hit = 1, .in_bodies = 2});
}
HOOK(cuGraphAddNode) {
  adds_bodies(gpu, [](CUgraph graph) {
    return [graph](auto* node, auto* before, size_t count, auto* params) {
      return cuda().cuGraphAddNode(node, graph, before, count, params);
    };
  });
}
HOOK(cuGraphAddNode_v2) {
  adds_bodies(gpu, [](CUgraph graph) {
    return [graph](auto* node, auto* before, size_t count, auto* params) {
      return cuda().cuGraphAddNode_v2(node, graph, before, nullptr, count, params);
    };
  });
}
HOOK(cuGraphExecMemcpyNodeSetParams) { sets_copies(gpu); }
HOOK(cuGraphExecMemsetNodeSetParams) { sets_fills(gpu); }
HOOK(cuGraphExecHostNodeSetParams) { sets_host_functions(gpu); }
HOOK(cuGraphExecEventRecordNodeSetEvent) { sets_recorded_events(gpu); }
HOOK(cuGraphExecEventWaitNodeSetEvent) { sets_awaited_events(gpu); }
HOOK(cuGraphNodeSetEnabled) { switches_nodes(gpu); }
HOOK(cuGraphExecChildGraphNodeSetParams) { sets_child_graphs(gpu); }
HOOK(cuGraphExecExternalSemaphoresSignalNodeSetParams) {
  sets_semaphores<CUDA_EXT_SEM_SIGNAL_NODE_PARAMS, CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS>(
      gpu, cuda().cuGraphAddExternalSemaphoresSignalNode,
      cuda().cuGraphExecExternalSemaphoresSignalNodeSetParams, 0);
}
HOOK(cuGraphExecExternalSemaphoresWaitNodeSetParams) {
  sets_semaphores<CUDA_EXT_SEM_WAIT_NODE_PARAMS, CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS>(
      gpu, cuda().cuGraphAddExternalSemaphoresWaitNode,
      cuda().cuGraphExecExternalSemaphoresWaitNodeSetParams, sizeof(uint64_t));
}
HOOK(cuGraphExecBatchMemOpNodeSetParams) { sets_operations(gpu); }
HOOK_BY(begins_captures, cuStreamBeginCapture)
HOOK_BY(begins_captures, cuStreamBeginCapture_ptsz)
HOOK_BY(begins_captures_with_mode, cuStreamBeginCapture_v2)
HOOK_BY(begins_captures_with_mode, cuStreamBeginCapture_v2_ptsz)
HOOK_BY(captures_to_graph, cuStreamBeginCaptureToGraph)
HOOK_BY(captures_to_graph, cuStreamBeginCaptureToGraph_ptsz)
HOOK_BY(ends_captures_by, cuStreamEndCapture)
HOOK_BY(ends_captures_by, cuStreamEndCapture_ptsz)
HOOK_BY(ends_captures, cuStreamDestroy)
HOOK_BY(ends_captures, cuStreamDestroy_v2)
HOOK_BY(ends_modules, cuModuleUnload)
HOOK(cuLibraryUnload) { ends_libraries(gpu); }
HOOK_BY(ends_made_contexts, cuCtxDestroy)
HOOK_BY(ends_made_contexts, cuCtxDestroy_v2)
HOOK_BY(ends_made_contexts, cuCtxDetach)
HOOK_BY(ends_primary_contexts, cuDevicePrimaryCtxRelease)
HOOK_BY(ends_primary_contexts, cuDevicePrimaryCtxRelease_v2)
HOOK_BY(ends_primary_contexts, cuDevicePrimaryCtxReset)
HOOK_BY(ends_primary_contexts, cuDevicePrimaryCtxReset_v2)
HOOK(cuGreenCtxDestroy) {
  ends_contexts(gpu, new_green_context, [](Green made) {
    OK(cuda().cuCtxSetCurrent(nullptr));
    return cuda().cuGreenCtxDestroy(made.green);
  });
}

#undef HOOK_BY
#undef HOOK

bool is_in_driver(const char* name) { return dlsym(cuda().library, name) != nullptr; }

}  // namespace
}  // namespace conform

CASE(hook) {
  CHECK(arguments.size() == 1);
  const std::string& name = arguments[0];
  using namespace conform;
  const HookCheck* row = g_checks;
  while (row != nullptr && name != row->name) row = row->next;
  if (row == nullptr) fail(__FILE__, __LINE__, "no check of what " + name + " does: add a HOOK");
  if (!is_in_driver(row->name)) skip("this driver has no " + name);
  const Gpu gpu;
  row->check(gpu);
  if (cuda().is_simulated) CHECK(cuda().simcuda_call_count(row->name) > 0);
}

// Device 0: 5 launches of a kernel, 4 of a function. Device 1, whose context the named function makes: 3
// and 2; then 1 more of the kernel on device 0.
CASE(counts_by_device) {
  using namespace conform;
  CHECK(arguments.size() == 1);
  const Gpu gpu;
  const auto kernel = reinterpret_cast<CUfunction>(gpu.kernel(gpu.load_library()));
  const auto launch = [&](CUfunction function, int count) {
    for (int i = 0; i < count; ++i) OK(launch_here(gpu, function));
    OK(cuda().cuCtxSynchronize());
  };
  const CUfunction step = gpu.step();
  launch(kernel, 5);
  launch(step, 4);
  CUdevice second = 0;
  OK(cuda().cuDeviceGet(&second, 1));
  make_context_by(arguments[0], second);
  launch(kernel, 3);
  launch(gpu.step(), 2);
  gpu.enter();
  launch(kernel, 1);
  gpu.finish({.curated1 = 15}, {.hit = 15});
}
