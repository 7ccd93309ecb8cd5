// Rewrites: two kernels of a graph that run as one, what keeps them apart, and what the host's changes make of them.

#include <sched.h>

#include <atomic>
#include <thread>

#include "tests/conformance/hosts/control.h"
#include "tests/conformance/hosts/cublas.h"

namespace conform {
namespace {

constexpr int kCount = 64;  // of floats, in each buffer: conform_join_n64 has a solution
constexpr int kUnsolvedCount = 32;

class Buffer {
 public:
  explicit Buffer(int count = kCount) { OK(cuda().cuMemAlloc_v2(&at_, sizeof(float) * count)); }
  ~Buffer() { OK(cuda().cuMemFree_v2(at_)); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  float* get(int index = 0) const { return reinterpret_cast<float*>(at_) + index; }
  CUdeviceptr address() const { return at_; }

 private:
  CUdeviceptr at_ = 0;
};

// The arguments of conform_split and conform_join.
struct Floats {
  const float* from;
  float* to;
  uint32_t* marks;
  int32_t n;
  int32_t value;
  void* pointers[5] = {&from, &to, &marks, &n, &value};

  Floats(const Gpu& gpu, const float* in, float* out, int32_t given, int32_t count = kCount)
      : from(in), to(out), marks(gpu.marks()), n(count), value(given) {}
  Floats(const Floats&) = delete;
  Floats& operator=(const Floats&) = delete;

  NodeParams2 params(CUfunction function) {
    auto out = one_block<NodeParams2>();
    out.func = function;
    out.kernelParams = pointers;
    return out;
  }
};

// The kernels, and three buffers.
struct Work {
  explicit Work(const Gpu& on) : gpu(on), module(on.load_module()) {
    split = gpu.function(module, "conform_split");
    join = gpu.function(module, "conform_join");
    free = gpu.function(module, kFree);
    step = gpu.function(module, kStep);
  }

  void launch(CUfunction function, const float* from, float* to, int value,
              int count = kCount) const {
    Floats arguments(gpu, from, to, value, count);
    OK(cuda().cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, gpu.stream(), arguments.pointers,
                             nullptr));
  }
  void launch_pair(int value) const {
    launch(split, in.get(), sums.get(), value);
    launch(join, sums.get(), out.get(), value);
  }
  CUgraphNode add(CUgraph graph, CUfunction function, Floats* arguments,
                  const std::vector<CUgraphNode>& after = {}) const {
    return add_kernel(graph, arguments->params(function), after);
  }
  CUgraphNode add_free(CUgraph graph, uint32_t* marks,
                       const std::vector<CUgraphNode>& after = {}) const {
    Arguments arguments(marks, 1, 1);
    return add_kernel(graph, node_params2(free, &arguments), after);
  }

  const Gpu& gpu;
  CUmodule module;
  CUfunction split, join, free, step;
  Buffer in, sums, out;
};

// What the last launch of `kernel` was given for `value`, behind the others.
int last_value_of(const char* kernel) {
  const SimcudaLaunch last = last_launch(kernel);
  int32_t value = 0;
  memcpy(&value, last.params + last.param_bytes - sizeof value, sizeof value);
  return value;
}

}  // namespace
}  // namespace conform

using namespace conform;

// Two nodes are one, between what came before them and what comes after. The host's graph keeps its own.
GPU_CASE(rewrite_runs_as_one) {
  const Work work(gpu);
  const Graph graph(gpu.capture([&] {
    OK(gpu.launch(work.step, 1, 1));
    work.launch_pair(5);
    OK(gpu.launch(work.step, 2, 2));
    work.launch_pair(6);
  }));
  const long destroyed = calls("cuGraphDestroyNode");
  const Executable executable(graph.get());
  EXPECT_EQUAL(destroyed + 2, calls("cuGraphDestroyNode"));
  executable.run(gpu, 3);
  EXPECT_EQUAL(6, last_value_of("curated_joined"));
  const SimcudaLaunch last = last_launch("curated_joined");
  const float* given[2];
  memcpy(given, last.params, sizeof given);
  CHECK(given[0] == work.in.get() && given[1] == work.out.get());
  EXPECT_EQUAL(6, graph.nodes().size());
  // Eager launches stay two.
  work.launch_pair(7);
  gpu.finish({.curated1 = 3, .curated2 = 3, .split = 1, .join = 1, .joined = 6},
             {.hit = 4, .untracked = 2, .absorbed = 2});
}

// A replacement keeps its node's priority, in place, beside it and for several; kernels of unequal ones stay two.
GPU_CASE(replacements_keep_priorities) {
  const Work work(gpu);
  int least = 0;
  int greatest = 0;
  OK(cuda().cuCtxGetStreamPriorityRange(&least, &greatest));
  CHECK(greatest < least);
  const auto set_priority = [](CUgraphNode node, int priority) {
    auto value = zeroed<CUlaunchAttributeValue>();
    value.priority = priority;
    OK(cuda().cuGraphKernelNodeSetAttribute(node, CU_LAUNCH_ATTRIBUTE_PRIORITY, &value));
  };
  const auto expect_priority = [greatest](const char* kernel) {
    const SimcudaLaunch last = last_launch(kernel);
    int priority = 0;
    for (uint32_t i = 0; i < last.attribute_count; ++i) {
      if (last.attribute_ids[i] != CU_LAUNCH_ATTRIBUTE_PRIORITY) continue;
      memcpy(&priority, last.attribute_values[i], sizeof priority);
    }
    EXPECT_EQUAL(greatest, priority);
  };
  for (const int shape : {1, 3}) {
    const Graph graph;
    set_priority(graph.add(work.step, Arguments(gpu.marks(), shape, 1)), greatest);
    graph.run(gpu);
    expect_priority(shape == 1 ? "curated_n1" : "curated_n3");
  }
  for (const bool is_one : {true, false}) {
    const Graph graph;
    Floats first(gpu, work.in.get(), work.sums.get(), 5);
    Floats second(gpu, work.sums.get(), work.out.get(), 5);
    const CUgraphNode split = work.add(graph.get(), work.split, &first);
    set_priority(split, greatest);
    set_priority(work.add(graph.get(), work.join, &second, {split}), is_one ? greatest : least);
    graph.run(gpu);
    if (is_one) expect_priority("curated_joined");
  }
  gpu.finish({.curated1 = 1, .curated3 = 1, .split = 1, .join = 1, .joined = 1},
             {.hit = 3, .graph = 2, .absorbed = 1});
}

// They do not belong together, or nothing is for them: another buffer, another size, a where that does not hold.
GPU_CASE(rewrite_needs_its_ties) {
  const Work work(gpu);
  const Buffer other;
  const auto run = [&](CUgraph captured) { Graph(captured).run(gpu); };
  const auto count_execs = [] { return cuda().is_simulated ? calls("cuGraphInstantiate*") : 0; };
  const long execs = count_execs();
  run(gpu.capture([&] {
    work.launch(work.split, work.in.get(), work.sums.get(), 1);
    work.launch(work.join, other.get(), work.out.get(), 1);
  }));
  // What is replaced beside them is so in the host's own exec.
  run(gpu.capture([&] {
    work.launch(work.split, work.in.get(), work.sums.get(), 1);
    OK(gpu.launch(work.step, 1, 1));
  }));
  if (cuda().is_simulated) EXPECT_EQUAL(execs + 2, count_execs());
  run(gpu.capture([&] {
    work.launch(work.split, work.in.get(), work.sums.get(), 1);
    work.launch(work.join, work.sums.get(), work.out.get(), 1, kUnsolvedCount);
  }));
  run(gpu.capture([&] {
    work.launch(work.join, work.sums.get(), work.out.get(), 1);
    work.launch(work.split, work.in.get(), work.sums.get(), 1);
  }));
  run(gpu.capture([&] { work.launch_pair(kRefusedValue); }));
  gpu.expect_ran({.curated1 = 1, .split = 5, .join = 4});
  // These do, but nothing solves that size.
  run(gpu.capture([&] {
    work.launch(work.split, work.in.get(), work.sums.get(), 1, kUnsolvedCount);
    work.launch(work.join, work.sums.get(), work.out.get(), 1, kUnsolvedCount);
  }));
  gpu.finish({.curated1 = 1, .split = 6, .join = 5}, {.hit = 1, .no_solution = 2, .untracked = 9});
}

// What comes between, what else could read what is left out, and buffers that overlap: they stay two, and say so.
GPU_CASE(rewrite_needs_proof) {
  const Work work(gpu);
  const auto pair_with = [&](const auto& add_more, const float* in, float* out) {
    const Graph graph;
    Floats first(gpu, in, work.sums.get(), 1);
    Floats second(gpu, work.sums.get(), out, 1);
    const CUgraphNode split = work.add(graph.get(), work.split, &first);
    const CUgraphNode join = work.add(graph.get(), work.join, &second, {split});
    add_more(graph.get(), split, join);
    const Executable executable(graph.get());
    executable.run(gpu);
  };
  const float* const in = work.in.get();
  float* const out = work.out.get();
  // A path from one to the other through a third.
  pair_with(
      [&](CUgraph graph, CUgraphNode split, CUgraphNode join) {
        const CUgraphNode between = work.add_free(graph, gpu.marks(), {split});
        OK(cuda().cuGraphAddDependencies_v2(graph, &between, &join, nullptr, 1));
      },
      in, out);
  // Another kernel has an address within the sums.
  auto* const marks_in_sums = reinterpret_cast<uint32_t*>(work.sums.get(4));
  pair_with([&](CUgraph graph, CUgraphNode,
                CUgraphNode join) { work.add_free(graph, marks_in_sums, {join}); },
            in, out);
  // A copy of them, in the graph itself and in a child graph.
  const auto add_copy = [&](CUgraph graph, const CUgraphNode* after, CUdeviceptr to,
                            CUdeviceptr from) {
    const CUDA_MEMCPY3D copy = copy_of(to, from, 16);
    CUgraphNode node = nullptr;
    OK(cuda().cuGraphAddMemcpyNode(&node, graph, after, after == nullptr ? 0 : 1, &copy,
                                   gpu.context()));
  };
  const CUdeviceptr sums = work.sums.address();
  pair_with([&](CUgraph graph, CUgraphNode,
                CUgraphNode join) { add_copy(graph, &join, work.out.address(), sums); },
            in, out);
  pair_with(
      [&](CUgraph graph, CUgraphNode, CUgraphNode join) {
        const Graph child;
        add_copy(child.get(), nullptr, work.out.address(), sums);
        CUgraphNode node = nullptr;
        OK(cuda().cuGraphAddChildGraphNode(&node, graph, &join, 1, child.get()));
      },
      in, out);
  // The one kernel would write where it has yet to read.
  const auto nothing = [](CUgraph, CUgraphNode, CUgraphNode) {};
  pair_with(nothing, in, work.in.get(8));
  pair_with(nothing, work.sums.get(), out);
  // Addresses right before the sums and right after them are others.
  const Ran ran = {.free = 2, .split = 6, .join = 6};
  gpu.expect_ran({.free = 2, .split = 6, .join = 6});
  pair_with(
      [&](CUgraph graph, CUgraphNode split, CUgraphNode join) {
        work.add_free(graph, gpu.marks(), {split});
        work.add_free(graph, gpu.marks(), {join});
      },
      in, out);
  // What writes there, and reads nothing there.
  pair_with([&](CUgraph graph, CUgraphNode,
                CUgraphNode join) { add_copy(graph, &join, sums + 8, work.in.address()); },
            in, out);
  pair_with(
      [&](CUgraph graph, CUgraphNode, CUgraphNode join) {
        const CUDA_MEMSET_NODE_PARAMS fill = fill_of(sums + 8, 0);
        CUgraphNode node = nullptr;
        OK(cuda().cuGraphAddMemsetNode(&node, graph, &join, 1, &fill, gpu.context()));
      },
      in, out);
  gpu.finish({.free = ran.free + 2, .split = ran.split, .join = ran.join, .joined = 3},
             {.hit = 3, .untracked = 4, .graph = 12, .absorbed = 3});
}

// Many pairs have their sums in one place, as cuBLAS has its workspace: each writes it before it reads it. One that
// has no solution does, too.
GPU_CASE(rewrite_shares_a_workspace) {
  const Work work(gpu);
  const Graph graph(gpu.capture([&] {
    for (int i = 0; i < 4; ++i) work.launch_pair(i);
    work.launch(work.split, work.in.get(), work.sums.get(), 8, kUnsolvedCount);
    work.launch(work.join, work.sums.get(), work.out.get(), 8, kUnsolvedCount);
    work.launch_pair(9);
  }));
  graph.run(gpu, 2);
  gpu.finish({.split = 2, .join = 2, .joined = 10}, {.hit = 5, .no_solution = 2, .absorbed = 5});
}

// The packed parameters of another kernel end early, as NCCL's do: it has no addresses but those that it was given.
GPU_CASE(rewrite_beside_short_parameters) {
  const Work work(gpu);
  const CUfunction large = gpu.function(work.module, "conform_large");
  for (const float* const given : {work.out.get(), work.sums.get(4)}) {
    struct {
      uint32_t* marks;
      int32_t shape = 1, value = 1;
      const float* given[2];
      const float* behind;
    } bytes = {gpu.marks(), 1, 1, {given, given}, work.sums.get()};
    size_t size = offsetof(decltype(bytes), behind);
    void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &bytes, CU_LAUNCH_PARAM_BUFFER_SIZE, &size,
                     CU_LAUNCH_PARAM_END};
    const Graph graph(gpu.capture([&] {
      work.launch_pair(1);
      OK(cuda().cuLaunchKernel(large, 1, 1, 1, 32, 1, 1, 0, gpu.stream(), nullptr, extra));
    }));
    const Executable executable(graph.get());
    executable.run(gpu);
  }
  gpu.finish({.split = 1, .join = 1, .joined = 1, .large = 2},
             {.hit = 1, .untracked = 2, .graph = 2, .absorbed = 1});
}

// A kernel may read the sums of the same launch in each of two rewrites: neither may leave them out.
GPU_CASE(rewrite_leaves_out_nothing_that_another_reads) {
  const Work work(gpu);
  const Buffer other;
  const CUfunction nothing = gpu.function(work.module, "conform_void");
  for (const bool is_pair_first : {true, false}) {
    const Graph graph;
    Floats first(gpu, work.in.get(), work.sums.get(), 1);
    Floats second(gpu, work.sums.get(), work.out.get(), 1);
    Floats third(gpu, work.sums.get(), other.get(), 1);
    auto last = one_block<NodeParams2>();
    last.func = nothing;
    const CUgraphNode split = work.add(graph.get(), work.split, &first);
    const auto add_pair = [&] { work.add(graph.get(), work.join, &third, {split}); };
    if (is_pair_first) add_pair();
    const CUgraphNode join = work.add(graph.get(), work.join, &second, {split});
    add_kernel(graph.get(), last, {join});
    if (!is_pair_first) add_pair();
    const Executable executable(graph.get());
    executable.run(gpu);
  }
  gpu.finish({.nothing = 2, .split = 2, .join = 4}, {.untracked = 1, .graph = 7});
}

// Three kernels rather than two of them, as that has the higher benefit; the geometry of a later one is looked at. What
// is to be reported alone is counted where nothing else takes its kernels, and made nowhere.
GPU_CASE(rewrite_by_benefit) {
  const Work work(gpu);
  const CUfunction nothing = gpu.function(work.module, "conform_void");
  const auto launch_nothing = [&](unsigned threads) {
    OK(cuda().cuLaunchKernel(nothing, 1, 1, 1, threads, 1, 1, 0, gpu.stream(), nullptr, nullptr));
  };
  const auto run = [&](CUgraph captured) { Graph(captured).run(gpu, 2); };
  run(gpu.capture([&] {
    work.launch_pair(1);
    launch_nothing(32);
  }));
  gpu.expect_ran({.joined = 2});
  EXPECT_EQUAL(0, ran("conform_void"));
  run(gpu.capture([&] {
    work.launch_pair(2);
    launch_nothing(64);
  }));
  gpu.expect_ran({.joined = 4});
  EXPECT_EQUAL(2, ran("conform_void"));
  run(gpu.capture([&] {
    work.launch(work.join, work.sums.get(), work.out.get(), 3);
    launch_nothing(32);
  }));
  gpu.finish({.nothing = 4, .join = 2, .joined = 4},
             {.hit = 2, .untracked = 1, .absorbed = 3, .observed = 2});
}

// Forks and joins: what waits for either waits for the one, and the one waits for what either waited for.
GPU_CASE(rewrite_keeps_the_order) {
  const Work work(gpu);
  const Graph graph;
  Floats first(gpu, work.in.get(), work.sums.get(), 1);
  Floats second(gpu, work.sums.get(), work.out.get(), 1);
  const CUgraphNode one = work.add_free(graph.get(), gpu.marks());
  const CUgraphNode two = work.add_free(graph.get(), gpu.marks());
  const CUgraphNode split = work.add(graph.get(), work.split, &first, {one});
  const CUgraphNode join = work.add(graph.get(), work.join, &second, {split, two});
  const CUgraphNode after = graph.add(work.step, Arguments(gpu.marks(), 1, 1), split);
  work.add_free(graph.get(), gpu.marks(), {join});
  const long added = calls("cuGraphAddDependencies_v2");
  const Executable executable(graph.get());
  // `two` comes before the one now, and the last comes after it.
  EXPECT_EQUAL(added + 2, calls("cuGraphAddDependencies_v2"));
  executable.run(gpu);
  CHECK(after != nullptr);
  gpu.finish({.free = 3, .curated1 = 1, .joined = 1}, {.hit = 2, .untracked = 3, .absorbed = 1});
}

// Programmatic edges within go, those around become full.
GPU_CASE(rewrite_among_programmatic_edges) {
  const Work work(gpu);
  CUlaunchAttribute attribute = programmatic();
  CUlaunchConfig config = launch_config(gpu.stream());
  config.attrs = &attribute;
  config.numAttrs = 1;
  const Graph graph(gpu.capture([&] {
    Arguments before(gpu.marks(), 1, 1);
    Floats first(gpu, work.in.get(), work.sums.get(), 3);
    Floats second(gpu, work.sums.get(), work.out.get(), 3);
    OK(cuda().cuLaunchKernelEx(&config, work.free, before.params(), nullptr));
    OK(cuda().cuLaunchKernelEx(&config, work.split, first.pointers, nullptr));
    OK(cuda().cuLaunchKernelEx(&config, work.join, second.pointers, nullptr));
    OK(cuda().cuLaunchKernelEx(&config, work.free, before.params(), nullptr));
  }));
  const long removed = calls("cuGraphRemoveDependencies_v2");
  const Executable executable(graph.get());
  // One into it is made full; the one out of it went with its node.
  EXPECT_EQUAL(removed + 1, calls("cuGraphRemoveDependencies_v2"));
  executable.run(gpu, 2);
  gpu.finish({.free = 4, .joined = 2}, {.hit = 1, .untracked = 2, .absorbed = 1});
}

// While the host sets a node, a folder without rewrites comes into force: the shim must go on reading the rewrite in the folder that the exec runs.
GPU_CASE(rewrite_follows_while_moving) {
  const Work work(gpu);
  const Graph graph;
  Floats first(gpu, work.in.get(), work.sums.get(), 1);
  Floats second(gpu, work.sums.get(), work.out.get(), 1);
  const CUgraphNode split = work.add(graph.get(), work.split, &first);
  const CUgraphNode join = work.add(graph.get(), work.join, &second, {split});
  const auto set_often = [&](int count) {
    const Executable executable(graph.get());
    for (int value = 1; value <= count; ++value) {
      Floats changed(gpu, work.sums.get(), work.out.get(), value % 4);
      executable.set(join, changed.params(work.join));
    }
    executable.run(gpu);
  };
  set_often(102);
  EXPECT_EQUAL(2, last_value_of("curated_joined"));
  std::atomic<bool> has_moved = false;
  std::thread mover([&] {
    Control control;
    for (int i = 0; i < 200; ++i) {
      control.must_move(folder(arguments, i % 2 == 0 ? "apart" : "a"));
    }
    has_moved = true;
  });
  while (!has_moved) set_often(102);
  mover.join();
  set_often(103);
  EXPECT_EQUAL(3, last_value_of("curated_joined"));
  printf("joined %ld, apart %ld\n", ran("curated_joined"), ran("conform_join"));
}

// The host sets nodes of its exec, and lets it take over graphs, whose values make no difference to what was proved: the
// kernels stay one. They may also have values that the pattern does not know, or be refused by the driver.
GPU_CASE(rewrite_follows_its_kernels) {
  const Work work(gpu);
  const Graph graph;
  Floats first(gpu, work.in.get(), work.sums.get(), 1);
  Floats second(gpu, work.sums.get(), work.out.get(), 1);
  Floats changed(gpu, work.sums.get(), work.out.get(), 4);
  const CUgraphNode split = work.add(graph.get(), work.split, &first);
  const CUgraphNode join = work.add(graph.get(), work.join, &second, {split});
  const CUgraphNode free = work.add_free(graph.get(), gpu.marks(), {join});
  const Executable executable(graph.get());
  const long execs = calls("cuGraphInstantiate*");
  const auto expect_values = [&](const char* kernel, int value, int of_free) {
    executable.run(gpu);
    EXPECT_EQUAL(value, last_value_of(kernel));
    EXPECT_EQUAL(of_free, last_value_of("conform_free"));
  };
  executable.set(join, changed.params(work.join));
  executable.set(split, first.params(work.split));
  executable.set(free, work.free, Arguments(gpu.marks(), 1, 2));
  expect_values("curated_joined", 4, 2);
  const auto update = [&](int32_t value, int32_t of_free) {
    Floats third(gpu, work.sums.get(), work.out.get(), value);
    const Graph next;
    const CUgraphNode next_split = work.add(next.get(), work.split, &first);
    const CUgraphNode next_join = work.add(next.get(), work.join, &third, {next_split});
    next.add(work.free, Arguments(gpu.marks(), 1, of_free), next_join);
    executable.update(next);
  };
  int of_free = 5;
  for (const int32_t value : {5, 5, 6}) {
    update(value, of_free);
    expect_values("curated_joined", value, of_free++);
  }
  // Set after an update, then the values of the last update again.
  executable.set(join, changed.params(work.join));
  expect_values("curated_joined", 4, 7);
  update(6, 7);
  expect_values("curated_joined", 6, 7);
  EXPECT_EQUAL(execs, calls("cuGraphInstantiate*"));
  gpu.expect_ran({.free = 6, .joined = 6});
  update(13, 1);
  expect_values("conform_join", 13, 1);
  update(7, 1);
  expect_values("curated_joined", 7, 1);
  gpu.expect_ran({.free = 8, .split = 1, .join = 1, .joined = 7});
  // The second of its nodes is refused.
  const auto with_fault = [&](const auto& work_with_it) {
    CHECK(cuda().simcuda_set_faults("cuGraphExecKernelNodeSetParams=2@2") == 1);
    work_with_it();
    CHECK(cuda().simcuda_set_faults("") == 1);
  };
  update(8, 2);
  with_fault([&] { update(9, 3); });
  expect_values("curated_joined", 9, 3);
  with_fault([&] { executable.set(join, changed.params(work.join)); });
  expect_values("conform_join", 4, 3);
  gpu.finish({.free = 10, .split = 2, .join = 2, .joined = 8},
             {.hit = 1, .untracked = 1, .absorbed = 1});
}

// A change that a rewrite's exec cannot follow by nodes alone: a fill, or an address inside a buffer that is left out, be it
// an argument of another pair. Updates make it anew; what is set undoes all rewrites.
GPU_CASE(rewrite_follows_no_more) {
  const Work work(gpu);
  const Buffer filled, other_sums, other_out;
  const auto make = [&](CUgraph graph, unsigned fill_value, uint32_t* marks) {
    Floats first(gpu, work.in.get(), work.sums.get(), 1);
    Floats second(gpu, work.sums.get(), work.out.get(), 1);
    Floats third(gpu, work.in.get(), other_sums.get(), 1);
    Floats fourth(gpu, other_sums.get(), other_out.get(), 1);
    fourth.marks = marks;
    auto fill = zeroed<CUDA_MEMSET_NODE_PARAMS>();
    fill.dst = filled.address();
    fill.value = fill_value;
    fill.elementSize = sizeof(uint32_t);
    fill.width = kCount;
    fill.height = 1;
    CUgraphNode last = nullptr;
    OK(cuda().cuGraphAddMemsetNode(&last, graph, nullptr, 0, &fill, gpu.context()));
    last = work.add(graph, work.split, &first, {last});
    last = work.add(graph, work.join, &second, {last});
    last = work.add(graph, work.split, &third, {last});
    return work.add(graph, work.join, &fourth, {last});
  };
  const Graph graph;
  const CUgraphNode join = make(graph.get(), 1, gpu.marks());
  auto* const sums = reinterpret_cast<uint32_t*>(work.sums.get());
  {
    const Executable executable(graph.get());
    const auto update = [&](unsigned fill_value, uint32_t* marks) {
      const Graph next;
      make(next.get(), fill_value, marks);
      executable.update(next);
      executable.run(gpu);
    };
    for (const unsigned value : {1U, 2U, 2U, 3U}) {
      update(value, gpu.marks());
      uint32_t found = 0;
      OK(cuda().cuMemcpyDtoH_v2(&found, filled.address(), sizeof found));
      EXPECT_EQUAL(value, found);
    }
    gpu.expect_ran({.joined = 8});
    update(3, sums);
    gpu.expect_ran({.split = 1, .join = 1, .joined = 9});
    update(3, gpu.marks());
    gpu.expect_ran({.split = 1, .join = 1, .joined = 11});
  }
  const Executable executable(graph.get());
  Floats changed(gpu, other_sums.get(), other_out.get(), 1);
  changed.marks = sums;
  executable.set(join, changed.params(work.join));
  executable.run(gpu);
  gpu.finish({.split = 3, .join = 3, .joined = 11}, {.hit = 4, .absorbed = 4});
}

// What the host changes otherwise in its exec undoes the rewrite: it held for the graph as it was.
GPU_CASE(rewrite_is_undone) {
  const Work work(gpu);
  const Buffer elsewhere;
  const Graph graph;
  Floats first(gpu, work.in.get(), work.sums.get(), 1);
  Floats second(gpu, work.sums.get(), work.out.get(), 1);
  Floats changed(gpu, work.sums.get(), elsewhere.get(), 4);
  const CUgraphNode split = work.add(graph.get(), work.split, &first);
  const CUgraphNode join = work.add(graph.get(), work.join, &second, {split});
  const CUgraphNode other = work.add_free(graph.get(), gpu.marks(), {join});
  // An absorbed node is set.
  {
    const Executable executable(graph.get());
    executable.run(gpu);
    executable.set(join, changed.params(work.join));
    executable.run(gpu, 2);
    EXPECT_EQUAL(4, last_value_of("conform_join"));
    gpu.expect_ran({.free = 3, .split = 2, .join = 2, .joined = 1});
  }
  // Another node is given the sums' address.
  {
    const Executable executable(graph.get());
    executable.run(gpu);
    executable.set(other, work.free, Arguments(reinterpret_cast<uint32_t*>(work.sums.get()), 1, 2));
    executable.run(gpu);
  }
  gpu.expect_ran({.free = 5, .split = 3, .join = 3, .joined = 2});
  // One of the two is disabled, and enabled again.
  {
    const Executable executable(graph.get());
    executable.enable(join, false);
    CHECK(!executable.is_enabled(join));
    executable.run(gpu);
    executable.enable(join, true);
    executable.run(gpu);
    gpu.expect_ran({.free = 7, .split = 5, .join = 4, .joined = 2});
  }
  // Another graph is taken over: that is rewritten, too.
  {
    Floats third(gpu, work.sums.get(), work.out.get(), 7);
    const Graph next;
    const CUgraphNode next_split = work.add(next.get(), work.split, &first);
    const CUgraphNode next_join = work.add(next.get(), work.join, &third, {next_split});
    work.add_free(next.get(), gpu.marks(), {next_join});
    const Executable executable(graph.get());
    executable.run(gpu);
    executable.update(next);
    executable.run(gpu);
    EXPECT_EQUAL(7, last_value_of("curated_joined"));
  }
  gpu.finish({.free = 9, .split = 5, .join = 4, .joined = 4},
             {.hit = 4, .untracked = 4, .absorbed = 4});
}

// What one pair leaves out another's first kernel overwrites before its second reads it. Where the host disables that kernel,
// the second reads what the first pair has left there.
GPU_CASE(rewrite_is_undone_by_a_switch) {
  const Work work(gpu);
  const Buffer other;
  const Graph graph;
  Floats first(gpu, work.in.get(), work.sums.get(), 1);
  Floats second(gpu, work.sums.get(), work.out.get(), 1);
  Floats third(gpu, work.in.get(), work.sums.get(), 2, kUnsolvedCount);
  Floats fourth(gpu, work.sums.get(), other.get(), 2, kUnsolvedCount);
  const CUgraphNode split = work.add(graph.get(), work.split, &first);
  const CUgraphNode join = work.add(graph.get(), work.join, &second, {split});
  const CUgraphNode overwrites = work.add(graph.get(), work.split, &third, {join});
  work.add(graph.get(), work.join, &fourth, {overwrites});
  const Executable executable(graph.get());
  executable.run(gpu);
  gpu.expect_ran({.split = 1, .join = 1, .joined = 1});
  executable.enable(overwrites, false);
  executable.run(gpu);
  gpu.expect_ran({.split = 2, .join = 3, .joined = 1});
  executable.enable(overwrites, true);
  executable.run(gpu);
  gpu.finish({.split = 4, .join = 5, .joined = 1}, {.hit = 1, .no_solution = 2, .absorbed = 1});
}

// Each call that the rewrite makes of its own fails: the host's graph runs as it is, or all but the rewrite does.
GPU_CASE(rewrite_survives_failures) {
  const Work work(gpu);
  Ran ran;
  Counts counts;
  for (const char* name : {"cuGraphGetEdges_v2", "cuGraphDestroyNode", "cuGraphAddDependencies_v2",
                           "cuGraphNodeGetDependencies_v2", "cuGraphNodeGetDependentNodes_v2"}) {
    const Graph graph(gpu.capture([&] {
      OK(gpu.launch(work.free, 1, 1));
      work.launch_pair(5);
      OK(gpu.launch(work.free, 1, 1));
    }));
    CHECK(cuda().simcuda_set_faults((std::string(name) + "=2*9").c_str()) == 1);
    const Executable executable(graph.get());
    CHECK(cuda().simcuda_set_faults("") == 1);
    executable.run(gpu);
    ran.free += 2;
    ran.split += 1;
    ran.join += 1;
    counts.untracked += 4;
  }
  gpu.finish(ran, counts);
}

// The output of attention in a captured step: cuBLAS's two kernels are one of ours, in every layer, with one workspace
// for all. A size that nothing solves, one with too many rows, and a sum that does more than add up stay as they are.
GPU_CASE(rewrite_of_cublas) {
  const CUmodule module = gpu.load_module(kEngines);
  const CUfunction nvjet = gpu.function(module, kNvjet);
  const CUfunction reduce = gpu.function(module, kReduce);
  const CUdeviceptr workspace = device_memory(size_t{1} << 20);
  const CUdeviceptr b = device_memory(size_t{4096} * 4096 * 2 * 3);
  const CUdeviceptr a = b + size_t{4096} * 4096 * 2 * 2;
  const CUdeviceptr c = a + 65536;
  const Product o = {a, b, c, workspace, 4, 4096, 4096, 2};
  Product unknown = o;
  unknown.k = 8192;
  Product many = o;
  many.m = 33;
  Product more = o;
  more.epilogue = 0;
  const Graph graph(gpu.capture([&] {
    for (int layer = 0; layer < 3; ++layer) {
      launch_product(gpu, nvjet, reduce, o);
      launch_product(gpu, nvjet, reduce, unknown);
    }
  }));
  graph.run(gpu, 2);
  EXPECT_EQUAL(6, ran("gemm_k4096_m8_bf16"));
  EXPECT_EQUAL(6, ran(kNvjet));
  EXPECT_EQUAL(6, ran("splitk_reduce2_bf16"));
  // (A, B, C, M, N), with the solution's geometry and without the original's cluster.
  const SimcudaLaunch last = last_launch("gemm_k4096_m8_bf16");
  CUdeviceptr pointers[3];
  int32_t sizes[2];
  memcpy(pointers, last.params, sizeof pointers);
  memcpy(sizes, last.params + sizeof pointers, sizeof sizes);
  CHECK(pointers[0] == a && pointers[1] == b && pointers[2] == c);
  EXPECT_EQUAL(4, sizes[0]);
  EXPECT_EQUAL(4096, sizes[1]);
  Graph(gpu.capture([&] { launch_product(gpu, nvjet, reduce, many); })).run(gpu);
  EXPECT_EQUAL(7, ran(kNvjet));
  EXPECT_EQUAL(7, ran("splitk_reduce2_bf16"));
  Graph(gpu.capture([&] { launch_product(gpu, nvjet, reduce, more); })).run(gpu);
  EXPECT_EQUAL(1, ran(kReduce));
  EXPECT_EQUAL(1, ran("gemm_part2048_m8_bf16"));
  // A product in one kernel may have the workspace's address where nothing reads it, but not as one of its operands.
  const CUfunction whole = gpu.function(module, kWholeNvjet);
  const Product qkv = {a, b, c, 0, 4, 6144, 4096, 1};
  Product of_sums = qkv;
  of_sums.a = workspace;
  Graph(gpu.capture([&] {
    launch_whole(gpu, whole, qkv, workspace);
    launch_product(gpu, nvjet, reduce, o);
  })).run(gpu);
  EXPECT_EQUAL(8, ran("gemm_k4096_m8_bf16"));
  Graph(gpu.capture([&] {
    launch_product(gpu, nvjet, reduce, o);
    launch_whole(gpu, whole, of_sums, 0);
  })).run(gpu);
  EXPECT_EQUAL(9, ran("gemm_k4096_m8_bf16"));
  EXPECT_EQUAL(2, ran("gemm_part2048_m8_bf16"));
  EXPECT_EQUAL(8, ran("splitk_reduce2_bf16"));
  state({}, {.hit = 13, .no_solution = 3, .where = 2, .absorbed = 4});
}

// Products with a bias or an addend, in fp16 and in fp8. A sum with another bias than the product was given is replaced one for
// one; several products in one launch, another size, and what has no bias or scale where its name says so, are cuBLAS's.
GPU_CASE(products_of_cublas) {
  const CUmodule module = gpu.load_module(kEngines);
  const CUdeviceptr b = device_memory(size_t{1} << 27);
  const CUdeviceptr a = b + (size_t{1} << 26), c = a + (size_t{1} << 20);
  const CUdeviceptr workspace = c + (size_t{1} << 20), bias = workspace + (size_t{1} << 20);
  const CUfunction with_bias = gpu.function(module, kNvjetWithBias);
  Product qkv = {a, b, c, 0, 4, 4608, 3584, 1};
  qkv.bias = bias;
  launch_whole(gpu, with_bias, qkv, 0);
  EXPECT_EQUAL(1, ran("gemm_k3584_m8_bias_bf16"));
  CUdeviceptr pointers[5];
  memcpy(pointers, last_launch("gemm_k3584_m8_bias_bf16").params, sizeof pointers);
  CHECK(pointers[0] == a && pointers[1] == b && pointers[2] == bias && pointers[3] == c);
  Product several = qkv;
  several.last_product = 1;
  launch_whole(gpu, with_bias, several, 0);
  Product unknown = qkv;
  unknown.n = 4616;
  launch_whole(gpu, with_bias, unknown, 0);
  Product without = qkv;
  without.bias = 0;
  launch_whole(gpu, with_bias, without, 0);
  EXPECT_EQUAL(3, ran(kNvjetWithBias));

  launch_whole(gpu, gpu.function(module, kNvjetInFp16), {a, b, c, 0, 4, 6144, 4096, 1}, 0);
  EXPECT_EQUAL(1, ran("gemm_k4096_m8_fp16"));

  // C is added to itself; another addend is not what PyTorch asks for.
  const CUfunction adds = gpu.function(module, kNvjetWithAddend);
  Product added = {a, b, c, 0, 4, 4096, 4096, 1};
  added.addend = c;
  launch_whole(gpu, adds, added, 0);
  EXPECT_EQUAL(1, ran("gemm_k4096_m8_add_bf16"));
  memcpy(pointers, last_launch("gemm_k4096_m8_add_bf16").params, sizeof pointers);
  CHECK(pointers[2] == c && pointers[3] == c);
  added.addend = bias;
  launch_whole(gpu, adds, added, 0);
  EXPECT_EQUAL(1, ran(kNvjetWithAddend));

  Product scaled = {a, b, c, 0, 16, 8192, 4096, 1};
  scaled.scale_a = bias;
  scaled.scale_b = bias + 4;
  launch_whole(gpu, gpu.function(module, kNvjetInFp8), scaled, 0);
  EXPECT_EQUAL(1, ran("gemm_wide_pair_m16_fp8"));
  memcpy(pointers, last_launch("gemm_wide_pair_m16_fp8").params, sizeof pointers);
  CHECK(pointers[2] == scaled.scale_a && pointers[3] == scaled.scale_b && pointers[4] == c);
  Product unscaled = scaled;
  unscaled.scale_b = 0;
  launch_whole(gpu, gpu.function(module, kNvjetInFp8), unscaled, 0);
  EXPECT_EQUAL(1, ran(kNvjetInFp8));

  const CUfunction split = gpu.function(module, kSplitNvjetWithBias);
  const CUfunction reduce = gpu.function(module, kReduceWithBias);
  Product o = {a, b, c, workspace, 4, 4096, 4096, 2};
  o.bias = bias;
  o.epilogue = 4;
  Product other = o;
  other.bias = 0;
  Graph(gpu.capture([&] { launch_product(gpu, split, reduce, o); })).run(gpu);
  EXPECT_EQUAL(1, ran("gemm_k4096_m8_bias_bf16"));
  Graph(gpu.capture([&] {
    char bytes[1720];
    uint32_t words[15];
    other.fill(bytes, words);
    launch_packed(gpu, split, cluster_of_four(), 128, bytes, sizeof bytes);
    launch_reduce(gpu, reduce, o);
  })).run(gpu);
  EXPECT_EQUAL(1, ran("gemm_part2048_m8_bf16"));
  EXPECT_EQUAL(1, ran("splitk_reduce2_bias_bf16"));
  launch_reduce(gpu, reduce, other);
  EXPECT_EQUAL(1, ran(kReduceWithBias));
  state({}, {.hit = 7, .no_solution = 1, .where = 5, .absorbed = 1});
}

// Each launch is to be checked: both kernels run, and beside them, in some launches, the solution that would run for both.
GPU_CASE(check_rewrite_of_cublas) {
  const CUmodule module = gpu.load_module(kEngines);
  const CUfunction nvjet = gpu.function(module, kNvjet);
  const CUfunction reduce = gpu.function(module, kReduce);
  const CUdeviceptr workspace = device_memory(size_t{1} << 20);
  const CUdeviceptr b = device_memory(size_t{4096} * 4096 * 2 * 3);
  const CUdeviceptr a = b + size_t{4096} * 4096 * 2 * 2;
  const Product o = {a, b, a + 65536, workspace, 4, 4096, 4096, 2};
  const Graph graph(gpu.capture([&] {
    for (int layer = 0; layer < 3; ++layer) launch_product(gpu, nvjet, reduce, o);
  }));
  const Executable executable(graph.get());
  int launches = 0;
  for (; ran("fibshim_shadow_compare") < 6; ++launches) {
    executable.run(gpu);
    sched_yield();
  }
  EXPECT_EQUAL(3 * launches, ran(kNvjet));
  EXPECT_EQUAL(3 * launches, ran(kReduce));
  EXPECT_EQUAL(ran("fibshim_shadow_compare"), ran("gemm_k4096_m8_bf16"));
  state({}, {.hit = 3, .absorbed = 3});
}
