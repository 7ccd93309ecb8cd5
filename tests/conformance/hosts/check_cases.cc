// Launches of graphs that are to be checked (FIBSHIM_SHADOW). From the moment on at which checks
// are requested, the originals run, whatever the host does with its executable graphs. Nothing is
// compared here, since the driver refuses the copies.
#include <malloc.h>

#include <atomic>
#include <fstream>
#include <memory>
#include <thread>

#include "tests/conformance/hosts/control.h"
#include "tests/conformance/hosts/graphs.h"

namespace conform {
namespace {

// A chain of kernels of one shape.
struct Chain {
  Graph graph;
  std::vector<CUgraphNode> nodes;

  Chain(const Gpu& gpu, CUfunction kernel, int shape, int count = 2) {
    for (int i = 0; i < count; ++i) {
      nodes.push_back(graph.add(kernel, Arguments(gpu.marks(), shape, 1 + i % 4),
                                nodes.empty() ? nullptr : nodes.back()));
    }
  }
};

// Requests, by turns, that all launches are checked and that one of `interval` is, `times` times in
// all, while launches are made.
class Teller {
 public:
  Teller(int times, uint32_t interval)
      : times_(times), thread_([this, interval] {
          Control control;
          while (changes_ < times_) {
            control.must_check(1);
            ++changes_;
            usleep(500);
            ++changes_;
            control.must_check(interval);
          }
        }) {}
  ~Teller() { thread_.join(); }

  // Makes some launches. If all were to be checked, no replacement may have run. Returns false at
  // the end.
  template <class Launch>
  bool run(const Launch& launch) {
    const int before = changes_;
    const long ran = curated();
    launch();
    ++runs_;
    if (before % 2 == 1 && before == changes_) EXPECT_EQUAL(ran, curated());
    return changes_ < times_;
  }
  long runs() const { return runs_; }
  static long curated() { return static_cast<long>(cuda().simcuda_launch_count("curated_n1")); }

 private:
  const int times_;
  std::atomic<int> changes_{0};  // odd while all launches are to be checked
  long runs_ = 0;
  std::thread thread_;
};

void fail_calls(const std::string& calls) {
  CHECK(cuda().simcuda_set_faults((calls + ",cuGraphAddMemcpyNode=1").c_str()) == 1);
}

}  // namespace
}  // namespace conform

using namespace conform;

// The host's own exec holds the replacements.
GPU_CASE(check_graph_in_place) {
  const auto own = gpu.handles();
  fail_calls("");
  const Chain chain(gpu, own.step, 1);
  const Executable executable(chain.graph.get());
  executable.run(gpu);
  Control control;
  control.must_check(1);
  executable.run(gpu);
  // An update that the driver refuses changes nothing.
  const Chain longer(gpu, own.step, 1, 3);
  auto info = zeroed<CUgraphExecUpdateResultInfo>();
  CHECK(cuda().cuGraphExecUpdate_v2(executable.get(), longer.graph.get(), &info) != CUDA_SUCCESS);
  executable.run(gpu);
  // If a node cannot be set in the exec of the originals, a new one is made.
  executable.set(chain.nodes[0], own.free, Arguments(gpu.marks(), 1, 1));
  fail_calls("cuGraphExecKernelNodeSetParams_v2=1@2*1");
  executable.set(chain.nodes[0], own.step, Arguments(gpu.marks(), 1, 1));
  fail_calls("");
  executable.run(gpu);
  const Chain other(gpu, own.step, 1);
  executable.update(other.graph);
  executable.run(gpu);
  gpu.finish({.step = 8, .curated1 = 2}, {.hit = 2});
}

// The host sets a node to a kernel that is to be checked, in an exec without any such kernel.
GPU_CASE(check_graph_set_in_place) {
  const auto own = gpu.handles();
  fail_calls("");
  const Chain chain(gpu, own.step, 1);
  const Executable executable(chain.graph.get());
  Control control;
  control.must_check(1, "conform_n2");
  executable.run(gpu);
  executable.set(chain.nodes[0], own.step, Arguments(gpu.marks(), 2, 1));
  executable.run(gpu);
  gpu.finish({.step = 2, .curated1 = 2}, {.hit = 2});
}

// If the driver cannot copy a graph, no exec of the originals exists: a node that is set keeps its
// original.
GPU_CASE(check_graph_set_uncopied) {
  const auto own = gpu.handles();
  const Graph graph;
  const CUgraphNode node =
      graph.add(own.free, Arguments(gpu.marks(), 1, 1), add_memory_nodes(gpu, graph.get()));
  const Executable executable(graph.get());
  executable.run(gpu);
  executable.set(node, own.step, Arguments(gpu.marks(), 1, 1));
  executable.run(gpu);
  gpu.finish({.step = 1, .free = 1}, {.untracked = 1});
}

// The originals of a graph whose own exec holds replacements are not known any more. Two launches
// are not checked.
GPU_CASE(check_graph_left) {
  const auto own = gpu.handles();
  fail_calls("");
  const Chain chain(gpu, own.step, 1);
  const Chain other(gpu, own.step, 1);
  const Executable executable(chain.graph.get());
  executable.update(other.graph);
  executable.run(gpu);
  Control control;
  control.must_check(1);
  executable.run(gpu);
  fail_calls("cuGraphKernelNodeSetParams_v2=1*1");  // in the copy
  executable.set(chain.nodes[0], own.step, Arguments(gpu.marks(), 1, 1));
  executable.run(gpu);
  gpu.finish({.step = 2, .curated1 = 4}, {.hit = 2});
}

// A process is off when it is told to check all launches; when it is on again, its graphs are
// checked.
GPU_CASE(check_graphs_when_on) {
  const auto own = gpu.handles();
  fail_calls("");
  constexpr int kGraphs = 300;
  const Chain chain(gpu, own.step, 1);
  std::vector<std::unique_ptr<Executable>> executables;
  for (int i = 0; i < kGraphs; ++i) {
    executables.push_back(std::make_unique<Executable>(chain.graph.get()));
  }
  Control control;
  CHECK(control.move(AskTarget::off) == AnswerState::moved);
  control.must_check(1);
  CHECK(control.move(AskTarget::on) == AnswerState::moved);
  for (auto one = executables.rbegin(); one != executables.rend(); ++one) (*one)->run(gpu);
  gpu.finish({.step = 2 * kGraphs}, {.hit = 2 * kGraphs});
}

// The exec of the originals ends when nothing is checked any more.
GPU_CASE(check_graph_no_more) {
  const auto own = gpu.handles();
  fail_calls("");
  const Chain chain(gpu, own.step, 1);
  const Executable executable(chain.graph.get());
  Control control;
  executable.run(gpu);
  for (int i = 0; i < 3; ++i) {
    control.must_check(1);
    executable.run(gpu);
    EXPECT_EQUAL(2, cuda().simcuda_live_count("graph_exec"));
    control.must_check(0);
    executable.run(gpu, 2);
    for (int k = 0; k < 1000 && cuda().simcuda_live_count("graph_exec") != 1; ++k) usleep(10'000);
    EXPECT_EQUAL(1, cuda().simcuda_live_count("graph_exec"));
  }
  gpu.finish({.step = 6, .curated1 = 14}, {.hit = 2});
}

// Kernels of another context than the graph's are not checked: the memory for checks is in the
// graph's context.
GPU_CASE(check_graph_of_two_contexts) {
  const CUfunction step = gpu.step();
  CUcontext other = nullptr;
  OK(cuda().cuCtxCreate_v2(&other, 0, gpu.device()));
  const CUfunction there = gpu.step();
  gpu.enter();
  long launches = 0;
  const auto checks = [] { return cuda().simcuda_launch_count("curated_n1"); };
  {
    const Graph graph;
    (void)graph.add(step, Arguments(gpu.marks(), 1, 1));
    (void)graph.add(there, Arguments(gpu.marks(), 2, 1));
    const Executable executable(graph.get());
    for (; checks() < 5 && launches < 3000; ++launches) {
      executable.run(gpu);
      usleep(5'000);
    }
    CHECK(checks() >= 5);
    EXPECT_EQUAL(0, cuda().simcuda_launch_count("curated_n2"));
  }
  OK(cuda().cuCtxDestroy_v2(other));
  gpu.finish({.step = 2 * launches, .curated1 = static_cast<long>(checks())}, {.hit = 2});
}

// Launches of a CUkernel in streams of another context than the current one, of the same GPU and of
// another one, are checked there.
GPU_CASE(check_streams_of_other_contexts) {
  const auto kernel = reinterpret_cast<CUfunction>(gpu.kernel(gpu.load_library()));
  const auto checks = [] { return ran("fibshim_shadow_compare"); };
  CUcontext others[2] = {};
  OK(cuda().cuCtxCreate_v2(&others[0], 0, gpu.device()));
  OK(cuda().cuDevicePrimaryCtxRetain(&others[1], 1));
  long launches = 0;
  for (const CUcontext other : others) {
    OK(cuda().cuCtxSetCurrent(other));
    const CUstream stream = new_stream();
    gpu.enter();
    const long before = checks();
    for (int i = 0; checks() == before && i < 3000; ++i) {
      OK(gpu.launch_on(stream, kernel));
      ++launches;
      usleep(5'000);
    }
    CHECK(checks() > before);
    const SimcudaLaunch last = last_launch("curated_n1");
    void* context = nullptr;
    OK(cuda().cuPointerGetAttribute(&context, CU_POINTER_ATTRIBUTE_CONTEXT,
                                    param_at<CUdeviceptr>(last, 8)));
    CHECK(last.context == other);
    CHECK(context == other);
  }
  gpu.finish({.step = launches, .curated1 = checks()}, {.shadowed = launches});
}

// A node with so many parameters that it cannot be checked does not keep the others from it.
GPU_CASE(check_graph_beside_unchecked) {
  const CUmodule module = gpu.load_module();
  struct {
    uint32_t* marks;
    int32_t shape, value;
    char rest[8192 - 16];
  } step = {gpu.marks(), 1, 1, {}};
  void* pointers[] = {&step};
  const Graph graph;
  std::vector<CUgraphNode> last;
  const auto add = [&](const char* kernel, int shape) {
    step.shape = shape;
    auto params = one_block<NodeParams2>();
    params.func = gpu.function(module, kernel);
    params.kernelParams = pointers;
    last = {add_kernel(graph.get(), params, last)};
  };
  add("conform_large", 1);
  add("conform_huge", 2);
  add("conform_large", 1);
  const Executable executable(graph.get());
  for (int i = 0; ran("curated_n1") < 6 && i < 3000; ++i) {
    executable.run(gpu);
    usleep(5'000);
  }
  CHECK(ran("curated_n1") >= 6);
  gpu.finish({.curated1 = ran("curated_n1"), .large = ran("conform_large")}, {.hit = 3});
}

// Memory for checks stays with its context, whatever else ends; that of a context that ends is used again.
GPU_CASE(check_beside_ends) {
  mallopt(M_ARENA_MAX, 1);  // that of another thread maps 64 MB, whenever it comes
  CUcontext own = nullptr;
  OK(cuda().cuCtxCreate_v2(&own, 0, 1));
  const CUfunction step = gpu.step();
  const auto checks = [] { return ran("fibshim_shadow_compare"); };
  long launches = 0;
  const auto check = [&](CUfunction function) {
    const long before = checks();
    for (int i = 0; checks() == before && i < 3000; ++i, ++launches) {
      OK(gpu.launch_on(nullptr, function));
      if (i != 0) usleep(5'000);
    }
    CHECK(checks() > before);
  };
  check(step);
  const long allocations = calls("cuMemAlloc_v2");
  for (int i = 0; i < 4; ++i) {
    CUcontext other = nullptr;
    OK(cuda().cuDevicePrimaryCtxRetain(&other, 1));
    OK(cuda().cuDevicePrimaryCtxRelease_v2(1));
    check(step);
    auto resource = zeroed<CUdevResource>();
    CUdevResourceDesc description = nullptr;
    CUgreenCtx green = nullptr;
    OK(cuda().cuDeviceGetDevResource(gpu.device(), &resource, CU_DEV_RESOURCE_TYPE_SM));
    OK(cuda().cuDevResourceGenerateDesc(&description, &resource, 1));
    OK(cuda().cuGreenCtxCreate(&green, description, 1, CU_GREEN_CTX_DEFAULT_STREAM));
    OK(cuda().cuGreenCtxDestroy(green));
    check(step);
  }
  EXPECT_EQUAL(allocations, calls("cuMemAlloc_v2"));
  const auto mapped_bytes = [] {
    long pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    return pages * getpagesize();
  };
  long before = 0;
  for (int i = 0; i < 200; ++i) {
    if (i == 20) before = mapped_bytes();
    CUcontext context = nullptr;
    OK(cuda().cuCtxCreate_v2(&context, 0, gpu.device()));
    check(gpu.step());
    OK(cuda().cuCtxSynchronize());
    OK(cuda().cuCtxDestroy_v2(context));
    OK(cuda().cuCtxSetCurrent(own));
  }
  CHECK(mapped_bytes() - before < 20 << 20);
  gpu.finish({.step = launches, .curated1 = checks()}, {.shadowed = launches});
}

// Graphs are instantiated while checks are requested.
GPU_CASE(check_graph_while_told) {
  const auto own = gpu.handles();
  fail_calls("");
  constexpr int kNodes = 30;  // makes instantiation slow
  const Chain chain(gpu, own.step, 1, kNodes);
  chain.graph.run(gpu);
  Teller teller(2400, 0);
  for (bool goes_on = true; goes_on;) {
    const Executable executable(chain.graph.get());
    goes_on = teller.run([&] { executable.run(gpu); });
  }
  const long curated = teller.curated();
  gpu.finish({.step = kNodes * (1 + teller.runs()) - curated, .curated1 = curated},
             {.hit = kNodes * (1 + teller.runs())});
}

// A graph is launched while checks are requested.
GPU_CASE(check_launched_graph_while_told) {
  const auto own = gpu.handles();
  fail_calls("");
  const Chain chain(gpu, own.step, 1);
  const Executable executable(chain.graph.get());
  executable.run(gpu);
  Teller teller(1000, 1'000'000);
  while (teller.run([&] { executable.run(gpu, 5); })) {
  }
  const long curated = teller.curated();
  gpu.finish({.step = 2 + 10 * teller.runs() - curated, .curated1 = curated}, {.hit = 2});
}

// Kernels are launched outside graphs while checks are requested.
GPU_CASE(check_launches_while_told) {
  const auto own = gpu.handles();
  fail_calls("cuMemcpyDtoDAsync_v2=1");
  OK(gpu.launch(own.step));
  Teller teller(2000, 1'000'000);
  while (teller.run([&] {
    for (int i = 0; i < 20; ++i) OK(gpu.launch(own.step));
  })) {
  }
  const long curated = teller.curated();
  const long shadowed = 1 + 20 * teller.runs() - curated;
  gpu.finish({.step = shadowed, .curated1 = curated}, {.hit = curated, .shadowed = shadowed});
}

// An exec with checks takes memory: there is room for 21 nodes, so none for the long graph, and for
// the short one again and again.
GPU_CASE(check_graphs_without_room) {
  const auto own = gpu.handles();
  const Chain many(gpu, own.step, 1, 30);
  const Chain one(gpu, own.step, 1, 1);
  const Executable long_exec(many.graph.get());
  const Executable short_exec(one.graph.get());
  int rounds = 0;
  for (; ran("fibshim_shadow_compare") < 25; ++rounds) {
    long_exec.run(gpu);
    short_exec.run(gpu);
    sched_yield();
  }
  long_exec.run(gpu);
  EXPECT_EQUAL(31 * rounds + 30, ran(kStep));
  EXPECT_EQUAL(ran("fibshim_shadow_compare"), ran("curated_n1"));
  state({}, {.hit = 31});
}
