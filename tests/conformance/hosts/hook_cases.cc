// One check of behaviour for every row of the hook table: `conform hook NAME`. A row without an
// entry here fails, so a new hook comes with its check. Each check calls the function by that very
// name and says what must have run; the test that starts this compares the counters.
#include <dlfcn.h>
#include <string.h>

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

// ---- kernel nodes of graphs

// `add` makes a node of (function, arguments) in a graph. Three replays of a graph with a tracked
// node of each shape and an untracked one.
template <class Add>
void adds_nodes(const Gpu& gpu, Add add) {
  const CUmodule module = gpu.load_module();
  const Graph graph;
  for (const int shape : {1, 2, 3, kNoSolution}) {
    Arguments arguments(gpu.marks(), shape, 40 + shape);
    add(graph.get(), gpu.function(module), &arguments);
  }
  Arguments arguments(gpu.marks(), 1, 44);
  add(graph.get(), gpu.function(module, kFree), &arguments);
  graph.run(gpu, 3);
  gpu.finish({.step = 3, .free = 3, .curated1 = 3, .curated2 = 3, .curated3 = 3},
             {.hit = 3, .no_solution = 1, .untracked = 1});
}

// `get` reads a node's parameters as the widest layout. They are the host's own, whether the node
// was added or captured.
template <class Get>
void gives_back_the_original(const Gpu& gpu, Get get) {
  const CUfunction step = gpu.step();
  const Graph graph;
  Arguments arguments(gpu.marks(), 2, 51);
  const CUgraphNode node = graph.add(step, &arguments);
  NodeParams2 params = get(node);
  CHECK(params.func == step);
  CHECK(kernel_name(params) == kStep);
  EXPECT_EQUAL(2, shape_of(params));
  EXPECT_EQUAL(51, value_of(params));
  EXPECT_EQUAL(1, params.gridDimX);
  EXPECT_EQUAL(32, params.blockDimX);
  graph.run(gpu);
  gpu.expect_ran({.curated2 = 1});
  gpu.expect_last_value(51);

  const Graph other(gpu.capture([&] { OK(gpu.launch(step, 1, 52)); }));
  params = get(other.nodes().at(0));
  CHECK(kernel_name(params) == kStep);
  EXPECT_EQUAL(1, shape_of(params));
  EXPECT_EQUAL(52, value_of(params));
  gpu.finish({.curated2 = 1}, {.hit = 2});
}

// `set` sets the parameters of (node, function, arguments).
template <class Set>
void sets_nodes(const Gpu& gpu, Set set) {
  const CUmodule module = gpu.load_module();
  const CUfunction step = gpu.function(module);
  const Graph graph;
  Arguments first(gpu.marks(), 1, 61);
  const CUgraphNode node = graph.add(step, &first);
  Arguments second(gpu.marks(), 2, 62);
  set(node, step, &second);
  graph.run_for(gpu, 62);
  Arguments third(gpu.marks(), kNoSolution, 63);
  set(node, step, &third);
  graph.run_for(gpu, 63);
  Arguments fourth(gpu.marks(), 1, 64);
  set(node, gpu.function(module, kFree), &fourth);
  graph.run_for(gpu, 64);
  set(node, step, &fourth);
  graph.run_for(gpu, 64);
  gpu.finish({.step = 1, .free = 1, .curated1 = 1, .curated2 = 1},
             {.hit = 3, .no_solution = 1, .untracked = 1});
}

// The same on an executable graph; the graph that it was made from stays as it is.
template <class Set>
void sets_executable_nodes(const Gpu& gpu, Set set) {
  const CUmodule module = gpu.load_module();
  const CUfunction step = gpu.function(module);
  const Graph graph;
  Arguments first(gpu.marks(), 1, 71);
  const CUgraphNode node = graph.add(step, &first);
  {
    const Executable executable(graph.get());
    Arguments second(gpu.marks(), 2, 72);
    set(executable.get(), node, step, &second);
    executable.run_for(gpu, 72);
    Arguments third(gpu.marks(), kNoSolution, 73);
    set(executable.get(), node, step, &third);
    executable.run_for(gpu, 73);
  }
  graph.run_for(gpu, 71);
  gpu.finish({.step = 1, .curated1 = 1, .curated2 = 1}, {.hit = 2, .no_solution = 1});
}

// What the host says of its own kernel's cluster does not reach the replacement; other attributes
// do.
void sets_node_attributes(const Gpu& gpu) {
  const CUfunction step = gpu.step();
  const Graph graph;
  Arguments arguments(gpu.marks(), 3, 75);
  const CUgraphNode node = graph.add(step, &arguments);
  CUkernelNodeAttrValue value;
  memset(&value, 0, sizeof value);
  value.clusterDim.x = value.clusterDim.y = value.clusterDim.z = 1;
  OK(cuda().cuGraphKernelNodeSetAttribute(node, CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, &value));
  memset(&value, 0, sizeof value);
  value.priority = 0;
  OK(cuda().cuGraphKernelNodeSetAttribute(node, CU_LAUNCH_ATTRIBUTE_PRIORITY, &value));
  graph.run(gpu);
  gpu.finish({.curated3 = 1}, {.hit = 1});
  if (!cuda().is_simulated) return;
  const SimcudaLaunch last = last_launch("curated_n3");
  EXPECT_EQUAL(2, last.cluster[0]);
}

// `copy` copies a graph, perhaps into another one, and gives the copy. Its nodes read back as the
// host's own, and may be set.
template <class Copy>
void copies_graphs(const Gpu& gpu, Copy copy) {
  const CUmodule module = gpu.load_module();
  const Graph graph;
  CUgraphNode last = nullptr;
  for (const int shape : {1, 2, 3, kNoSolution}) {
    Arguments arguments(gpu.marks(), shape, 90 + shape);
    last = graph.add(gpu.function(module), &arguments, last);
  }
  const Graph parent;
  const CUgraph copied = copy(graph.get(), parent.get());
  CUgraphNode nodes[4];
  size_t count = 4;
  OK(cuda().cuGraphGetNodes(copied, nodes, &count));
  EXPECT_EQUAL(4, count);
  int shapes_seen = 0;
  for (const CUgraphNode node : nodes) {
    NodeParams2 params;
    OK(cuda().cuGraphKernelNodeGetParams_v2(node, &params));
    CHECK(kernel_name(params) == kStep);
    EXPECT_EQUAL(90 + shape_of(params), value_of(params));
    shapes_seen += shape_of(params);
    OK(cuda().cuGraphKernelNodeSetParams_v2(node, &params));
  }
  EXPECT_EQUAL(1 + 2 + 3 + kNoSolution, shapes_seen);
  if (parent.nodes().empty()) {
    Graph(copied).run(gpu);  // a graph of its own
  } else {
    parent.run(gpu);
  }
  gpu.finish({.step = 1, .curated1 = 1, .curated2 = 1, .curated3 = 1},
             {.hit = 6, .no_solution = 2});
}

// A node's value may be reused for another node. What was kept of the first must not speak for it.
template <class End>
void forgets_nodes(const Gpu& gpu, End end) {
  const CUmodule module = gpu.load_module();
  for (int round = 0; round < 20; ++round) {
    Graph graph;
    const bool is_tracked = round % 2 == 0;
    Arguments arguments(gpu.marks(), 1, 100 + round);
    const CUgraphNode node =
        graph.add(gpu.function(module, is_tracked ? kStep : kFree), &arguments);
    NodeParams2 params;
    OK(cuda().cuGraphKernelNodeGetParams_v2(node, &params));
    CHECK(kernel_name(params) == (is_tracked ? kStep : kFree));
    EXPECT_EQUAL(100 + round, value_of(params));
    end(&graph, node);
  }
  gpu.finish({}, {.hit = 10, .untracked = 10});
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
  NodeParams2 params;
  OK(cuda().cuGraphKernelNodeGetParams_v2(graph.nodes().at(1), &params));
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
    CUstream stream = nullptr;
    OK(cuda().cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(cuda().cuStreamBeginCapture_v2(stream, kMode));
    OK(gpu.launch_on(stream, step));
    (void)destroy(stream);  // an error where a capture forbids it
  }
  launches_are_single_calls(gpu, step);
  gpu.finish({.curated1 = 11}, {.hit = 14});
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
    CUstream stream = nullptr;
    OK(cuda().cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
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
  CUdevResource resource;
  memset(&resource, 0, sizeof resource);
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

// `add` is one of cuGraphAdd*Node*; `more` is what it takes between the dependencies and their number.
template <class Params, class Add, class... More>
void adds(const Gpu& gpu, Add add, More... more) {
  adds_nodes(gpu, [&](CUgraph graph, CUfunction function, Arguments* arguments) {
    auto params = params_of<Params>(function, arguments);
    CUgraphNode node = nullptr;
    OK(add(&node, graph, nullptr, more..., 0, &params));
  });
}

template <class Params, class Get>
void gives_back(const Gpu& gpu, Get get) {
  gives_back_the_original(gpu, [&](CUgraphNode node) {
    Params params;
    NodeParams2 wide;
    memset(&wide, 0, sizeof wide);
    OK(get(node, &params));
    memcpy(&wide, &params, sizeof params);
    return wide;
  });
}

template <class Params, class Set>
void sets(const Gpu& gpu, Set set) {
  sets_nodes(gpu, [&](CUgraphNode node, CUfunction function, Arguments* arguments) {
    auto params = params_of<Params>(function, arguments);
    OK(set(node, &params));
  });
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

void links_an_image(const Gpu& gpu) {
  int major = 0;
  int minor = 0;
  OK(cuda().cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
                                 gpu.device()));
  OK(cuda().cuDeviceGetAttribute(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
                                 gpu.device()));
  const std::string name = "conform.sm_" + std::to_string(major * 10 + minor) + ".cubin";
  std::vector<char> cubin = image(name);
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
  runs_curated(gpu, gpu.function(module));
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
HOOK(cuLinkComplete) { links_an_image(gpu); }
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
HOOK_BY(adds<NodeParams1>, cuGraphAddKernelNode)
HOOK_BY(adds<NodeParams2>, cuGraphAddKernelNode_v2)
HOOK_BY(adds<CUgraphNodeParams>, cuGraphAddNode)
HOOK(cuGraphAddNode_v2) { adds<CUgraphNodeParams>(gpu, cuda().cuGraphAddNode_v2, nullptr); }
HOOK_BY(gives_back<NodeParams1>, cuGraphKernelNodeGetParams)
HOOK_BY(gives_back<NodeParams2>, cuGraphKernelNodeGetParams_v2)
HOOK_BY(sets<NodeParams1>, cuGraphKernelNodeSetParams)
HOOK_BY(sets<NodeParams2>, cuGraphKernelNodeSetParams_v2)
HOOK_BY(sets<CUgraphNodeParams>, cuGraphNodeSetParams)
HOOK_BY(sets_executable<NodeParams1>, cuGraphExecKernelNodeSetParams)
HOOK_BY(sets_executable<NodeParams2>, cuGraphExecKernelNodeSetParams_v2)
HOOK_BY(sets_executable<CUgraphNodeParams>, cuGraphExecNodeSetParams)
HOOK(cuGraphKernelNodeSetAttribute) { sets_node_attributes(gpu); }
HOOK(cuGraphClone) {
  copies_graphs(gpu, [](CUgraph graph, CUgraph) {
    CUgraph clone = nullptr;
    OK(cuda().cuGraphClone(&clone, graph));
    return clone;
  });
}
HOOK(cuGraphAddChildGraphNode) {
  copies_graphs(gpu, [](CUgraph graph, CUgraph parent) {
    CUgraphNode node = nullptr;
    CUgraph child = nullptr;
    OK(cuda().cuGraphAddChildGraphNode(&node, parent, nullptr, 0, graph));
    OK(cuda().cuGraphChildGraphNodeGetGraph(node, &child));
    return child;
  });
}
HOOK(cuGraphDestroyNode) {
  forgets_nodes(gpu, [](Graph*, CUgraphNode node) { OK(cuda().cuGraphDestroyNode(node)); });
}
HOOK(cuGraphDestroy) {
  forgets_nodes(gpu,
                [](Graph* graph, CUgraphNode) { OK(cuda().cuGraphDestroy(graph->release())); });
}
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
