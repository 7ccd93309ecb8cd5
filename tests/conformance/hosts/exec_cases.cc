// Executable graphs, beyond hook_cases.cc's case for each function: their cost if nothing is
// replaced, graphs that the driver does not copy, edges, failures of the shim's calls, and the
// order of launches when another exec replaces one.
#include <tuple>

#include "tests/conformance/hosts/graphs.h"

using namespace conform;

// A graph in which nothing is replaced is copied once, for swaps, and gets no second exec; an
// update drops the copy.
GPU_CASE(exec_of_others_costs_a_copy) {
  const auto own = gpu.handles();
  const Graph graph;
  const CUgraphNode one = graph.add(own.step, Arguments(gpu.marks(), kNoSolution, 1));
  graph.add(own.free, Arguments(gpu.marks(), 1, 2), one);
  const long clones = calls("cuGraphClone");
  const long execs = calls("cuGraphInstantiate*");
  const Executable executable(graph.get());
  executable.run(gpu, 3);
  EXPECT_EQUAL(clones + 1, calls("cuGraphClone"));
  const int64_t live = cuda().simcuda_live_count("graph");
  for (int i = 0; i < 3; ++i) executable.update(graph);
  EXPECT_EQUAL(clones + 1, calls("cuGraphClone"));
  EXPECT_EQUAL(live, cuda().simcuda_live_count("graph"));
  executable.run(gpu, 3);
  EXPECT_EQUAL(execs + 1, calls("cuGraphInstantiate*"));
  gpu.finish({.step = 6, .free = 6}, {.no_solution = 1, .untracked = 1});
}

// The number of driver calls that the shim makes beyond the host's own: some per node of a chain,
// every second of which is replaced, and some per graph. There is only one exec.
GPU_CASE(exec_costs) {
  constexpr int kNodes = 300;
  constexpr double kFixed = 12;  // calls for the graph as a whole
  const CUfunction step = gpu.step();
  Graph graphs[2];
  for (int value = 0; value < 2; ++value) {
    CUgraphNode last = nullptr;
    for (int i = 0; i < kNodes; ++i) {
      Arguments of_node(gpu.marks(), i % 2 == 0 ? 1 : kNoSolution, value);
      last = graphs[value].add(step, &of_node, last);
    }
  }
  const Executable warm(graphs[0].get());
  bool is_cheap = true;
  const auto expect_at_most = [&](const char* what, double of_each_node, const auto& work) {
    const long before = calls("*");
    work();
    const auto made = static_cast<double>(calls("*") - before);
    printf("%s: %.0f calls\n", what, made);
    is_cheap = is_cheap && made <= of_each_node * kNodes + kFixed;
  };
  const int64_t live = cuda().simcuda_live_count("graph");
  CUgraphExec executable = nullptr;
  expect_at_most("instantiation", 8,
                 [&] { OK(cuda().cuGraphInstantiateWithFlags(&executable, graphs[0].get(), 0)); });
  printf("%ld graphs\n", static_cast<long>(cuda().simcuda_live_count("graph") - live));
  // The first update also records what the others are compared with.
  for (int i = 1; i < 4; ++i) {
    expect_at_most("update", i == 1 ? 3 : 2, [&] {
      auto info = zeroed<CUgraphExecUpdateResultInfo>();
      OK(cuda().cuGraphExecUpdate_v2(executable, graphs[i % 2].get(), &info));
    });
  }
  OK(cuda().cuGraphExecDestroy(executable));
  OK(cuda().cuGraphInstantiateWithFlags(&executable, graphs[0].get(), 0));
  Arguments changed(gpu.marks(), 1, 2);
  const CUgraphNode first = graphs[0].nodes().at(0);
  expect_at_most("a node that is set", 0, [&] {
    const NodeParams2 params = node_params2(step, &changed);
    OK(cuda().cuGraphExecKernelNodeSetParams_v2(executable, first, &params));
  });
  expect_at_most("a launch", 0, [&] { OK(cuda().cuGraphLaunch(executable, gpu.stream())); });
  OK(cuda().cuGraphExecDestroy(executable));
  CHECK(is_cheap);
  gpu.finish({.step = kNodes / 2, .curated1 = kNodes / 2},
             {.hit = 3 * kNodes / 2, .no_solution = 3 * kNodes / 2});
}

// The driver cannot copy such a graph: its nodes are replaced in the host's own exec, and the
// host's graph is unchanged. A node whose replacement needs a cluster keeps its original.
GPU_CASE(exec_with_memory_nodes) {
  const auto own = gpu.handles();
  const Graph graph;
  const CUgraphNode one =
      graph.add(own.step, Arguments(gpu.marks(), 1, 1), add_memory_nodes(gpu, graph.get()));
  const CUgraphNode three = graph.add(own.step, Arguments(gpu.marks(), 3, 3), one);
  const Executable executable(graph.get());
  for (const CUgraphNode node : {one, three}) CHECK(kernel_name(params_of(node)) == kStep);
  EXPECT_EQUAL(1, value_of(params_of(one)));
  executable.run(gpu, 2);
  gpu.expect_ran({.step = 2, .curated1 = 2});
  executable.set(one, own.step, Arguments(gpu.marks(), 2, 2));
  executable.set(three, own.free, Arguments(gpu.marks(), 2, 2));
  executable.run(gpu);
  executable.set(one, own.step, Arguments(gpu.marks(), 3, 3));
  executable.run_for(gpu, 2);
  gpu.finish({.step = 3, .free = 2, .curated1 = 2, .curated2 = 1}, {.hit = 1, .graph = 1});
}

// The host sets the child graph of an exec: its kernels are replaced as those before. Where the
// driver does not copy the graph they run as originals from then on, and are counted as such.
GPU_CASE(exec_with_child_graphs_set) {
  const auto own = gpu.handles();
  for (const bool has_memory : {false, true}) {
    for (const bool is_by_type : {false, true}) {
      const Graph children[3];
      children[0].add(own.step, Arguments(gpu.marks(), 1, 1));
      children[1].add(own.step, Arguments(gpu.marks(), 2, 2));
      children[2].add(own.free, Arguments(gpu.marks(), 1, 3));
      const Graph graph;
      if (has_memory) (void)add_memory_nodes(gpu, graph.get());
      const CUgraphNode node = add_child(graph.get(), children[0].get());
      const Executable executable(graph.get());
      executable.run_for(gpu, 1);
      for (const int i : {1, 2}) {
        auto params = zeroed<CUgraphNodeParams>();
        params.type = CU_GRAPH_NODE_TYPE_GRAPH;
        params.graph.graph = children[i].get();
        OK(is_by_type ? cuda().cuGraphExecNodeSetParams(executable.get(), node, &params)
                      : cuda().cuGraphExecChildGraphNodeSetParams(executable.get(), node,
                                                                  children[i].get()));
        executable.run_for(gpu, i + 1);
      }
    }
  }
  gpu.finish({.step = 2, .free = 4, .curated1 = 4, .curated2 = 2}, {.hit = 4});
}

// A fill that the host has disabled stays disabled when the exec is updated from graphs, however
// often. If a replacement needs more than other parameters, the original runs from then on.
GPU_CASE(exec_update_keeps_what_is_disabled) {
  const CUfunction step = gpu.step();
  const CUdeviceptr filled = device_memory(4);
  const CUDA_MEMSET_NODE_PARAMS fill = fill_of(filled, 7);
  for (const int shape : {1, 3}) {
    OK(cuda().cuMemsetD32_v2(filled, 5, 1));
    Graph graphs[3];
    CUgraphNode fills[3];
    for (int i = 0; i < 3; ++i) {
      graphs[i].add(step, Arguments(gpu.marks(), shape, 5));
      OK(cuda().cuGraphAddMemsetNode(&fills[i], graphs[i].get(), nullptr, 0, &fill, gpu.context()));
    }
    const Executable executable(graphs[0].get());
    executable.enable(fills[0], false);
    for (int i = 1; i < 3; ++i) executable.update(graphs[i]);
    executable.run(gpu);
    uint32_t value = 0;
    OK(cuda().cuMemcpyDtoH_v2(&value, filled, sizeof value));
    EXPECT_EQUAL(executable.is_enabled(fills[0]) ? 7 : 5, value);
  }
  OK(cuda().cuMemFree_v2(filled));
  gpu.finish({.step = 1, .curated1 = 1}, {.hit = 2});
}

// Programmatic launches become programmatic edges. A replacement that does not wait by itself gets
// plain edges; one that waits keeps programmatic ones. The host's graph keeps its own edges.
GPU_CASE(exec_with_programmatic_edges) {
  const CUfunction step = gpu.step();
  CUlaunchAttribute attribute = programmatic();
  CUlaunchConfig config = launch_config(gpu.stream());
  config.attrs = &attribute;
  config.numAttrs = 1;
  for (const int shape : {1, 2}) {
    const Graph graph(gpu.capture([&] {
      for (int i = 0; i < 3; ++i) {
        Arguments arguments_of_step(gpu.marks(), shape, i);
        OK(cuda().cuLaunchKernelEx(&config, step, arguments_of_step.params(), nullptr));
      }
    }));
    const long removed = calls("cuGraphRemoveDependencies_v2");
    graph.run_for(gpu, 2);
    EXPECT_EQUAL(removed + (shape == 1 ? 2 : 0), calls("cuGraphRemoveDependencies_v2"));
    size_t count = 0;
    OK(cuda().cuGraphGetEdges_v2(graph.get(), nullptr, nullptr, nullptr, &count));
    EXPECT_EQUAL(2, count);
    CUgraphNode from[2];
    CUgraphNode to[2];
    CUgraphEdgeData data[2];
    OK(cuda().cuGraphGetEdges_v2(graph.get(), from, to, data, &count));
    for (const CUgraphEdgeData& edge : data) {
      EXPECT_EQUAL(CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC, edge.type);
    }
  }
  gpu.finish({.curated1 = 3, .curated2 = 3}, {.hit = 6});
}

// Replacements that wait by themselves begin before the previous one has ended, except if that one
// may write what they read before their wait. The host's graph keeps plain edges. An exec whose
// nodes the host sets or disables has plain edges, too.
GPU_CASE(exec_begins_early) {
  const CUfunction step = gpu.step();
  const auto graph_of = [&](int before, int shape) {
    return gpu.capture([&] {
      OK(gpu.launch(step, before, 1));
      OK(gpu.launch(step, shape, 2));
    });
  };
  const auto early_edges_of = [&](CUgraph graph) {
    const long added = calls("cuGraphAddDependencies_v2");
    const Executable executable(graph);
    executable.run_for(gpu, 2);
    return calls("cuGraphAddDependencies_v2") - added;
  };
  for (const auto& [before, shape, edges] :
       {std::tuple(2, 2, 1), {1, 2, 1}, {2, 1, 0}, {kNoSolution, 2, 0}, {2, 4, 0}, {4, 2, 1}}) {
    const Graph graph(graph_of(before, shape));
    EXPECT_EQUAL(edges, early_edges_of(graph.get()));
    size_t count = 0;
    OK(cuda().cuGraphGetEdges_v2(graph.get(), nullptr, nullptr, nullptr, &count));
    CUgraphNode from = nullptr;
    CUgraphNode to = nullptr;
    CUgraphEdgeData data;
    OK(cuda().cuGraphGetEdges_v2(graph.get(), &from, &to, &data, &count));
    EXPECT_EQUAL(CU_GRAPH_DEPENDENCY_TYPE_DEFAULT, data.type);
  }

  // Nodes are set and disabled: from then on the exec has no early edges, and gives correct
  // results.
  const Graph graph(graph_of(2, 2));
  const CUgraphNode first = graph.nodes().at(0);
  const CUgraphNode second = graph.nodes().at(1);
  const Executable executable(graph.get());
  executable.run_for(gpu, 2);
  const long added = calls("cuGraphAddDependencies_v2");
  for (int i = 0; i < 2; ++i) {
    executable.set(second, step, Arguments(gpu.marks(), 2, 5));
    executable.run_for(gpu, 5);
  }
  EXPECT_EQUAL(added, calls("cuGraphAddDependencies_v2"));
  const Executable other(graph.get());
  other.enable(second, false);
  other.run_for(gpu, 1);
  other.enable(second, true);
  other.enable(first, false);
  other.run_for(gpu, 2);
  gpu.finish({.step = 1, .curated1 = 2, .curated2 = 9 + 6 + 2}, {.hit = 15, .no_solution = 1});
}

// The memory that is read before the wait is an allocation of its own, which the kernel before does
// not use, or only reads.
GPU_CASE(exec_begins_early_on_its_own_memory) {
  const CUmodule module = gpu.load_module();
  const CUfunction step = gpu.function(module);
  const CUfunction pair = gpu.function(module, "conform_pair");
  const CUdeviceptr own = device_memory(4096);
  auto* const words = reinterpret_cast<uint32_t*>(own);
  const auto launch = [&](CUfunction function, void** params) {
    OK(cuda().cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, gpu.stream(), params, nullptr));
  };
  const auto early_edges_behind = [&](const auto& launch_first) {
    const Graph graph(gpu.capture([&] {
      launch_first();
      Arguments second(words, 4, 2);
      launch(step, second.params());
    }));
    const long added = calls("cuGraphAddDependencies_v2");
    const Executable executable(graph.get());
    return calls("cuGraphAddDependencies_v2") - added;
  };
  for (const bool has_it : {false, true}) {
    EXPECT_EQUAL(has_it ? 0 : 1, early_edges_behind([&] {
                   Arguments first(has_it ? words + 64 : gpu.marks(), 2, 1);
                   launch(step, first.params());
                 }));
    EXPECT_EQUAL(has_it ? 0 : 1, early_edges_behind([&] {
                   uint32_t* seed = words + 64;
                   uint32_t* marks = has_it ? words + 128 : gpu.marks();
                   int32_t value = 1;
                   void* params[] = {&seed, &marks, &value};
                   launch(pair, params);
                 }));
  }
  OK(cuda().cuMemFree_v2(own));
  gpu.finish({}, {.hit = 8});
}

// The replacement in the middle is told that the next may begin before its own wait if the memory
// that the next reads before its wait is also apart from what the first may write, and if nothing
// else waits for it.
GPU_CASE(exec_tells_that_the_next_may_begin) {
  const CUfunction step = gpu.step();
  const CUdeviceptr own = device_memory(4096);
  auto* const apart = reinterpret_cast<uint32_t*>(own);
  const auto told = [&](const Executable& executable) {
    executable.run(gpu);
    OK(cuda().cuCtxSynchronize());
    int32_t value = 0;
    const SimcudaLaunch last = last_launch("curated_n5");
    memcpy(&value, last.params + sizeof(void*) * 2, sizeof value);
    return value;
  };
  const struct {
    uint32_t* first_marks;
    int first;
    int last;
    int told;
  } rows[] = {
      {gpu.marks(), 2, 2, 1},            // reads nothing before its wait
      {gpu.marks(), 2, 4, 1},            // reads what neither writes
      {apart + 64, 2, 4, 0},             // reads what the first may write
      {apart + 64, 1, 4, 0},             // the same, and the first does not wait by itself
      {apart + 64, 5, 4, 0},             // as the third
      {gpu.marks(), 2, 1, 0},            // does not wait by itself
      {gpu.marks(), 2, kNoSolution, 0},  // stays an original
  };
  for (const auto& row : rows) {
    const Graph graph(gpu.capture([&] {
      Arguments first(row.first_marks, row.first, 1);
      Arguments second(gpu.marks(), 5, 2);
      Arguments last(apart, row.last, 3);
      for (Arguments* of_one : {&first, &second, &last}) {
        OK(cuda().cuLaunchKernel(step, 1, 1, 1, 32, 1, 1, 0, gpu.stream(), of_one->params(),
                                 nullptr));
      }
    }));
    EXPECT_EQUAL(row.told, told(Executable(graph.get())));
  }
  // A kernel before all three writes the memory. It has ended by the time that the last one begins.
  for (const int second : {1, 2}) {
    const Graph graph(gpu.capture([&] {
      Arguments all[] = {
          {apart + 64, 2, 1}, {gpu.marks(), second, 2}, {gpu.marks(), 5, 3}, {apart, 4, 4}};
      for (Arguments& of_one : all) {
        OK(cuda().cuLaunchKernel(step, 1, 1, 1, 32, 1, 1, 0, gpu.stream(), of_one.params(),
                                 nullptr));
      }
    }));
    EXPECT_EQUAL(1, told(Executable(graph.get())));
  }
  // Two nodes wait for it; it is the graph's last node; the host sets it.
  for (const int after : {2, 1, 0}) {
    const Graph graph;
    const CUgraphNode node = graph.add(step, Arguments(gpu.marks(), 5, 1));
    for (int i = 0; i < after; ++i) graph.add(step, Arguments(gpu.marks(), 2, 2), node);
    const Executable executable(graph.get());
    EXPECT_EQUAL(after == 1 ? 1 : 0, told(executable));
    if (after != 1) continue;
    executable.set(node, step, Arguments(gpu.marks(), 5, 1));
    EXPECT_EQUAL(0, told(executable));
  }
  OK(cuda().cuMemFree_v2(own));
  gpu.finish({.step = 1, .curated1 = 3, .curated2 = 19, .curated5 = 14},
             {.hit = 34, .no_solution = 1});
}

// Each call that the shim makes on its own account fails once: the host's call still does what it
// should.
GPU_CASE(exec_survives_failures) {
  const CUfunction step = gpu.step();
  Ran all;
  for (const char* name :
       {"cuGraphClone", "cuGraphNodeFindInClone", "cuGraphKernelNodeSetParams_v2",
        "cuGraphGetNodes", "cuGraphKernelNodeGetParams_v2", "cuGraphInstantiateWithFlags"}) {
    const Graph graph;
    const CUgraphNode node = graph.add(step, Arguments(gpu.marks(), 1, 7));
    CHECK(cuda().simcuda_set_faults((std::string(name) + "=2*1").c_str()) == 1);
    const Executable executable(graph.get());
    CHECK(cuda().simcuda_set_faults("") == 1);
    const long replaced = ran("curated_n1");
    executable.run_for(gpu, 7);
    (ran("curated_n1") > replaced ? all.curated1 : all.step) += 1;
    CHECK(kernel_name(params_of(node)) == kStep);
  }
  // If a launch of the shim's exec fails, the host's exec is launched from then on.
  {
    const Graph graph;
    graph.add(step, Arguments(gpu.marks(), 3, 8));
    const Executable executable(graph.get());
    executable.run(gpu);
    ++all.curated3;
    CHECK(cuda().simcuda_set_faults("cuGraphLaunch=2*1") == 1);
    executable.run_for(gpu, 8);
    executable.run_for(gpu, 8);
    all.step += 2;
    CHECK(cuda().simcuda_set_faults("") == 1);
  }
  // An update that fails with replacements is made without them.
  {
    Graph graphs[2];
    CUgraphNode node = nullptr;
    for (const Graph& graph : graphs) node = graph.add(step, Arguments(gpu.marks(), 1, 9));
    const Executable executable(graphs[0].get());
    CHECK(cuda().simcuda_set_faults("cuGraphExecUpdate_v2=2*1") == 1);
    executable.update(graphs[1]);
    CHECK(cuda().simcuda_set_faults("") == 1);
    executable.run_for(gpu, 9);
    ++all.curated1;
    CHECK(kernel_name(params_of(node)) == kStep);
  }
  gpu.expect_ran(all);
  // A node that cannot be set keeps its original. If cuGraphGetNodes or
  // cuGraphKernelNodeGetParams_v2 fails, the shim learns nothing about the graph, and it stays
  // uncounted.
  gpu.finish(all, {.hit = 5, .graph = 1});
}

// Many execs are made and destroyed: neither memory nor the number of the driver's objects grows.
GPU_CASE(exec_churn) {
  const CUfunction step = gpu.step();
  const Graph graph;
  const CUgraphNode node = graph.add(step, Arguments(gpu.marks(), 1, 9));
  const int rounds = cuda().is_simulated ? 20000 : 2000;
  long before_kb = 0;
  int64_t live = 0;
  for (int i = 0; i < rounds; ++i) {
    {
      const Executable executable(graph.get());
      executable.set(node, step, Arguments(gpu.marks(), 1, 9));
      if (i % 10 == 0) OK(cuda().cuGraphLaunch(executable.get(), gpu.stream()));
    }
    // By then the simulated driver's record of launches is full.
    if (i != rounds / 2) continue;
    before_kb = resident_bytes() / 1024;
    if (cuda().is_simulated) live = cuda().simcuda_live_count("graph");
  }
  const long grown_kb = resident_bytes() / 1024 - before_kb;
  printf("grown by %ld KiB\n", grown_kb);
  CHECK(grown_kb < 512);
  if (cuda().is_simulated) EXPECT_EQUAL(live, cuda().simcuda_live_count("graph"));
  gpu.finish({.curated1 = rounds / 10}, {.hit = rounds});
}

// A forked child has the handles, but a driver that does not work there.
GPU_CASE(exec_and_fork) {
  const CUfunction step = gpu.step();
  const Graph graph;
  graph.add(step, Arguments(gpu.marks(), 1, 10));
  const Executable executable(graph.get());
  executable.run(gpu);
  const pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    // On a real driver the launch succeeds, and its effect on the parent's queue is not documented.
    if (cuda().is_simulated) {
      CHECK(cuda().cuGraphLaunch(executable.get(), gpu.stream()) != CUDA_SUCCESS);
      CHECK(cuda().cuGraphExecDestroy(executable.get()) != CUDA_SUCCESS);
    }
    _exit(0);
  }
  expect_exit(child);
  executable.run_for(gpu, 10);
  gpu.finish({.curated1 = 2}, {.hit = 1});
}
