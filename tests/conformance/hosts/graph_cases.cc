// Graphs beyond what hook_cases.cc has for each function (number 5 of
// tools/doc/driver_facts.md, section 7). A caller that reads a node's
// parameters back and sets them again ends with a graph that computes what it asked for, whatever
// else it does in between; replays cost nothing; copies and updates carry what was put in.
#include <string.h>

#include "tests/conformance/hosts/graphs.h"

namespace conform {
namespace {

NodeParams2 params_of(CUgraphNode node) {
  NodeParams2 params;
  memset(&params, 0, sizeof params);
  OK(cuda().cuGraphKernelNodeGetParams_v2(node, &params));
  return params;
}

CUgraph capture_of(const Gpu& gpu, CUfunction function, int shape, int value) {
  CUgraph graph = nullptr;
  OK(cuda().cuStreamBeginCapture_v2(gpu.stream(), CU_STREAM_CAPTURE_MODE_RELAXED));
  OK(gpu.launch(function, shape, value));
  OK(cuda().cuStreamEndCapture(gpu.stream(), &graph));
  return graph;
}

}  // namespace
}  // namespace conform

using namespace conform;

// Read back and set unchanged, many times over, added and captured.
CASE(graph_read_and_set_again) {
  const Gpu gpu;
  const CUfunction step = gpu.step();
  Arguments own(gpu.marks(), 1, 11);
  const Graph added;
  added.add(step, &own);
  const Graph captured(capture_of(gpu, step, 2, 12));
  for (int i = 0; i < 3; ++i) {
    for (const Graph* graph : {&added, &captured}) {
      const CUgraphNode node = graph->nodes().at(0);
      const NodeParams2 params = params_of(node);
      CHECK(kernel_name(params) == kStep);
      OK(cuda().cuGraphKernelNodeSetParams_v2(node, &params));
    }
  }
  added.run(gpu);
  gpu.expect_last_value(11);
  captured.run(gpu);
  gpu.expect_last_value(12);
  gpu.finish({.curated1 = 1, .curated2 = 1}, {.hit = 8});
}

// The pattern of frameworks that patch one argument of a captured node before each replay.
CASE(graph_patch_one_argument) {
  const Gpu gpu;
  const CUfunction step = gpu.step();
  const Graph graph(capture_of(gpu, step, 1, 20));
  const CUgraphNode node = graph.nodes().at(0);
  const Executable executable(graph.get());
  executable.run(gpu);
  gpu.expect_last_value(20);
  for (int value = 21; value < 25; ++value) {
    NodeParams2 params = params_of(node);
    EXPECT_EQUAL(20, value_of(params));
    int changed = value;
    void* pointers[3] = {params.kernelParams[0], params.kernelParams[1], &changed};
    params.kernelParams = pointers;
    OK(cuda().cuGraphExecKernelNodeSetParams_v2(executable.get(), node, &params));
    executable.run(gpu);
    gpu.expect_last_value(value);
  }
  // The graph itself was not touched.
  graph.run(gpu);
  gpu.expect_last_value(20);
  gpu.finish({.curated1 = 6}, {.hit = 5});
}

// Other frameworks write through the pointers that they are given, and set what they read.
CASE(graph_write_through_pointers) {
  const Gpu gpu;
  const CUfunction step = gpu.step();
  const Graph graph(capture_of(gpu, step, 1, 30));
  const CUgraphNode node = graph.nodes().at(0);
  NodeParams2 params = params_of(node);
  *static_cast<int*>(params.kernelParams[2]) = 31;
  *static_cast<int*>(params.kernelParams[1]) = 2;
  OK(cuda().cuGraphKernelNodeSetParams_v2(node, &params));
  EXPECT_EQUAL(31, value_of(params_of(node)));
  EXPECT_EQUAL(2, shape_of(params_of(node)));
  graph.run(gpu);
  gpu.expect_last_value(31);
  // To a shape without a solution: the original, with the original's arguments.
  params = params_of(node);
  *static_cast<int*>(params.kernelParams[1]) = kNoSolution;
  OK(cuda().cuGraphKernelNodeSetParams_v2(node, &params));
  graph.run(gpu);
  gpu.expect_last_value(31);
  CHECK(kernel_name(params_of(node)) == kStep);
  // And back.
  params = params_of(node);
  *static_cast<int*>(params.kernelParams[1]) = 1;
  OK(cuda().cuGraphKernelNodeSetParams_v2(node, &params));
  graph.run(gpu);
  gpu.finish({.step = 1, .curated1 = 1, .curated2 = 1}, {.hit = 3, .no_solution = 1});
}

// A replacement's cluster comes and goes with it; the host's own is there again afterwards.
CASE(graph_cluster_comes_and_goes) {
  const Gpu gpu;
  const CUmodule module = gpu.load_module();
  const CUfunction step = gpu.function(module);
  const CUfunction free = gpu.function(module, kFree);
  const Graph graph;
  Arguments clustered(gpu.marks(), 3, 35);
  const CUgraphNode node = graph.add(step, &clustered);
  const auto run = [&](CUfunction function, int shape, unsigned cluster) {
    Arguments own(gpu.marks(), shape, 36);
    const NodeParams2 params = node_params2(function, &own);
    OK(cuda().cuGraphKernelNodeSetParams_v2(node, &params));
    graph.run(gpu);
    gpu.expect_last_value(36);
    if (!cuda().is_simulated) return;
    SimcudaLaunch last;
    CHECK(cuda().simcuda_last_launch(nullptr, &last) == 1);
    EXPECT_EQUAL(cluster, last.cluster[0]);
  };
  graph.run(gpu);
  run(step, 2, 1);
  run(step, 3, 2);
  run(step, 1, 1);
  run(step, 3, 2);
  run(step, kNoSolution, 1);
  run(step, 3, 2);
  run(free, 1, 1);
  gpu.finish({.step = 1, .free = 1, .curated1 = 1, .curated2 = 1, .curated3 = 4},
             {.hit = 6, .no_solution = 1, .untracked = 1});
}

// Parameters of one node put into another.
CASE(graph_copy_between_nodes) {
  const Gpu gpu;
  const CUmodule module = gpu.load_module();
  const Graph graph;
  Arguments first(gpu.marks(), 1, 41);
  Arguments second(gpu.marks(), 2, 42);
  const CUgraphNode one = graph.add(gpu.function(module), &first);
  const CUgraphNode two = graph.add(gpu.function(module, kFree), &second, one);
  NodeParams2 params = params_of(one);
  OK(cuda().cuGraphKernelNodeSetParams_v2(two, &params));
  graph.run(gpu);
  gpu.expect_ran({.curated1 = 2});
  CHECK(kernel_name(params_of(two)) == kStep);
  EXPECT_EQUAL(41, value_of(params_of(two)));
  // A node of another graph, made from what was read.
  const Graph other;
  params = params_of(two);
  CUgraphNode made = nullptr;
  OK(cuda().cuGraphAddKernelNode_v2(&made, other.get(), nullptr, 0, &params));
  other.run(gpu);
  gpu.finish({.curated1 = 3}, {.hit = 3, .untracked = 1});
}

// A kernel given by its CUkernel reads back as one, or as its function: as the driver has it.
CASE(graph_kernel_handles) {
  const Gpu gpu;
  const CUkernel kernel = gpu.kernel(gpu.load_library());
  const Graph graph;
  Arguments own(gpu.marks(), 1, 51);
  NodeParams2 params = node_params2(kernel, &own);
  CUgraphNode node = nullptr;
  OK(cuda().cuGraphAddKernelNode_v2(&node, graph.get(), nullptr, 0, &params));
  params = params_of(node);
  CHECK(kernel_name(params) == kStep);
  EXPECT_EQUAL(51, value_of(params));
  OK(cuda().cuGraphKernelNodeSetParams_v2(node, &params));
  graph.run(gpu);
  // The first layout knows no CUkernel: it gives the kernel's function.
  NodeParams1 narrow;
  OK(cuda().cuGraphKernelNodeGetParams(node, &narrow));
  CHECK(narrow.func != nullptr);
  const char* name = nullptr;
  OK(cuda().cuFuncGetName(&name, narrow.func));
  CHECK(strcmp(name, kStep) == 0);
  OK(cuda().cuGraphKernelNodeSetParams(node, &narrow));
  graph.run(gpu);
  gpu.expect_last_value(51);
  gpu.finish({.curated1 = 2}, {.hit = 3});
}

// Arguments in a packed buffer, which the host may change afterwards: nodes hold copies.
CASE(graph_packed_arguments) {
  const Gpu gpu;
  const CUfunction step = gpu.step();
  const Graph graph;
  Arguments own(gpu.marks(), 1, 61);
  NodeParams2 params = node_params2(step, &own);
  params.kernelParams = nullptr;
  params.extra = own.extra();
  CUgraphNode node = nullptr;
  OK(cuda().cuGraphAddKernelNode_v2(&node, graph.get(), nullptr, 0, &params));
  memset(own.packed(), 0xff, own.packed_bytes());
  EXPECT_EQUAL(61, value_of(params_of(node)));
  graph.run(gpu);
  gpu.expect_last_value(61);
  gpu.finish({.curated1 = 1}, {.hit = 1});
}

// Clones and child graphs carry the replacement; their nodes may be read and set like others.
CASE(graph_clone_and_child) {
  const Gpu gpu;
  const CUfunction step = gpu.step();
  const Graph graph;
  Arguments own(gpu.marks(), 1, 71);
  graph.add(step, &own);

  CUgraph cloned = nullptr;
  OK(cuda().cuGraphClone(&cloned, graph.get()));
  const Graph clone(cloned);
  clone.run(gpu);
  gpu.expect_ran({.curated1 = 1});

  const Graph parent;
  CUgraphNode child_node = nullptr;
  OK(cuda().cuGraphAddChildGraphNode(&child_node, parent.get(), nullptr, 0, graph.get()));
  Arguments more(gpu.marks(), 2, 72);
  parent.add(step, &more, child_node);
  parent.run(gpu, 2);
  gpu.expect_ran({.curated1 = 3, .curated2 = 2});
  gpu.expect_last_value(72);
  gpu.finish({.curated1 = 3, .curated2 = 2}, {.hit = 2});
}

// A node of a clone, or of a child graph, read back and set again: what was read must be what the
// host put into the first.
CASE(graph_clone_read_and_set) {
  const Gpu gpu;
  const CUfunction step = gpu.step();
  const Graph graph;
  Arguments own(gpu.marks(), 2, 75);
  graph.add(step, &own);

  CUgraph cloned = nullptr;
  OK(cuda().cuGraphClone(&cloned, graph.get()));
  const Graph clone(cloned);
  const Graph parent;
  CUgraphNode child_node = nullptr;
  OK(cuda().cuGraphAddChildGraphNode(&child_node, parent.get(), nullptr, 0, graph.get()));
  CUgraph child = nullptr;
  OK(cuda().cuGraphChildGraphNodeGetGraph(child_node, &child));

  long hits = 1;
  for (const CUgraph one : {clone.get(), child}) {
    CUgraphNode node = nullptr;
    size_t count = 1;
    OK(cuda().cuGraphGetNodes(one, &node, &count));
    NodeParams2 params = params_of(node);
    CHECK(kernel_name(params) == kStep);
    EXPECT_EQUAL(2, shape_of(params));
    EXPECT_EQUAL(75, value_of(params));
    OK(cuda().cuGraphKernelNodeSetParams_v2(node, &params));
    ++hits;
  }
  clone.run(gpu);
  gpu.expect_last_value(75);
  parent.run(gpu);
  gpu.expect_last_value(75);
  gpu.finish({.curated2 = 2}, {.hit = hits});
}

// An executable graph takes over what another graph holds.
CASE(graph_update) {
  const Gpu gpu;
  const CUfunction step = gpu.step();
  const Graph first(capture_of(gpu, step, 1, 81));
  const Executable executable(first.get());
  executable.run(gpu);
  gpu.expect_last_value(81);
  const auto update_from = [&](const Graph& graph) {
    CUgraphExecUpdateResultInfo info;
    memset(&info, 0, sizeof info);
    OK(cuda().cuGraphExecUpdate_v2(executable.get(), graph.get(), &info));
  };
  const Graph second(capture_of(gpu, step, 1, 82));
  update_from(second);
  executable.run(gpu);
  gpu.expect_last_value(82);
  const Graph third(capture_of(gpu, step, 2, 83));
  update_from(third);
  executable.run(gpu);
  gpu.expect_last_value(83);
  const Graph fourth(capture_of(gpu, step, kNoSolution, 84));
  update_from(fourth);
  executable.run(gpu);
  gpu.expect_last_value(84);
  gpu.finish({.step = 1, .curated1 = 2, .curated2 = 1}, {.hit = 3, .no_solution = 1});
}

// Replays are the driver's alone: no call of the shim's own, no count.
CASE(graph_replays_cost_nothing) {
  const Gpu gpu;
  const Graph graph(capture_of(gpu, gpu.step(), 1, 91));
  const Executable executable(graph.get());
  const uint64_t before = cuda().simcuda_call_count("*");
  for (int i = 0; i < 50; ++i) OK(cuda().cuGraphLaunch(executable.get(), gpu.stream()));
  EXPECT_EQUAL(before + 50, cuda().simcuda_call_count("*"));
  gpu.finish({.curated1 = 50}, {.hit = 1});
}

// The graph outlives the handle that it was made with: the node's replacement does, too.
CASE(graph_outlives_its_module) {
  const Gpu gpu;
  const CUmodule module = gpu.load_module();
  const Graph graph;
  Arguments own(gpu.marks(), 1, 95);
  graph.add(gpu.function(module), &own);
  const Executable executable(graph.get());
  OK(cuda().cuModuleUnload(module));
  // Its handles go to another kernel.
  const CUfunction other = gpu.function(gpu.load_module(kOther));
  OK(gpu.launch_other(other));
  executable.run(gpu, 2);
  gpu.finish({.step = 1, .curated1 = 2}, {.hit = 1, .untracked = 1});
}

// A capture that is invalidated, and one that joins a second stream through an event.
CASE(graph_capture_fails) {
  const Gpu gpu;
  const CUfunction step = gpu.step();
  OK(cuda().cuStreamBeginCapture_v2(gpu.stream(), CU_STREAM_CAPTURE_MODE_GLOBAL));
  OK(gpu.launch(step, 1));
  CHECK(cuda().cuStreamSynchronize(gpu.stream()) != CUDA_SUCCESS);
  CUgraph graph = nullptr;
  EXPECT_CODE(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED,
              cuda().cuStreamEndCapture(gpu.stream(), &graph));
  OK(gpu.launch(step, 2));
  gpu.finish({.curated2 = 1}, {.hit = 2});
}
