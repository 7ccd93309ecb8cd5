// Kernels in bodies of conditional nodes: replaced one for one, in the host's own graph, and counted apart, since the
// device decides how often they run.
#include <thread>

#include "tests/conformance/hosts/graphs.h"

namespace conform {
namespace {

void add_step(CUgraph graph, CUfunction function, Arguments&& arguments) {
  add_kernel(graph, node_params2(function, &arguments));
}

// As the host reads it.
std::string only_kernel(CUgraph graph) { return kernel_name(params_of(only_node(graph))); }

}  // namespace
}  // namespace conform

using namespace conform;

GPU_CASE(exec_with_conditional_nodes) {
  const auto own = gpu.handles();
  const Graph graph;
  const CUgraph body = add_conditional(gpu, graph.get()).body;
  add_step(body, own.step, Arguments(gpu.marks(), 1, 5));
  graph.add(own.step, Arguments(gpu.marks(), 2, 6));
  const Executable executable(graph.get());
  CHECK(only_kernel(body) == kStep);
  executable.run(gpu, 2);
  gpu.finish({.curated1 = 2, .curated2 = 2}, {.hit = 1, .in_bodies = 2});
}

// Kernels in a body, in a child graph of it and in a body of that; another graph whose node has the handle of one that
// is gone. What needs more than other parameters keeps its original.
GPU_CASE(exec_with_bodies) {
  const auto own = gpu.handles();
  const auto fill = [&](CUgraph graph, int shape) {
    add_step(graph, own.step, Arguments(gpu.marks(), shape, 5));
    add_step(graph, own.free, Arguments(gpu.marks(), shape, 5));
  };
  {
    const Graph graph;
    const CUgraph body = add_conditional(gpu, graph.get()).body;
    fill(body, 1);
    const Graph child;
    child.add(own.step, Arguments(gpu.marks(), 2, 5));
    (void)add_child(body, child.get());
    graph.run(gpu, 3);
  }
  const Graph graph;
  const CUgraph body = add_conditional(gpu, graph.get()).body;
  fill(body, 3);
  fill(add_conditional(gpu, body, false).body, 1);
  graph.run(gpu, 2);
  gpu.finish({.step = 2, .free = 5, .curated1 = 3, .curated2 = 3}, {.in_bodies = 13});
}

// An update takes the values in bodies over, and the exec keeps its replacements; also where all kernels lie there.
GPU_CASE(exec_update_with_bodies) {
  const auto own = gpu.handles();
  for (const bool has_others : {false, true}) {
    const Graph graph;
    if (has_others) graph.add(own.free, Arguments(gpu.marks(), 1, 1));
    const CUgraph body = add_conditional(gpu, graph.get()).body;
    Arguments first(gpu.marks(), 1, 5);
    const CUgraphNode node = add_kernel(body, node_params2(own.step, &first));
    const Executable executable(graph.get());
    executable.run(gpu);
    Arguments second(gpu.marks(), 2, 6);
    const NodeParams2 params = node_params2(own.step, &second);
    OK(cuda().cuGraphKernelNodeSetParams_v2(node, &params));
    auto info = zeroed<CUgraphExecUpdateResultInfo>();
    if (cuda().cuGraphExecUpdate_v2(executable.get(), graph.get(), &info) != CUDA_SUCCESS) {
      skip("this driver does not update an exec with conditional nodes");
    }
    executable.run(gpu);
    CHECK(only_kernel(body) == kStep);
    EXPECT_EQUAL(6, value_of(params_of(node)));
  }
  gpu.finish({.free = 2, .curated1 = 2, .curated2 = 2}, {.untracked = 1, .in_bodies = 4});
}

// Every launch is to be checked, which needs a copy of the graph.
GPU_CASE(bodies_cannot_be_checked) {
  const auto own = gpu.handles();
  const Graph graph;
  add_step(add_conditional(gpu, graph.get()).body, own.step, Arguments(gpu.marks(), 1, 5));
  graph.run(gpu, 2);
  gpu.finish({.step = 2}, {.in_bodies = 2});
}

// Each thread's own graphs.
GPU_CASE(bodies_of_threads) {
  const auto own = gpu.handles();
  constexpr int kThreads = 4;
  constexpr int kRounds = 50;
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      gpu.enter();
      for (int k = 0; k < kRounds; ++k) {
        const Graph graph;
        const CUgraph body = add_conditional(gpu, graph.get()).body;
        add_step(body, own.step, Arguments(gpu.marks(), 1, 5));
        const Executable executable(graph.get());
        CHECK(only_kernel(body) == kStep);
        executable.run(gpu);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  gpu.finish({.curated1 = kThreads * kRounds}, {.in_bodies = kThreads * kRounds});
}

// What fails leaves the original, and the host's graph as it was; a solution that cannot load fails the host's call.
GPU_CASE(bodies_survive_failures) {
  const auto own = gpu.handles();
  const auto run = [&](const char* fault, const char* runs) {
    const Graph graph;
    const CUgraph body = add_conditional(gpu, graph.get()).body;
    add_step(body, own.step, Arguments(gpu.marks(), 1, 5));
    CHECK(cuda().simcuda_set_faults(fault) == 1);
    const Executable executable(graph.get());
    CHECK(cuda().simcuda_set_faults("") == 1);
    const long before = ran(runs);
    executable.run(gpu);
    EXPECT_EQUAL(before + 1, ran(runs));
    CHECK(only_kernel(body) == kStep);
  };
  run("cuGraphInstantiateWithFlags=2*1", kStep);
  run("cuGraphKernelNodeSetParams_v2=2*1", kStep);
  run("cuGraphKernelNodeGetParams_v2=2*1", kStep);
  run("", "curated_n1");
  // The device itself may change the nodes, or launch the graph.
  for (const bool is_updatable : {false, true}) {
    const Graph graph;
    const CUgraph body = add_conditional(gpu, graph.get()).body;
    Arguments of_step(gpu.marks(), 1, 5);
    const CUgraphNode node = add_kernel(body, node_params2(own.step, &of_step));
    if (is_updatable) {
      auto value = zeroed<CUlaunchAttributeValue>();
      value.deviceUpdatableKernelNode.deviceUpdatable = 1;
      OK(cuda().cuGraphKernelNodeSetAttribute(
          node, CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE, &value));
    }
    CUgraphExec executable = nullptr;
    OK(cuda().cuGraphInstantiateWithFlags(
        &executable, graph.get(), is_updatable ? 0 : CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH));
    OK(cuda().cuGraphLaunch(executable, gpu.stream()));
    OK(cuda().cuGraphExecDestroy(executable));
  }
  gpu.finish({.step = 5, .curated1 = 1}, {.in_bodies = 6});
}

// Replacements load when their kernel is looked up; one that could not is loaded when it is needed.
GPU_CASE(body_whose_solution_cannot_load) {
  CHECK(cuda().simcuda_set_faults("cuLibraryLoadData=2*5") == 1);
  const CUfunction step = gpu.step();
  const Graph graph;
  add_step(add_conditional(gpu, graph.get()).body, step, Arguments(gpu.marks(), 1, 5));
  CHECK(cuda().simcuda_set_faults("cuLibraryLoadData=2*2") == 1);
  CUgraphExec executable = nullptr;
  EXPECT_CODE(CUDA_ERROR_OUT_OF_MEMORY,
              cuda().cuGraphInstantiateWithFlags(&executable, graph.get(), 0));
  CHECK(cuda().simcuda_set_faults("") == 1);
  graph.run(gpu);
  gpu.finish({.curated1 = 1}, {.in_bodies = 1});
}
