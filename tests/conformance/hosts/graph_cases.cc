// Graphs, beyond hook_cases.cc's case for each function (number 5 of tools/doc/driver_facts.md,
// section 7). If a caller reads a node's parameters and sets them again, the graph computes what
// the caller asked for, whatever it does in between. Replays cost nothing, and copies and updates
// keep the parameters.

#include <utility>

#include "tests/conformance/hosts/graphs.h"

namespace conform {
namespace {

CUgraph capture_of(const Gpu& gpu, CUfunction function, int shape, int value) {
  return gpu.capture([&] { OK(gpu.launch(function, shape, value)); });
}

}  // namespace
}  // namespace conform

using namespace conform;

// Params are read and set again unchanged, many times, of added and of captured nodes.
GPU_CASE(graph_read_and_set_again) {
  const CUfunction step = gpu.step();
  const Graph added;
  added.add(step, Arguments(gpu.marks(), 1, 11));
  const Graph captured(capture_of(gpu, step, 2, 12));
  for (int i = 0; i < 3; ++i) {
    for (const Graph* graph : {&added, &captured}) {
      const CUgraphNode node = graph->nodes().at(0);
      const NodeParams2 params = params_of(node);
      CHECK(kernel_name(params) == kStep);
      OK(cuda().cuGraphKernelNodeSetParams_v2(node, &params));
    }
  }
  added.run_for(gpu, 11);
  captured.run_for(gpu, 12);
  gpu.finish({.curated1 = 1, .curated2 = 1}, {.hit = 2});
}

// The pattern of frameworks that patch one argument of a captured node before each replay.
GPU_CASE(graph_patch_one_argument) {
  const CUfunction step = gpu.step();
  const Graph graph(capture_of(gpu, step, 1, 20));
  const CUgraphNode node = graph.nodes().at(0);
  const Executable executable(graph.get());
  executable.run_for(gpu, 20);
  for (int value = 21; value < 25; ++value) {
    NodeParams2 params = params_of(node);
    EXPECT_EQUAL(20, value_of(params));
    int changed = value;
    void* pointers[3] = {params.kernelParams[0], params.kernelParams[1], &changed};
    params.kernelParams = pointers;
    OK(cuda().cuGraphExecKernelNodeSetParams_v2(executable.get(), node, &params));
    executable.run_for(gpu, value);
  }
  // The graph itself was not touched.
  graph.run_for(gpu, 20);
  gpu.finish({.curated1 = 6}, {.hit = 2});
}

// Other frameworks write through the pointers that they are given, and set what they read.
GPU_CASE(graph_write_through_pointers) {
  const CUfunction step = gpu.step();
  const Graph graph(capture_of(gpu, step, 1, 30));
  const CUgraphNode node = graph.nodes().at(0);
  NodeParams2 params = params_of(node);
  *static_cast<int*>(params.kernelParams[2]) = 31;
  *static_cast<int*>(params.kernelParams[1]) = 2;
  OK(cuda().cuGraphKernelNodeSetParams_v2(node, &params));
  EXPECT_EQUAL(31, value_of(params_of(node)));
  EXPECT_EQUAL(2, shape_of(params_of(node)));
  graph.run_for(gpu, 31);
  // Set to a shape without a solution: the original runs, with the original's arguments.
  params = params_of(node);
  *static_cast<int*>(params.kernelParams[1]) = kNoSolution;
  OK(cuda().cuGraphKernelNodeSetParams_v2(node, &params));
  graph.run_for(gpu, 31);
  CHECK(kernel_name(params_of(node)) == kStep);
  // And back.
  params = params_of(node);
  *static_cast<int*>(params.kernelParams[1]) = 1;
  OK(cuda().cuGraphKernelNodeSetParams_v2(node, &params));
  graph.run(gpu);
  gpu.finish({.step = 1, .curated1 = 1, .curated2 = 1}, {.hit = 2, .no_solution = 1});
}

// A preferred cluster is the original's: a replacement has the cluster that its solution says alone.
GPU_CASE(graph_preferred_cluster) {
  const auto own = gpu.handles();
  CUlaunchAttribute attributes[] = {attribute_of(CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION),
                                    attribute_of(CU_LAUNCH_ATTRIBUTE_PREFERRED_CLUSTER_DIMENSION)};
  attributes[0].value.clusterDim = {2, 1, 1};
  attributes[1].value.preferredClusterDim = {4, 1, 1};
  CUlaunchConfig config = launch_config(gpu.stream());
  config.gridDimX = 4;
  config.attrs = attributes;
  config.numAttrs = 2;
  for (const int shape : {1, 3, kNoSolution}) {
    Arguments own_arguments(gpu.marks(), shape, 5);
    const Graph graph(gpu.capture(
        [&] { OK(cuda().cuLaunchKernelEx(&config, own.step, own_arguments.params(), nullptr)); }));
    graph.run_for(gpu, 5);
    if (!cuda().is_simulated) continue;
    const SimcudaLaunch last = last_launch();
    const unsigned wanted[] = {shape == 1 ? 1U : 2U, shape == 1 ? 1U : shape == 3 ? 2U : 4U};
    EXPECT_EQUAL(wanted[0], last.cluster[0]);
    for (uint32_t i = 0; i < last.attribute_count; ++i) {
      if (last.attribute_ids[i] != CU_LAUNCH_ATTRIBUTE_PREFERRED_CLUSTER_DIMENSION) continue;
      CUlaunchAttributeValue value;
      memcpy(&value, last.attribute_values[i], sizeof value);
      EXPECT_EQUAL(wanted[1], value.preferredClusterDim.x);
    }
  }
  gpu.finish({.step = 1, .curated1 = 1, .curated3 = 1}, {.hit = 2, .no_solution = 1});
}

// A replacement's cluster is set and removed with it; afterwards the host's own cluster is set
// again.
GPU_CASE(graph_cluster_comes_and_goes) {
  const auto own = gpu.handles();
  const Graph graph;
  const CUgraphNode node = graph.add(own.step, Arguments(gpu.marks(), 3, 35));
  const auto run = [&](CUfunction function, int shape, unsigned cluster) {
    Arguments passed(gpu.marks(), shape, 36);
    const NodeParams2 params = node_params2(function, &passed);
    OK(cuda().cuGraphKernelNodeSetParams_v2(node, &params));
    graph.run_for(gpu, 36);
    if (!cuda().is_simulated) return;
    const SimcudaLaunch last = last_launch(nullptr);
    EXPECT_EQUAL(cluster, last.cluster[0]);
  };
  graph.run(gpu);
  run(own.step, 2, 1);
  run(own.step, 3, 2);
  run(own.step, 1, 1);
  run(own.step, 3, 2);
  run(own.step, kNoSolution, 1);
  run(own.step, 3, 2);
  run(own.free, 1, 1);
  gpu.finish({.step = 1, .free = 1, .curated1 = 1, .curated2 = 1, .curated3 = 4},
             {.hit = 6, .no_solution = 1, .untracked = 1});
}

// Parameters of one node put into another.
GPU_CASE(graph_copy_between_nodes) {
  const CUmodule module = gpu.load_module();
  const Graph graph;
  const CUgraphNode one = graph.add(gpu.function(module), Arguments(gpu.marks(), 1, 41));
  const CUgraphNode two =
      graph.add(gpu.function(module, kFree), Arguments(gpu.marks(), 2, 42), one);
  const NodeParams2 params = params_of(one);
  OK(cuda().cuGraphKernelNodeSetParams_v2(two, &params));
  graph.run(gpu);
  gpu.expect_ran({.curated1 = 2});
  CHECK(kernel_name(params_of(two)) == kStep);
  EXPECT_EQUAL(41, value_of(params_of(two)));
  // A node of another graph, made from what was read.
  const Graph other;
  add_kernel(other.get(), params_of(two));
  other.run(gpu);
  gpu.finish({.curated1 = 3}, {.hit = 3});
}

// A kernel given by its CUkernel is read back as a CUkernel or as its function, as the driver does.
GPU_CASE(graph_kernel_handles) {
  const CUkernel kernel = gpu.kernel(gpu.load_library());
  const Graph graph;
  Arguments own(gpu.marks(), 1, 51);
  const CUgraphNode node = add_kernel(graph.get(), node_params2(kernel, &own));
  const NodeParams2 params = params_of(node);
  CHECK(kernel_name(params) == kStep);
  EXPECT_EQUAL(51, value_of(params));
  OK(cuda().cuGraphKernelNodeSetParams_v2(node, &params));
  graph.run(gpu);
  // The first struct has no CUkernel: it returns the kernel's function.
  NodeParams1 narrow;
  OK(cuda().cuGraphKernelNodeGetParams(node, &narrow));
  CHECK(narrow.func != nullptr);
  const char* name = nullptr;
  OK(cuda().cuFuncGetName(&name, narrow.func));
  CHECK(strcmp(name, kStep) == 0);
  OK(cuda().cuGraphKernelNodeSetParams(node, &narrow));
  graph.run_for(gpu, 51);
  gpu.finish({.curated1 = 2}, {.hit = 2});
}

// Arguments in a packed buffer, which the host may change afterwards: nodes hold copies.
GPU_CASE(graph_packed_arguments) {
  const CUfunction step = gpu.step();
  const Graph graph;
  Arguments own(gpu.marks(), 1, 61);
  NodeParams2 params = node_params2(step, &own);
  params.kernelParams = nullptr;
  params.extra = own.extra();
  const CUgraphNode node = add_kernel(graph.get(), params);
  memset(own.packed(), 0xff, own.packed_bytes());
  EXPECT_EQUAL(61, value_of(params_of(node)));
  graph.run_for(gpu, 61);
  gpu.finish({.curated1 = 1}, {.hit = 1});
}

// Clones and child graphs keep the replacement; their nodes may be read and set like others.
GPU_CASE(graph_clone_and_child) {
  const CUfunction step = gpu.step();
  const Graph graph;
  graph.add(step, Arguments(gpu.marks(), 1, 71));

  const Graph clone(clone_of(graph.get()));
  clone.run(gpu);
  gpu.expect_ran({.curated1 = 1});

  const Graph parent;
  const CUgraphNode child_node = add_child(parent.get(), graph.get());
  parent.add(step, Arguments(gpu.marks(), 2, 72), child_node);
  parent.run(gpu, 2);
  gpu.expect_ran({.curated1 = 3, .curated2 = 2});
  gpu.expect_last_value(72);
  gpu.finish({.curated1 = 3, .curated2 = 2}, {.hit = 3});
}

// A node of a clone, or of a child graph, is read and set again: the params read must be those that
// the host gave to the first graph.
GPU_CASE(graph_clone_read_and_set) {
  const CUfunction step = gpu.step();
  const Graph graph;
  graph.add(step, Arguments(gpu.marks(), 2, 75));

  const Graph clone(clone_of(graph.get()));
  const Graph parent;
  const CUgraphNode child_node = add_child(parent.get(), graph.get());
  CUgraph child = nullptr;
  OK(cuda().cuGraphChildGraphNodeGetGraph(child_node, &child));

  for (const CUgraph one : {clone.get(), child}) {
    const CUgraphNode node = only_node(one);
    NodeParams2 params = params_of(node);
    CHECK(kernel_name(params) == kStep);
    EXPECT_EQUAL(2, shape_of(params));
    EXPECT_EQUAL(75, value_of(params));
    OK(cuda().cuGraphKernelNodeSetParams_v2(node, &params));
  }
  clone.run_for(gpu, 75);
  parent.run_for(gpu, 75);
  gpu.finish({.curated2 = 2}, {.hit = 2});
}

// An executable graph is updated from another graph.
GPU_CASE(graph_update) {
  const CUfunction step = gpu.step();
  const Graph first(capture_of(gpu, step, 1, 81));
  const Executable executable(first.get());
  executable.run_for(gpu, 81);
  // The replacement of shape 3 has a cluster, which an update cannot set in an exec.
  for (const auto& [shape, value] :
       {std::pair(1, 82), {2, 83}, {3, 84}, {2, 85}, {kNoSolution, 86}}) {
    const Graph next(capture_of(gpu, step, shape, value));
    executable.update(next);
    executable.run_for(gpu, value);
  }
  // The same for an exec of the shim's own, which has a cluster in another node.
  const auto capture_two = [&](int shape, int value) {
    return gpu.capture([&] {
      OK(gpu.launch(step, 3, value));
      OK(gpu.launch(step, shape, value));
    });
  };
  const Graph two(capture_two(1, 87));
  const Executable own(two.get());
  own.run_for(gpu, 87);
  for (const auto& [shape, value] : {std::pair(3, 88), {1, 89}}) {
    const Graph next(capture_two(shape, value));
    own.update(next);
    own.run_for(gpu, value);
    SimcudaLaunch last;
    const char* const kernel = shape == 3 ? "curated_n3" : "curated_n1";
    if (cuda().is_simulated && cuda().simcuda_last_launch(kernel, &last) == 1) {
      EXPECT_EQUAL(shape == 3 ? 2 : 1, last.cluster[0]);
    }
  }
  gpu.finish({.step = 1, .curated1 = 4, .curated2 = 2, .curated3 = 5}, {.hit = 3});
}

// A replay is one driver call; the shim makes none of its own.
GPU_CASE(graph_replays_cost_nothing) {
  const Graph graph(capture_of(gpu, gpu.step(), 1, 91));
  const Executable executable(graph.get());
  const long before = calls("*");
  for (int i = 0; i < 50; ++i) OK(cuda().cuGraphLaunch(executable.get(), gpu.stream()));
  EXPECT_EQUAL(before + 50, calls("*"));
  gpu.finish({.curated1 = 50}, {.hit = 1});
}

// The graph outlives the handle that it was made with, and so does the node's replacement.
GPU_CASE(graph_outlives_its_module) {
  const CUmodule module = gpu.load_module();
  const Graph graph;
  graph.add(gpu.function(module), Arguments(gpu.marks(), 1, 95));
  const Executable executable(graph.get());
  OK(cuda().cuModuleUnload(module));
  // Another kernel gets its handle.
  const CUfunction other = gpu.function(gpu.load_module(kOther));
  OK(gpu.launch_other(other));
  executable.run(gpu, 2);
  gpu.finish({.step = 1, .curated1 = 2}, {.hit = 1, .untracked = 1});
}

// A capture that is invalidated, and one that joins a second stream through an event.
GPU_CASE(graph_capture_fails) {
  const CUfunction step = gpu.step();
  OK(cuda().cuStreamBeginCapture_v2(gpu.stream(), CU_STREAM_CAPTURE_MODE_GLOBAL));
  OK(gpu.launch(step, 1));
  CHECK(cuda().cuStreamSynchronize(gpu.stream()) != CUDA_SUCCESS);
  CUgraph graph = nullptr;
  EXPECT_CODE(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED,
              cuda().cuStreamEndCapture(gpu.stream(), &graph));
  OK(gpu.launch(step, 2));
  gpu.finish({.curated2 = 1}, {.hit = 1});
}
