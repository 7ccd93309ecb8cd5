// An exec is updated from one graph after the other, and then the process moves: the last graph
// runs, with the replacements of the folder in force. The shim records what an update brings
// (shim/graphs/taken_over.h), and copies the graph only if it must.
#include "tests/conformance/hosts/control.h"
#include "tests/conformance/hosts/cublas.h"
#include "tests/conformance/hosts/graphs.h"

namespace conform {
namespace {

long clones() { return calls("cuGraphClone"); }

// Two kernels, a fill, a copy of what it fills and a node that does nothing, in a chain.
struct Chain {
  Chain(const Gpu& gpu, CUfunction first, int shape, CUfunction second, int value,
        CUdeviceptr memory) {
    CUgraphNode last = kernels[0] = graph.add(first, Arguments(gpu.marks(), shape, value));
    const CUDA_MEMSET_NODE_PARAMS fill = fill_of(memory, static_cast<unsigned>(value));
    OK(cuda().cuGraphAddMemsetNode(&last, graph.get(), &last, 1, &fill, gpu.context()));
    const CUDA_MEMCPY3D copy = copy_of(memory + 8, memory, 4);
    OK(cuda().cuGraphAddMemcpyNode(&last, graph.get(), &last, 1, &copy, gpu.context()));
    copied = last;
    OK(cuda().cuGraphAddEmptyNode(&last, graph.get(), &last, 1));
    kernels[1] = graph.add(second, Arguments(gpu.marks(), shape, value + 1), last);
  }
  Graph graph;
  CUgraphNode kernels[2] = {};
  CUgraphNode copied = nullptr;
};

uint32_t word_at(CUdeviceptr at) {
  uint32_t word = 0;
  OK(cuda().cuMemcpyDtoH_v2(&word, at, sizeof word));
  return word;
}

// Runs the exec, and expects that the copied word is what the chain fills in, and that its last
// kernel ran last.
void expect_chain(const Gpu& gpu, const Executable& executable, int value, CUdeviceptr copy) {
  executable.run_for(gpu, value + 1);
  EXPECT_EQUAL(value, word_at(copy));
}

}  // namespace
}  // namespace conform

using namespace conform;

// Updates with other parameters, kernels and memory; after each two the process moves.
GPU_CASE(swap_and_updated_graphs) {
  const auto own = gpu.handles();
  const CUdeviceptr memory[2] = {device_memory(16), device_memory(16)};
  const Chain first(gpu, own.step, 1, own.free, 10, memory[0]);
  const Executable executable(first.graph.get());
  expect_chain(gpu, executable, 10, memory[0] + 8);
  Control control;
  Ran ran = {.free = 1, .curated1 = 1};
  const auto move = [&](const char* to) {
    if (to == nullptr) {
      CHECK(control.move(AskTarget::off) == AnswerState::moved);
    } else {
      control.must_move(folder(arguments, to));
    }
    EXPECT_EQUAL(1, control.block().moved_graphs);
    EXPECT_EQUAL(0, control.block().kept_graphs);
  };
  const long before = cuda().is_simulated ? clones() : 0;
  int value = 20;
  for (const char* const to : {"b", static_cast<const char*>(nullptr), "a", "none", "b", "a"}) {
    for (int i = 0; i < 2; ++i) {
      // The second time the kernels are swapped.
      value += 10;
      const Chain next(gpu, i == 0 ? own.step : own.free, 1, i == 0 ? own.free : own.step, value,
                       memory[i]);
      executable.update(next.graph);
    }
    move(to);
    expect_chain(gpu, executable, value, memory[1] + 8);
    ++ran.free;
    if (to == nullptr || *to == 'n') {
      ++ran.step;
    } else {
      ++(*to == 'a' ? ran.curated1 : ran.curated2);
    }
    gpu.expect_ran(ran);
    // Clear the memory, so that a stale result would show.
    OK(cuda().cuMemsetD32_v2(memory[1], 0, 4));
  }
  // Each move copies the originals once, to change them; no update has copied a graph.
  if (cuda().is_simulated) EXPECT_EQUAL(before + 6, clones());
  gpu.finish(ran, {.hit = 1, .untracked = 1});
}

// The same graph before a move and after it: its plan is valid for one folder only.
GPU_CASE(swap_and_same_updates) {
  const CUfunction step = gpu.step();
  const Graph graph;
  const CUgraphNode first = graph.add(step, Arguments(gpu.marks(), 1, 1));
  graph.add(step, Arguments(gpu.marks(), kNoSolution, 2), first);
  const Executable executable(graph.get());
  Control control;
  Ran ran;
  const auto update_and_run = [&](long* replaced) {
    const long before = cuda().is_simulated ? clones() : 0;
    for (int i = 0; i < 2; ++i) {
      executable.update(graph);
      executable.run_for(gpu, 2);
      ++*replaced;
      ++ran.step;
      gpu.expect_ran(ran);
    }
    if (cuda().is_simulated) EXPECT_EQUAL(before, clones());
  };
  update_and_run(&ran.curated1);
  for (const char* const to : {"b", "a", "none", "b", static_cast<const char*>(nullptr), "a"}) {
    if (to == nullptr) {
      CHECK(control.move(AskTarget::off) == AnswerState::moved);
    } else {
      control.must_move(folder(arguments, to));
    }
    const bool is_served = to != nullptr && *to != 'n';
    update_and_run(!is_served ? &ran.step : *to == 'a' ? &ran.curated1 : &ran.curated2);
  }
  gpu.finish(ran, {.hit = 1, .no_solution = 1});
}

// What the host sets after an update also runs after a move, since the copy is set, too: by the
// nodes of the graph from which the exec was made, also where another graph that lists the same
// nodes and edges has updated it.
GPU_CASE(swap_and_set_after_updates) {
  const auto own = gpu.handles();
  const CUdeviceptr memory = device_memory(32);
  const Chain chain(gpu, own.step, 1, own.free, 10, memory);
  const Chain other(gpu, own.step, 1, own.free, 20, memory);
  const Executable executable(chain.graph.get());
  Control control;
  const CUDA_MEMCPY3D copy = copy_of(memory + 16, memory, 4);
  executable.update(chain.graph);
  OK(cuda().cuGraphExecMemcpyNodeSetParams(executable.get(), chain.copied, &copy, gpu.context()));
  control.must_move(folder(arguments, "b"));
  EXPECT_EQUAL(1, control.block().moved_graphs);
  expect_chain(gpu, executable, 10, memory + 16);
  executable.update(other.graph);
  OK(cuda().cuGraphExecMemcpyNodeSetParams(executable.get(), chain.copied, &copy, gpu.context()));
  control.must_move(folder(arguments, "a"));
  EXPECT_EQUAL(1, control.block().moved_graphs);
  OK(cuda().cuMemsetD32_v2(memory, 0, 8));
  expect_chain(gpu, executable, 20, memory + 16);
  // The kernels, too, and then the next update brings its own values.
  executable.update(other.graph);
  executable.set(chain.kernels[1], own.free, Arguments(gpu.marks(), 1, 31));
  executable.set(chain.kernels[0], own.step, Arguments(gpu.marks(), 1, 30));
  control.must_move(folder(arguments, "b"));
  EXPECT_EQUAL(1, control.block().moved_graphs);
  OK(cuda().cuMemsetD32_v2(memory, 0, 8));
  executable.run_for(gpu, 31);
  executable.enable(chain.kernels[0], false);
  executable.run_for(gpu, 31);
  executable.enable(chain.kernels[0], true);
  executable.update(other.graph);
  control.must_move(folder(arguments, "a"));
  executable.run_for(gpu, 21);
  gpu.finish({.free = 5, .curated1 = 2, .curated2 = 2}, {.hit = 1, .untracked = 1});
}

// A graph that lists its nodes otherwise, or that is copied for each update, tells its nodes only if
// the exec was made from it. Otherwise the exec runs as it is from the first set node on, until it
// is updated again.
GPU_CASE(swap_and_set_after_copied_updates) {
  const auto own = gpu.handles();
  const auto make = [&](int value) {
    const Graph child;
    auto graph = std::make_unique<Graph>();
    const CUgraphNode first = graph->add(own.step, Arguments(gpu.marks(), 1, value));
    CUgraphNode node = nullptr;
    OK(cuda().cuGraphAddChildGraphNode(&node, graph->get(), &first, 1, child.get()));
    return graph;
  };
  const auto graph = make(1);
  const auto other = make(2);
  const CUgraphNode node = graph->nodes().at(0);
  const Executable executable(graph->get());
  Control control;
  executable.update(*graph);
  executable.set(node, own.step, Arguments(gpu.marks(), 1, 3));
  control.must_move(folder(arguments, "b"));
  EXPECT_EQUAL(1, control.block().moved_graphs);
  executable.run_for(gpu, 3);
  executable.update(*other);
  executable.set(node, own.step, Arguments(gpu.marks(), 1, 4));
  control.must_move(folder(arguments, "a"));
  EXPECT_EQUAL(0, control.block().moved_graphs + control.block().kept_graphs);
  executable.run_for(gpu, 4);
  executable.update(*other);
  control.must_move(folder(arguments, "b"));
  EXPECT_EQUAL(1, control.block().moved_graphs);
  executable.run_for(gpu, 2);
  gpu.finish({.step = 1, .curated2 = 2}, {.hit = 1});
}

// A child graph that the host sets goes along with moves, between the kernels before and after it,
// however often it is set, and its own child graphs with it. From the first one on in which a kernel
// was disabled, the exec runs as it is.
GPU_CASE(swap_and_child_graphs_set) {
  const auto own = gpu.handles();
  const auto make_child = [&](int value) {
    const Graph inner;
    inner.add(own.step, Arguments(gpu.marks(), 1, value + 1));
    auto child = std::make_unique<Graph>();
    const CUgraphNode first = child->add(own.step, Arguments(gpu.marks(), 1, value));
    CUgraphNode node = nullptr;
    OK(cuda().cuGraphAddChildGraphNode(&node, child->get(), &first, 1, inner.get()));
    return child;
  };
  const auto child = make_child(10);
  const Graph graph;
  const CUgraphNode before = graph.add(own.free, Arguments(gpu.marks(), 1, 1));
  CUgraphNode node = nullptr;
  OK(cuda().cuGraphAddChildGraphNode(&node, graph.get(), &before, 1, child->get()));
  graph.add(own.free, Arguments(gpu.marks(), 1, 2), node);
  const Executable executable(graph.get());
  const auto set_child = [&](int value) {
    const auto other = make_child(value);
    OK(cuda().cuGraphExecChildGraphNodeSetParams(executable.get(), node, other->get()));
  };
  Control control;
  Ran ran;
  const auto expect_run = [&](long* kernels) {
    executable.run_for(gpu, 2);
    *kernels += 2;
    ran.free += 2;
    gpu.expect_ran(ran);
  };
  for (const char* const to : {"b", "a", "none", "b"}) {
    long* const now = *to == 'b' ? &ran.curated2 : *to == 'a' ? &ran.curated1 : &ran.step;
    set_child(20);
    control.must_move(folder(arguments, to));
    EXPECT_EQUAL(1, control.block().moved_graphs);
    expect_run(now);
    set_child(30);
    set_child(40);
    expect_run(now);
  }
  CUgraph held = nullptr;
  size_t count = 1;
  CUgraphNode disabled = nullptr;
  OK(cuda().cuGraphChildGraphNodeGetGraph(node, &held));
  OK(cuda().cuGraphGetRootNodes(held, &disabled, &count));
  executable.enable(disabled, false);
  set_child(50);
  control.must_move(folder(arguments, "a"));
  EXPECT_EQUAL(0, control.block().moved_graphs + control.block().kept_graphs);
  gpu.finish(ran, {.hit = 2, .untracked = 2});
}

// An update that the driver refuses changes nothing. A copy to which the recorded parameters cannot
// be applied is not used.
GPU_CASE(swap_and_refused_updates) {
  const CUfunction step = gpu.step();
  const auto make = [&](int value) {
    auto graph = std::make_unique<Graph>();
    graph->add(step, Arguments(gpu.marks(), 1, value));
    return graph;
  };
  const auto graph = make(1);
  const Executable executable(graph->get());
  Control control;
  executable.update(*make(2));
  CHECK(cuda().simcuda_set_faults("cuGraphExecUpdate_v2=2*2") == 1);
  auto info = zeroed<CUgraphExecUpdateResultInfo>();
  CHECK(cuda().cuGraphExecUpdate_v2(executable.get(), make(3)->get(), &info) != CUDA_SUCCESS);
  CHECK(cuda().simcuda_set_faults("") == 1);
  control.must_move(folder(arguments, "b"));
  EXPECT_EQUAL(1, control.block().moved_graphs);
  executable.run_for(gpu, 2);

  executable.update(*make(4));
  CHECK(cuda().simcuda_set_faults("cuGraphKernelNodeSetParams_v2=2*1") == 1);
  control.must_move(folder(arguments, "a"));
  CHECK(cuda().simcuda_set_faults("") == 1);
  EXPECT_EQUAL(1, control.block().kept_graphs);
  executable.run_for(gpu, 4);
  gpu.expect_ran({.curated2 = 2});
  control.must_move(folder(arguments, "b"));
  control.must_move(folder(arguments, "a"));
  EXPECT_EQUAL(1, control.block().moved_graphs);
  executable.run_for(gpu, 4);
  gpu.finish({.curated1 = 1, .curated2 = 2}, {.hit = 1});
}

// A refused update has a function whose handle another function with other parameters gets
// afterwards.
GPU_CASE(swap_and_refused_functions) {
  const CUfunction step = gpu.step();
  const Graph first;
  first.add(step, Arguments(gpu.marks(), 1, 1));
  const Executable executable(first.get());
  Control control;
  const CUmodule module = gpu.load_module(kOther);
  const CUfunction other = gpu.function(module);
  {
    const Graph refused;
    refused.add(other, Arguments(Arguments::Other{}, gpu.marks(), 2));
    CHECK(cuda().simcuda_set_faults("cuGraphExecUpdate_v2=2*2") == 1);
    auto info = zeroed<CUgraphExecUpdateResultInfo>();
    CHECK(cuda().cuGraphExecUpdate_v2(executable.get(), refused.get(), &info) != CUDA_SUCCESS);
    CHECK(cuda().simcuda_set_faults("") == 1);
  }
  OK(cuda().cuModuleUnload(module));
  const CUfunction again = gpu.function(gpu.load_module());
  CHECK(other == again);
  {
    const Graph next;
    next.add(again, Arguments(gpu.marks(), 1, 3));
    executable.update(next);
  }
  control.must_move(folder(arguments, "b"));
  EXPECT_EQUAL(1, control.block().moved_graphs);
  executable.run_for(gpu, 3);
  gpu.finish({.curated2 = 1}, {.hit = 1});
}

// The copy still holds a kernel that the exec no longer uses, and whose module is unloaded: then
// the copy cannot be set. The next update copies the graph.
GPU_CASE(swap_and_updates_of_ended_modules) {
  const CUfunction step = gpu.step();
  const CUmodule module = gpu.load_module();
  const auto make = [&](CUfunction function, int value) {
    auto graph = std::make_unique<Graph>();
    graph->add(function, Arguments(gpu.marks(), 1, value));
    return graph;
  };
  auto graph = make(gpu.function(module), 1);
  const Executable executable(graph->get());
  Control control;
  executable.update(*make(step, 2));
  graph.reset();
  OK(cuda().cuModuleUnload(module));
  control.must_move(folder(arguments, "b"));
  EXPECT_EQUAL(0, control.block().moved_graphs);
  EXPECT_EQUAL(1, control.block().kept_graphs);
  executable.run_for(gpu, 2);
  executable.update(*make(step, 3));
  control.must_move(folder(arguments, "a"));
  EXPECT_EQUAL(1, control.block().moved_graphs);
  executable.run_for(gpu, 3);
  gpu.finish({.curated1 = 2}, {.hit = 1});
}

namespace {

// Makes a graph in which a kernel waits for two others; `early`: the one whose end it need not wait
// for.
CUgraph make_join(const Gpu& gpu, CUfunction step, int value, int early, bool is_reversed) {
  CUgraph graph = nullptr;
  OK(cuda().cuGraphCreate(&graph, 0));
  CUgraphNode nodes[3];
  for (CUgraphNode& node : nodes) {
    Arguments of_node(gpu.marks(), 1, value);
    node = add_kernel(graph, node_params2(step, &of_node));
  }
  for (int k = 0; k < 2; ++k) {
    const int i = is_reversed ? 1 - k : k;
    const CUgraphEdgeData data = {.from_port = CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC,
                                  .to_port = 0,
                                  .type = CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC,
                                  .reserved = {}};
    OK(cuda().cuGraphAddDependencies_v2(graph, &nodes[i], &nodes[2], i == early ? &data : nullptr,
                                        1));
  }
  return graph;
}

}  // namespace

// The copy is kept if edges are added in another order, but not if another edge lets a kernel begin
// early. No pattern knows these kernels, so no new copy is made.
GPU_CASE(updates_keep_a_copy_with_the_same_edges) {
  const CUfunction free = gpu.handles().free;
  const Graph first(make_join(gpu, free, 1, 0, false));
  const Executable executable(first.get());
  const int64_t live = cuda().simcuda_live_count("graph");
  const long before = clones();
  const auto update = [&](int value, int early, bool is_reversed) {
    executable.update(Graph(make_join(gpu, free, value, early, is_reversed)));
    executable.run_for(gpu, value);
    return live - cuda().simcuda_live_count("graph");
  };
  EXPECT_EQUAL(0, update(2, 0, true));
  EXPECT_EQUAL(0, update(3, 0, false));
  EXPECT_EQUAL(1, update(4, 1, false));
  EXPECT_EQUAL(before, clones());
  gpu.finish({.free = 9}, {.untracked = 3});
}

// One node stays unchanged, the other gets other values and then another kernel: a plan is used
// only for equal values.
GPU_CASE(updates_follow_their_values) {
  const auto own = gpu.handles();
  const auto make = [&](CUfunction function, int shape, int value) {
    auto graph = std::make_unique<Graph>();
    const CUgraphNode first = graph->add(own.step, Arguments(gpu.marks(), 1, 1));
    CUgraphNode between = nullptr;  // after it nothing begins early
    OK(cuda().cuGraphAddEmptyNode(&between, graph->get(), &first, 1));
    graph->add(function, Arguments(gpu.marks(), shape, value), between);
    return graph;
  };
  const Executable executable(make(own.step, 1, 2)->get());
  Ran ran;
  const long before = clones();
  const auto expect = [&](CUfunction function, int shape, int value, long* counter) {
    for (int i = 0; i < 2; ++i) {
      executable.update(*make(function, shape, value));
      executable.run_for(gpu, value);
      ++ran.curated1;
      ++*counter;
      gpu.expect_ran(ran);
    }
  };
  expect(own.step, 1, 3, &ran.curated1);
  expect(own.step, 1, kRefusedValue, &ran.step);
  expect(own.step, kNoSolution, 4, &ran.step);
  expect(own.step, 2, 4, &ran.curated2);
  expect(own.free, 2, 4, &ran.free);
  expect(own.step, 2, kRefusedValue, &ran.step);
  expect(own.step, 1, kRefusedValue + 1, &ran.curated1);
  EXPECT_EQUAL(before, clones());
  gpu.finish(ran, {.hit = 2});
}

// After an update kernels begin early where they may, and then in an exec of the shim's own.
GPU_CASE(updates_begin_early) {
  const CUfunction step = gpu.step();
  const auto make = [&](int after) {
    return std::make_unique<Graph>(gpu.capture([&] {
      OK(gpu.launch(step, 2, 1));
      OK(gpu.launch(step, after, 2));
    }));
  };
  const Executable executable(make(1)->get());
  Ran ran;
  for (const int after : {1, 1, 2, 1, 2, 2, 1}) {
    const long added = calls("cuGraphAddDependencies_v2");
    executable.update(*make(after));
    executable.run_for(gpu, 2);
    EXPECT_EQUAL(after == 2 ? 1 : 0, calls("cuGraphAddDependencies_v2") - added);
    ++(after == 1 ? ran.curated1 : ran.curated2);
    ++ran.curated2;
    gpu.expect_ran(ran);
  }
  gpu.finish(ran, {.hit = 2});
}

// The shim tries only once to record a graph that must be copied because of its size. A refused
// update from a graph that would have to be copied has no effect on later updates.
GPU_CASE(updates_that_are_copied_are_tried_once) {
  const CUfunction step = gpu.step();
  const CUfunction large = gpu.function(gpu.load_module(kEngines), kNvjet);
  char bytes[1720] = {};
  void* pointers[] = {bytes};
  auto of_large = one_block<NodeParams2>();
  of_large.func = large;
  of_large.kernelParams = pointers;
  const auto reads_in = [&](const Executable& executable, const Graph& graph) {
    const long before = calls("cuGraphKernelNodeGetParams*");
    executable.update(graph);
    return calls("cuGraphKernelNodeGetParams*") - before;
  };
  {
    const Graph graph;
    const CUgraphNode first = graph.add(step, Arguments(gpu.marks(), 1, 1));
    add_kernel(graph.get(), of_large, {first});
    const Executable executable(graph.get());
    const long first_reads = reads_in(executable, graph);
    const long clones_before = clones();
    const long reads = reads_in(executable, graph);
    EXPECT_EQUAL(clones_before + 1, clones());
    CHECK(reads < first_reads);
    EXPECT_EQUAL(reads, reads_in(executable, graph));
  }
  const auto make = [&](int value) {
    auto graph = std::make_unique<Graph>();
    graph->add(step, Arguments(gpu.marks(), 1, value));
    return graph;
  };
  const Executable executable(make(1)->get());
  const long before = clones();
  const Graph refused;
  const CUDA_HOST_NODE_PARAMS host = {[](void*) {}, nullptr};
  CUgraphNode node = nullptr;
  OK(cuda().cuGraphAddHostNode(&node, refused.get(), nullptr, 0, &host));
  auto info = zeroed<CUgraphExecUpdateResultInfo>();
  CHECK(cuda().cuGraphExecUpdate_v2(executable.get(), refused.get(), &info) != CUDA_SUCCESS);
  executable.update(*make(2));
  executable.run_for(gpu, 2);
  EXPECT_EQUAL(before, clones());
  gpu.finish({.curated1 = 1}, {.hit = 2, .untracked = 1});
}

// The exec keeps the clusters that it was made with (driver_facts.md, section 8), and so does the
// exec that a move makes.
GPU_CASE(swap_and_updated_clusters) {
  const CUfunction free = gpu.handles().free;
  const auto make = [&](unsigned cluster, int value) {
    auto graph = std::make_unique<Graph>();
    Arguments of_node(gpu.marks(), 1, value);
    NodeParams2 params = node_params2(free, &of_node);
    params.gridDimX = 4;
    const CUgraphNode node = add_kernel(graph->get(), params);
    auto size = zeroed<CUlaunchAttributeValue>();
    size.clusterDim = {cluster, 1, 1};
    OK(cuda().cuGraphKernelNodeSetAttribute(node, CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, &size));
    graph->add(gpu.step(), Arguments(gpu.marks(), 1, value), node);
    return graph;
  };
  const auto graph = make(2, 1);
  const Executable executable(graph->get());
  Control control;
  const auto expect_cluster = [&](int value) {
    executable.run_for(gpu, value);
    SimcudaLaunch launch;
    CHECK(cuda().simcuda_last_launch(kFree, &launch) == 1);
    EXPECT_EQUAL(2, launch.cluster[0]);
  };
  expect_cluster(1);
  executable.update(*make(4, 2));
  expect_cluster(2);
  control.must_move(folder(arguments, "b"));
  EXPECT_EQUAL(1, control.block().moved_graphs);
  expect_cluster(2);
  gpu.finish({.free = 3, .curated1 = 2, .curated2 = 1}, {.hit = 1, .untracked = 1});
}

// A graph that the shim copies is planned with the clusters of that copy, not of the one before:
// the replacement does not get the original kernel's cluster. The shim copies a graph if it runs in
// an exec of the shim's own, here because of a replacement with a cluster, and if its parameters
// are too large to record.
GPU_CASE(swap_and_copied_clusters) {
  const CUfunction step = gpu.step();
  const CUfunction large = gpu.function(gpu.load_module(kEngines), kNvjet);
  const auto make = [&](bool is_large, unsigned cluster, int value) {
    auto graph = std::make_unique<Graph>();
    Arguments of_node(gpu.marks(), 1, value);
    NodeParams2 params = node_params2(step, &of_node);
    params.gridDimX = 4;
    const CUgraphNode node = add_kernel(graph->get(), params);
    if (is_large) {
      char bytes[1720] = {};
      void* pointers[] = {bytes};
      auto of_large = one_block<NodeParams2>();
      of_large.func = large;
      of_large.kernelParams = pointers;
      add_kernel(graph->get(), of_large, {node});
    } else {
      graph->add(step, Arguments(gpu.marks(), 3, value), node);
    }
    if (cluster == 0) return graph;
    auto size = zeroed<CUlaunchAttributeValue>();
    size.clusterDim = {cluster, 1, 1};
    OK(cuda().cuGraphKernelNodeSetAttribute(node, CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, &size));
    return graph;
  };
  Control control;
  Ran ran;
  for (const bool is_large : {false, true}) {
    const auto graph = make(is_large, 0, 1);
    const Executable executable(graph->get());
    executable.run(gpu);
    executable.update(*make(is_large, 4, 2));
    executable.run(gpu);
    ran.curated1 += 2;
    ran.curated3 += is_large ? 0 : 2;
    gpu.expect_ran(ran);
    control.must_move(folder(arguments, "b"));
    EXPECT_EQUAL(1, control.block().moved_graphs);
    executable.run(gpu);
    ran.curated2 += 1;
    ran.curated3 += is_large ? 0 : 1;
    gpu.expect_ran(ran);
    control.must_move(folder(arguments, "a"));
  }
  gpu.finish(ran, {.hit = 3, .untracked = 1});
}
