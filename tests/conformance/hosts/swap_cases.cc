// The process moves to another config folder while it launches. In folder "b" shape 1 of
// conform_step has the kernel of shape 2; in "bad" a pattern is not JSON; "link" leads to "a".
//
// The cases request swaps as `fibshim swap` does, through the control block of the process's own
// counters file. The command itself is tested in tests/tools.
#include <atomic>
#include <functional>
#include <memory>

#include "tests/conformance/hosts/control.h"
#include "tests/conformance/hosts/graphs.h"
#include "tests/conformance/hosts/launchers.h"

namespace conform {
namespace {

// Repoints `link` to `target` atomically.
void repoint(const std::string& link, const char* target) {
  const std::string temporary = link + ".new";
  CHECK(symlink(target, temporary.c_str()) == 0);
  CHECK(rename(temporary.c_str(), link.c_str()) == 0);
}

constexpr int kThreads = 8;

int rounds(int simulated) { return cuda().is_simulated ? simulated : 5; }

// How many launches of shape 1 ran since `before` with folder a, and with folder b.
long ran_a(const Ran& before, const uint32_t* marks) {
  return what_ran(marks).curated1 - before.curated1;
}
long ran_b(const Ran& before, const uint32_t* marks) {
  return what_ran(marks).curated2 - before.curated2;
}

}  // namespace
}  // namespace conform

using namespace conform;

// Every launch uses the old folder or the new one, and once the process has moved, the new one.
GPU_CASE(swap_under_load) {
  const auto own = gpu.handles();
  OK(gpu.launch(own.step, 1));
  Control control;
  long each = 1;
  long each_free = 0;
  Ran ran = {.curated1 = 1};
  for (int round = 0; round < rounds(40); ++round) {
    const bool is_to_b = round % 2 == 0;
    gpu.expect_ran(ran);
    Launchers launchers(gpu, kThreads, own);
    control.must_move(folder(arguments, is_to_b ? "b" : "a"));
    launchers.set_moved();
    control.must_move(folder(arguments, is_to_b ? "b" : "a"));  // it is there already
    for (int i = 0; i < 100; ++i) OK(gpu.launch(own.step, 1));
    const long more = launchers.stop();
    OK(cuda().cuCtxSynchronize());
    const long a = ran_a(ran, gpu.marks());
    const long b = ran_b(ran, gpu.marks());
    EXPECT_EQUAL(more + 100, a + b);
    CHECK((is_to_b ? b : a) >= launchers.after() + 100);
    ran = what_ran(gpu.marks());
    each += more + 100;
    each_free += more;
  }
  EXPECT_EQUAL(rounds(40), control.block().status.swap_count);
  ran.free = each_free;
  gpu.finish(ran, {.hit = each, .untracked = each_free});
}

// A captured graph runs the replacements of the folder in force: old, new and old kernels under one
// handle.
GPU_CASE(swap_and_graphs) {
  const CUfunction step = gpu.step();
  CUgraphExec executable = nullptr;
  {
    const Graph graph(gpu.capture([&] { OK(gpu.launch(step, 1)); }, CU_STREAM_CAPTURE_MODE_GLOBAL));
    OK(cuda().cuGraphInstantiateWithFlags(&executable, graph.get(), 0));
  }
  const auto run = [&](int times) {
    for (int i = 0; i < times; ++i) OK(cuda().cuGraphLaunch(executable, gpu.stream()));
  };
  run(2);
  Control control;
  control.must_move(folder(arguments, "b"));
  EXPECT_EQUAL(1, control.block().moved_graphs);
  EXPECT_EQUAL(0, control.block().kept_graphs);
  run(3);
  OK(gpu.launch(step, 1));
  gpu.expect_ran({.curated1 = 2, .curated2 = 4});
  // While another stream captures, which must not affect the graph.
  const Graph later(gpu.capture(
      [&] {
        control.must_move(folder(arguments, "a"));
        OK(gpu.launch(step, 1));
      },
      CU_STREAM_CAPTURE_MODE_GLOBAL));
  run(1);
  later.run(gpu);
  gpu.expect_ran({.curated1 = 4, .curated2 = 4});
  // Moved there and back between two launches; then off, and on again.
  control.must_move(folder(arguments, "b"));
  control.must_move(folder(arguments, "a"));
  run(1);
  gpu.expect_ran({.curated1 = 5, .curated2 = 4});
  CHECK(control.move(AskTarget::off, "") == AnswerState::moved);
  run(2);
  gpu.expect_ran({.step = 2, .curated1 = 5, .curated2 = 4});
  CHECK(control.move(AskTarget::on, "") == AnswerState::moved);
  run(1);
  OK(cuda().cuGraphExecDestroy(executable));
  gpu.finish({.step = 2, .curated1 = 6, .curated2 = 4}, {.hit = 3});
}

// The host changes an exec in every way, before a swap and between a swap and the next launch.
GPU_CASE(swap_and_changed_graphs) {
  const auto own = gpu.handles();
  Control control;
  Ran ran;
  long hits = 0;
  for (int i = 0; i < 6; ++i) {
    const bool is_b = i % 2 == 0;
    const Graph graph;
    const CUgraphNode one = graph.add(own.step, Arguments(gpu.marks(), 1, 10));
    const CUgraphNode two = graph.add(own.step, Arguments(gpu.marks(), 2, 11), one);
    const Executable executable(graph.get());
    hits += 2;
    executable.set(one, own.step, Arguments(gpu.marks(), 1, 12));
    executable.set(two, own.step, Arguments(gpu.marks(), 2, 15));
    if (i % 3 == 0) executable.enable(two, false);
    executable.run(gpu);
    add_curated(&ran, is_b ? 1 : 2);
    if (i % 3 != 0) add_curated(&ran, 2);
    control.must_move(folder(arguments, is_b ? "b" : "a"));
    if (i % 3 == 0) executable.enable(two, true);
    if (i % 3 == 1) executable.set(two, own.free, Arguments(gpu.marks(), 1, 13));
    if (i % 3 == 2) {
      const Graph next;
      Arguments third(gpu.marks(), 1, 14);
      next.add(own.step, &third, next.add(own.step, &third));
      executable.update(next);
    }
    executable.run(gpu);
    const int shape1 = is_b ? 2 : 1;
    add_curated(&ran, shape1);
    if (i % 3 == 0) add_curated(&ran, 2);
    if (i % 3 == 1) ++ran.free;
    if (i % 3 == 2) add_curated(&ran, shape1);
    gpu.expect_last_value(i % 3 == 0 ? 15 : i % 3 == 1 ? 13 : 14);
  }
  gpu.finish(ran, {.hit = hits});
}

// From a folder with a rewrite to one without, and back: two nodes become one, two and one again;
// but they stay two if the host has disabled one of them.
GPU_CASE(swap_and_rewrites) {
  const CUmodule module = gpu.load_module();
  Control control;
  const CUdeviceptr memory = device_memory(4096);
  const auto launch = [&](const char* kernel, CUdeviceptr from, CUdeviceptr to) {
    uint32_t* marks = gpu.marks();
    int32_t count = 64;
    int32_t value = 3;
    void* params[] = {&from, &to, &marks, &count, &value};
    OK(cuda().cuLaunchKernel(gpu.function(module, kernel), 1, 1, 1, 32, 1, 1, 0, gpu.stream(),
                             params, nullptr));
  };
  const Graph graph(gpu.capture([&] {
    launch("conform_split", memory, memory + 1024);
    launch("conform_join", memory + 1024, memory + 2048);
  }));
  const Executable executable(graph.get());
  executable.run(gpu, 2);
  gpu.expect_ran({.joined = 2});
  control.must_move(folder(arguments, "b"));
  EXPECT_EQUAL(1, control.block().moved_graphs);
  executable.run(gpu, 3);
  gpu.expect_ran({.split = 3, .join = 3, .joined = 2});
  control.must_move(folder(arguments, "a"));
  executable.run(gpu, 4);
  gpu.expect_ran({.split = 3, .join = 3, .joined = 6});
  control.must_move(folder(arguments, "b"));
  executable.run(gpu);
  OK(cuda().cuGraphNodeSetEnabled(executable.get(), graph.nodes().at(0), 0));
  control.must_move(folder(arguments, "a"));
  executable.run(gpu, 2);
  OK(cuda().cuGraphNodeSetEnabled(executable.get(), graph.nodes().at(0), 1));
  executable.run(gpu);
  gpu.finish({.split = 5, .join = 7, .joined = 6}, {.hit = 1, .absorbed = 1});
}

// A user object ends with its exec, or when the exec is updated from another graph, whatever ran in
// the exec's place.
GPU_CASE(swap_and_user_objects) {
  Control control;
  const CUmodule module = gpu.load_module();
  const CUdeviceptr memory = device_memory(4096);
  const CUfunction pair[] = {gpu.function(module, "conform_split"),
                             gpu.function(module, "conform_join")};
  const CUfunction step = gpu.step();
  const auto launch_pair = [&] {
    for (int i = 0; i < 2; ++i) {
      CUdeviceptr from = memory + 1024 * i, to = from + 1024;
      uint32_t* marks = gpu.marks();
      int32_t count = 64, value = 3;
      void* params[] = {&from, &to, &marks, &count, &value};
      OK(cuda().cuLaunchKernel(pair[i], 1, 1, 1, 32, 1, 1, 0, gpu.stream(), params, nullptr));
    }
  };
  const auto capture = [&](bool is_rewritten, std::atomic<int>* ended) {
    CUgraph graph = gpu.capture([&] {
      if (is_rewritten) {
        launch_pair();
      } else {
        OK(gpu.launch(step, 1, 1));
      }
    });
    CUuserObject object = nullptr;
    const CUhostFn destroy = [](void* data) { ++*static_cast<std::atomic<int>*>(data); };
    OK(cuda().cuUserObjectCreate(&object, ended, destroy, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
    OK(cuda().cuGraphRetainUserObject(graph, object, 1, CU_GRAPH_USER_OBJECT_MOVE));
    return graph;
  };
  // The driver calls destructors on a thread of its own, and the shim ends replaced execs on
  // another.
  const auto must_end = [](const std::atomic<int>& ended) {
    for (int i = 0; i < 10'000 && ended == 0; ++i) usleep(1'000);
    EXPECT_EQUAL(1, ended.load());
  };
  for (const bool is_rewritten : {false, true}) {
    std::atomic<int> first = 0, second = 0;
    {
      auto graph = std::make_unique<Graph>(capture(is_rewritten, &first));
      const Executable executable(graph->get());
      graph.reset();
      executable.run(gpu);
      control.must_move(folder(arguments, "b"));
      executable.run(gpu);
      control.must_move(folder(arguments, "a"));
      executable.run(gpu);
      EXPECT_EQUAL(0, first.load());
      executable.update(Graph(capture(is_rewritten, &second)));
      executable.run(gpu);
      must_end(first);
      EXPECT_EQUAL(0, second.load());
    }
    must_end(second);
  }
  OK(cuda().cuMemFree_v2(memory));
  gpu.finish({.curated1 = 3, .curated2 = 1, .split = 1, .join = 1, .joined = 3},
             {.hit = 2, .absorbed = 1});
}

// Many graphs, launched in two streams while the process moves: each launch runs one folder's kernels.
GPU_CASE(swap_and_many_graphs) {
  constexpr int kGraphs = 20;
  const CUfunction step = gpu.step();
  const CUstream streams[2] = {new_stream(), new_stream()};
  std::vector<CUgraphExec> executables(kGraphs);
  for (CUgraphExec& executable : executables) {
    const Graph graph(
        gpu.capture([&] { OK(gpu.launch(step, 1)); }, CU_STREAM_CAPTURE_MODE_RELAXED));
    OK(cuda().cuGraphInstantiateWithFlags(&executable, graph.get(), 0));
  }
  std::atomic<bool> is_over{false};
  std::thread mover([&] {
    Control control;
    for (int i = 0; i < rounds(20); ++i)
      control.must_move(folder(arguments, i % 2 == 0 ? "b" : "a"));
    is_over.store(true);
  });
  long launches = 0;
  while (!is_over.load()) {
    for (const CUgraphExec executable : executables) {
      OK(cuda().cuGraphLaunch(executable, streams[launches++ % 2]));
    }
  }
  mover.join();
  for (const CUgraphExec executable : executables) OK(cuda().cuGraphExecDestroy(executable));
  OK(cuda().cuCtxSynchronize());
  const Ran ran = what_ran(gpu.marks());
  EXPECT_EQUAL(launches, ran.curated1 + ran.curated2);
  gpu.finish(ran, {.hit = kGraphs});
}

// The first launch of a graph's new exec waits for the last one of the old exec: in the same stream
// it follows anyway, otherwise an upload of the old exec orders it. A graph that cannot be prepared
// keeps its exec, and so does a graph that has lost a module.
GPU_CASE(swap_graph_details) {
  const CUmodule module = gpu.load_module();
  const CUfunction step = gpu.function(module);
  const Graph graph;
  graph.add(step, Arguments(gpu.marks(), 1, 7));
  const Executable executable(graph.get());
  const CUstream other = new_stream();
  Control control;
  // Runs it in a stream. Returns how often the shim has uploaded something for that.
  const auto run_in = [&](CUstream stream) {
    const long before = calls("cuGraphUpload");
    OK(cuda().cuGraphLaunch(executable.get(), stream));
    return calls("cuGraphUpload") - before;
  };
  EXPECT_EQUAL(0, run_in(gpu.stream()));
  control.must_move(folder(arguments, "b"));
  EXPECT_EQUAL(1, run_in(other));
  EXPECT_EQUAL(0, run_in(gpu.stream()));
  control.must_move(folder(arguments, "a"));
  EXPECT_EQUAL(0, run_in(gpu.stream()));
  gpu.expect_ran({.curated1 = 2, .curated2 = 2});
  // If the upload fails, the host waits for the stream of the last launch, not for the whole
  // context.
  control.must_move(folder(arguments, "b"));
  CHECK(cuda().simcuda_set_faults("cuGraphUpload=2*1") == 1);
  uint64_t waits = cuda().simcuda_call_count("cuCtxSynchronize");
  EXPECT_EQUAL(1, run_in(other));
  EXPECT_EQUAL(waits, cuda().simcuda_call_count("cuCtxSynchronize"));
  CHECK(cuda().simcuda_set_faults("") == 1);
  control.must_move(folder(arguments, "a"));
  EXPECT_EQUAL(1, run_in(gpu.stream()));
  gpu.expect_ran({.curated1 = 3, .curated2 = 3});
  // The handle of a stream that has ended may belong to another stream: then the upload is repeated,
  // and the context is waited for only if that fails, too.
  OK(cuda().cuStreamDestroy_v2(other));
  control.must_move(folder(arguments, "b"));
  CHECK(cuda().simcuda_set_faults("cuGraphUpload=2*3") == 1);
  waits = cuda().simcuda_call_count("cuCtxSynchronize");
  EXPECT_EQUAL(3, run_in(gpu.stream()));
  EXPECT_EQUAL(waits + 1, cuda().simcuda_call_count("cuCtxSynchronize"));
  CHECK(cuda().simcuda_set_faults("") == 1);
  // That would invalidate a capture beside it.
  const CUstream capturing = new_stream();
  OK(cuda().cuStreamDestroy_v2(new_stream()));
  control.must_move(folder(arguments, "a"));
  OK(cuda().cuStreamBeginCapture_v2(capturing, CU_STREAM_CAPTURE_MODE_RELAXED));
  CHECK(cuda().simcuda_set_faults("cuGraphUpload=2*1") == 1);
  EXPECT_EQUAL(2, run_in(gpu.stream()));
  CHECK(cuda().simcuda_set_faults("") == 1);
  CUgraph captured = nullptr;
  OK(cuda().cuStreamEndCapture(capturing, &captured));
  OK(cuda().cuGraphDestroy(captured));
  control.must_move(folder(arguments, "b"));
  EXPECT_EQUAL(0, run_in(gpu.stream()));

  CHECK(cuda().simcuda_set_faults("cuGraphInstantiateWithFlags=2*1") == 1);
  control.must_move(folder(arguments, "a"));
  EXPECT_EQUAL(0, control.block().moved_graphs);
  EXPECT_EQUAL(1, control.block().kept_graphs);
  CHECK(cuda().simcuda_set_faults("") == 1);
  EXPECT_EQUAL(0, run_in(gpu.stream()));
  gpu.expect_ran({.curated1 = 4, .curated2 = 6});
  // At the next move it moves, too.
  control.must_move(folder(arguments, "b"));
  control.must_move(folder(arguments, "a"));
  EXPECT_EQUAL(1, control.block().moved_graphs);
  EXPECT_EQUAL(0, run_in(gpu.stream()));

  OK(cuda().cuModuleUnload(module));
  const long clones = calls("cuGraphClone");
  control.must_move(folder(arguments, "b"));
  EXPECT_EQUAL(0, control.block().moved_graphs);
  EXPECT_EQUAL(1, control.block().kept_graphs);
  EXPECT_EQUAL(clones, calls("cuGraphClone"));
  EXPECT_EQUAL(0, run_in(gpu.stream()));
  // The watcher ends all execs that were replaced.
  gpu.finish({.curated1 = 6, .curated2 = 6}, {.hit = 1});
}

// What a launch waits for if the driver refuses its uploads: never for a stream that captures by now, and for the graph's own context.
GPU_CASE(swap_graph_waits) {
  const CUfunction step = gpu.step();
  const Graph graph;
  graph.add(step, Arguments(gpu.marks(), 1, 7));
  const CUstream other = new_stream();
  Control control;
  const auto capture_during = [&](CUstream stream, CUgraphExec exec, CUstream into) {
    OK(cuda().cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    OK(cuda().cuGraphLaunch(exec, into));
    CUgraph captured = nullptr;
    OK(cuda().cuStreamEndCapture(stream, &captured));
    OK(cuda().cuGraphDestroy(captured));
  };
  const Executable executable(graph.get());
  OK(cuda().cuGraphLaunch(executable.get(), gpu.stream()));
  control.must_move(folder(arguments, "b"));
  CHECK(cuda().simcuda_set_faults("cuGraphUpload=2*1") == 1);
  capture_during(gpu.stream(), executable.get(), other);
  gpu.expect_ran({.curated1 = 1, .curated2 = 1});

  CUcontext own = nullptr;
  OK(cuda().cuCtxCreate_v2(&own, 0, gpu.device()));
  const CUstream first = new_stream(), second = new_stream();
  const Executable of_own(graph.get());
  OK(cuda().cuGraphLaunch(of_own.get(), first));
  control.must_move(folder(arguments, "a"));
  OK(cuda().cuStreamDestroy_v2(first));
  gpu.enter();
  CHECK(cuda().simcuda_set_faults("cuGraphUpload=2*3") == 1);
  capture_during(gpu.stream(), of_own.get(), second);
  CHECK(cuda().simcuda_set_faults("") == 1);
  gpu.finish({.curated1 = 2, .curated2 = 2}, {.hit = 2});
}

// Of an exec whose module has ended no other is made when the host sets its nodes one by one.
GPU_CASE(swap_graph_of_ended_module) {
  const CUmodule module = gpu.load_module();
  const Graph graph;
  const CUgraphNode first = graph.add(gpu.function(module), Arguments(gpu.marks(), 1, 7));
  const CUgraphNode second = graph.add(gpu.function(module), Arguments(gpu.marks(), 1, 7), first);
  const Executable executable(graph.get());
  OK(cuda().cuModuleUnload(module));
  const CUfunction again = gpu.step();
  const long clones = calls("cuGraphClone");
  for (const CUgraphNode node : {first, second}) {
    Arguments set(gpu.marks(), 3, 9);  // its replacement has another shape
    const NodeParams2 params = node_params2(again, &set);
    OK(cuda().cuGraphExecKernelNodeSetParams_v2(executable.get(), node, &params));
  }
  EXPECT_EQUAL(clones, calls("cuGraphClone"));
  executable.run(gpu);
  gpu.finish({.step = 2}, {.hit = 2});
}

// A graph that has lost the module of a kernel that the host has set in it keeps its exec, too.
GPU_CASE(swap_and_set_modules) {
  const CUfunction step = gpu.step();
  const CUmodule module = gpu.load_module();
  Arguments first(gpu.marks(), 1, 7);
  Arguments second(gpu.marks(), 2, 8);
  const Graph graph;
  graph.add(step, &first);
  const CUgraphNode node = graph.add(step, &second);
  const Executable executable(graph.get());
  executable.run(gpu);
  const NodeParams2 params = node_params2(gpu.function(module), &second);
  OK(cuda().cuGraphExecKernelNodeSetParams_v2(executable.get(), node, &params));
  executable.run(gpu);
  Control control;
  control.must_move(folder(arguments, "b"));
  EXPECT_EQUAL(1, control.block().moved_graphs);
  OK(cuda().cuModuleUnload(module));
  control.must_move(folder(arguments, "a"));
  EXPECT_EQUAL(0, control.block().moved_graphs);
  EXPECT_EQUAL(1, control.block().kept_graphs);
  gpu.finish({.curated1 = 2, .curated2 = 2}, {.hit = 2});
}

// Graphs go along with moves whatever has ended beside them, before they were instantiated and after;
// but not if what has ended may be a module, a library or a context of one of their kernels.
GPU_CASE(swap_beside_ends) {
  const CUfunction step = gpu.step();
  CUfunction of_kernel = nullptr;
  OK(cuda().cuKernelGetFunction(&of_kernel, gpu.kernel(gpu.load_library())));
  const auto end_primary = [](CUdevice device) {
    CUcontext context = nullptr;
    OK(cuda().cuDevicePrimaryCtxRetain(&context, device));
    OK(cuda().cuDevicePrimaryCtxRelease_v2(device));
  };
  const auto end_green = [&] {
    auto resource = zeroed<CUdevResource>();
    CUdevResourceDesc description = nullptr;
    CUgreenCtx green = nullptr;
    OK(cuda().cuDeviceGetDevResource(gpu.device(), &resource, CU_DEV_RESOURCE_TYPE_SM));
    OK(cuda().cuDevResourceGenerateDesc(&description, &resource, 1));
    OK(cuda().cuGreenCtxCreate(&green, description, gpu.device(), CU_GREEN_CTX_DEFAULT_STREAM));
    OK(cuda().cuGreenCtxDestroy(green));
  };
  const std::function<void()> ends[] = {
      [&] { OK(cuda().cuModuleUnload(gpu.load_module(kOther))); },
      [&] { OK(cuda().cuLibraryUnload(gpu.load_library(kOther))); },
      [&] {
        OK(cuda().cuCtxDestroy_v2(make_context(gpu)));
        gpu.enter();
      },
      [&] { end_primary(gpu.device()); },
      [&] { end_primary(1); },
      end_green,
  };
  auto move = [&, round = 0](const Graph& graph, const auto& end, int moved) mutable {
    const Executable executable(graph.get());
    end();
    Control control;
    const long clones = calls("cuGraphClone");
    control.must_move(folder(arguments, round++ % 2 == 0 ? "b" : "a"));
    EXPECT_EQUAL(moved, control.block().moved_graphs);
    EXPECT_EQUAL(1 - moved, control.block().kept_graphs);
    EXPECT_EQUAL(moved, calls("cuGraphClone") - clones);
  };
  for (const auto& end : ends) {
    end();
    const Graph graph;
    graph.add(of_kernel, Arguments(gpu.marks(), 1, 1),
              graph.add(step, Arguments(gpu.marks(), 1, 1)));
    move(graph, end, 1);
  }
  {
    const CUcontext other = make_context(gpu);
    const CUfunction there = gpu.step();
    gpu.enter();
    const Graph graph;
    graph.add(there, Arguments(gpu.marks(), 1, 1));
    move(
        graph, [&] { OK(cuda().cuCtxDestroy_v2(other)); }, 0);
  }
  {
    const CUkernel kernel = gpu.kernel(gpu.load_library());
    const CUcontext other = make_context(gpu);
    gpu.enter();
    const Graph graph;
    for (const CUcontext context : {gpu.context(), other}) {
      Arguments own(gpu.marks(), 1, 1);
      NodeParams2 params = node_params2(kernel, &own);
      params.ctx = context;
      (void)add_kernel(graph.get(), params);
    }
    move(
        graph, [&] { OK(cuda().cuCtxDestroy_v2(other)); }, 0);
  }
  {
    const CUlibrary library = gpu.load_library();
    CUmodule module = nullptr;
    OK(cuda().cuLibraryGetModule(&module, library));
    const Graph graph;
    graph.add(gpu.function(module), Arguments(gpu.marks(), 1, 1));
    move(
        graph, [&] { OK(cuda().cuLibraryUnload(library)); }, 0);
  }
  gpu.finish({}, {.hit = 16});
}

// The host's own exec holds the replacements of the folder that was in force when it was made, and
// what the host has set since. It runs again if the exec that a move has made fails.
GPU_CASE(swap_graph_goes_back) {
  const auto own = gpu.handles();
  Arguments first(gpu.marks(), 1, 7);
  const Graph graph;
  CUgraphNode nodes[3] = {};
  for (int i = 0; i < 3; ++i)
    nodes[i] = graph.add(own.step, &first, i == 0 ? nullptr : nodes[i - 1]);
  const long execs = static_cast<long>(cuda().simcuda_call_count("cuGraphInstantiate*"));
  const Executable executable(graph.get());
  const auto set = [&](int node, CUfunction function) {
    const NodeParams2 params = node_params2(function, &first);
    OK(cuda().cuGraphExecKernelNodeSetParams_v2(executable.get(), nodes[node], &params));
  };
  executable.run(gpu);
  EXPECT_EQUAL(execs + 1, cuda().simcuda_call_count("cuGraphInstantiate*"));
  Ran ran = {.curated1 = 3};
  Control control;
  control.must_move(folder(arguments, "b"));
  set(0, own.free);
  executable.run(gpu);
  ran.free += 1;
  ran.curated2 += 2;
  set(1, own.free);
  OK(cuda().cuGraphNodeSetEnabled(executable.get(), nodes[2], 0));
  executable.run(gpu);
  ran.free += 2;
  OK(cuda().cuGraphNodeSetEnabled(executable.get(), nodes[2], 1));
  control.must_move(folder(arguments, "a"));
  executable.run(gpu);
  ran.free += 2;
  ran.curated1 += 1;
  gpu.expect_ran(ran);
  control.must_move(folder(arguments, "b"));
  CHECK(cuda().simcuda_set_faults("cuGraphLaunch=2*1") == 1);
  executable.run(gpu);
  CHECK(cuda().simcuda_set_faults("") == 1);
  // From then on no move reaches it.
  control.must_move(folder(arguments, "a"));
  EXPECT_EQUAL(0, control.block().moved_graphs);
  EXPECT_EQUAL(1, control.block().kept_graphs);
  executable.run(gpu);
  ran.free += 4;
  ran.curated1 += 2;
  gpu.finish(ran, {.hit = 3});
}

// A thread's own stream ends with the thread, and another thread may get its pthread_t: the first
// launch of the exec that a move has made still waits for the last launch before.
GPU_CASE(swap_graph_in_threads) {
  const auto own = gpu.handles();
  const Graph graph;
  (void)graph.add(own.step, Arguments(gpu.marks(), 1, 7));
  const Executable executable(graph.get());
  const auto launch = [&] {
    std::thread([&] {
      gpu.enter();
      OK(cuda().cuGraphLaunch(executable.get(), CU_STREAM_PER_THREAD));
    }).join();
    OK(cuda().cuCtxSynchronize());
  };
  launch();
  Control control;
  for (int i = 1; i <= 4; ++i) {
    control.must_move(folder(arguments, i % 2 == 1 ? "b" : "a"));
    const uint64_t uploads = cuda().simcuda_call_count("cuGraphUpload*");
    launch();
    EXPECT_EQUAL(uploads + 1, cuda().simcuda_call_count("cuGraphUpload*"));
  }
  gpu.finish({.curated1 = 3, .curated2 = 2}, {.hit = 1});
}

// If every launch is checked, a graph that is instantiated while the process moves runs its
// originals, too.
GPU_CASE(swap_while_checked) {
  const auto own = gpu.handles();
  CHECK(cuda().simcuda_set_faults("cuGraphAddMemcpyNode=1") == 1);
  const Graph graph;
  (void)graph.add(own.step, Arguments(gpu.marks(), 1, 7));
  graph.run(gpu);
  Control control;
  control.must_check(1);
  std::atomic<bool> is_over{false};
  std::thread mover([&] {
    for (int i = 0; i < 300; ++i) control.must_move(folder(arguments, i % 2 == 0 ? "b" : "a"));
    is_over = true;
  });
  long runs = 0;
  for (; !is_over; ++runs) graph.run(gpu);
  mover.join();
  gpu.finish({.step = runs, .curated1 = 1}, {.hit = runs + 1});
}

// A folder that is refused, or does not exist, changes nothing.
GPU_CASE(swap_refused) {
  const CUfunction step = gpu.step();
  OK(gpu.launch(step, 1));
  Control control;
  for (const char* name : {"bad", "missing", "torn"}) {
    CHECK(control.move(AskTarget::folder, folder(arguments, name)) == AnswerState::refused);
    OK(gpu.launch(step, 1));
  }
  CHECK(control.move(AskTarget::folder, "not/absolute") == AnswerState::refused);
  EXPECT_EQUAL(4, control.block().status.refused_count);
  EXPECT_EQUAL(0, control.block().status.swap_count);
  CHECK(control.block().status.folder == std::filesystem::canonical(folder(arguments, "a")));
  gpu.finish({.curated1 = 4}, {.hit = 4});
}

// If the driver refuses the images of a folder, the process does not move; once it accepts them, it
// does.
GPU_CASE(swap_unloadable) {
  const CUfunction step = gpu.step();
  OK(gpu.launch(step, 1));
  Control control;
  CHECK(cuda().simcuda_set_faults("cuLibraryLoadData=200") == 1);
  CHECK(control.move(AskTarget::folder, folder(arguments, "fresh")) == AnswerState::refused);
  CHECK(strstr(control.block().message, " returns CUDA_ERROR_INVALID_IMAGE (200)") != nullptr);
  OK(gpu.launch(step, 1));
  CHECK(cuda().simcuda_set_faults("") == 1);
  CHECK(control.move(AskTarget::folder, folder(arguments, "fresh")) == AnswerState::moved);
  OK(gpu.launch(step, 1));
  gpu.finish({.curated1 = 3}, {.hit = 3});
}

// If the link leads to a folder that is still being copied, that is refused, and accepted once it
// is complete.
GPU_CASE(swap_link_to_half) {
  const CUfunction step = gpu.step();
  OK(gpu.launch(step, 1));
  Control control;
  repoint(folder(arguments, "link"), "bad");
  while (__atomic_load_n(&control.block().status.refused_count, __ATOMIC_RELAXED) == 0)
    usleep(1000);
  OK(gpu.launch(step, 1));
  const std::string file = "/patterns/conform-step.json";
  std::filesystem::copy_file(folder(arguments, "b") + file, folder(arguments, "bad") + file,
                             std::filesystem::copy_options::overwrite_existing);
  while (__atomic_load_n(&control.block().status.swap_count, __ATOMIC_RELAXED) == 0) usleep(1000);
  OK(gpu.launch(step, 1));
  EXPECT_EQUAL(1, control.block().status.refused_count);
  gpu.finish({.curated1 = 3}, {.hit = 3});
}

// The required key and the trust setting are fixed when the process begins: "b" is not signed, and
// others can write in "open".
GPU_CASE(swap_keeps_rules) {
  const CUfunction step = gpu.step();
  OK(gpu.launch(step, 1));
  Control control;
  for (const bool is_changed : {false, true}) {
    if (is_changed) {
      CHECK(unsetenv("FIBSHIM_REQUIRE_KEY") == 0 && setenv("FIBSHIM_TRUST", "all", 1) == 0);
      CHECK(unsetenv("SLURM_JOB_ID") == 0 && setenv("FIBSHIM_JOB", "another", 1) == 0);
    }
    CHECK(control.move(AskTarget::folder, folder(arguments, "b")) == AnswerState::refused);
    CHECK(strstr(control.block().message, "not signed") != nullptr);
    OK(gpu.launch(step, 1));
    CHECK(control.move(AskTarget::folder, folder(arguments, "open")) == AnswerState::refused);
    CHECK(strstr(control.block().message, "writable by everybody") != nullptr);
    OK(gpu.launch(step, 1));
  }
  control.must_move(folder(arguments, "signed"));
  OK(gpu.launch(step, 1));
  CHECK(strcmp(control.block().status.job, "SLURM_JOB_ID=17") == 0);
  gpu.finish({.curated1 = 5, .curated2 = 1}, {.hit = 6});
}

// If the folder is refused when the process begins, the process has none.
GPU_CASE(start_refused) {
  OK(gpu.launch(gpu.step(), 1));
  gpu.finish({.step = 1}, {.untracked = 1});
}

// While off, the originals run; when on again, the replacements do.
GPU_CASE(swap_off_and_on) {
  const auto own = gpu.handles();
  OK(gpu.launch(own.step, 1));
  OK(gpu.launch(own.free, 1));
  Control control;
  for (int round = 0; round < 3; ++round) {
    CHECK(control.move(AskTarget::off) == AnswerState::moved);
    OK(gpu.launch(own.step, 1));
    OK(gpu.launch(own.free, 1));
    CHECK(control.move(AskTarget::on) == AnswerState::moved);
    OK(gpu.launch(own.step, 1));
    OK(gpu.launch(own.free, 1));
  }
  gpu.finish({.step = 3, .free = 7, .curated1 = 4}, {.hit = 4, .untracked = 10});
}

// A graph that is instantiated, or that an exec is updated from, while the process is off, gets
// replacements when the process is on again.
GPU_CASE(swap_off_and_graphs) {
  Graph graphs[2];
  for (int i = 0; i < 2; ++i) graphs[i].add(gpu.step(), Arguments(gpu.marks(), 1, i + 1));
  const Executable before(graphs[0].get());
  Control control;
  for (int round = 0; round < 2; ++round) {
    CHECK(control.move(AskTarget::off) == AnswerState::moved);
    const Executable meanwhile(graphs[0].get());
    before.update(graphs[1]);
    meanwhile.run_for(gpu, 1);
    before.run_for(gpu, 2);
    CHECK(control.move(AskTarget::on) == AnswerState::moved);
    gpu.expect_ran({.step = 2 + 2 * round, .curated1 = 2 * round});
    meanwhile.run_for(gpu, 1);
    before.run_for(gpu, 2);
  }
  gpu.finish({.step = 4, .curated1 = 4}, {.hit = 1, .untracked = 2});
}

// A graph without kernels that the folder in force knows gets replacements at a move, too, also if
// an exec was updated from it.
GPU_CASE(swap_and_unknown_graphs) {
  Control control;
  control.must_move(folder(arguments, "none"));
  Graph graphs[2];
  for (int i = 0; i < 2; ++i) graphs[i].add(gpu.step(), Arguments(gpu.marks(), 1, i + 1));
  const Executable kept(graphs[0].get());
  const Executable set(graphs[0].get());
  const Executable updated(graphs[0].get());
  set.set(graphs[0].nodes()[0], gpu.step(), Arguments(gpu.marks(), 1, 3));
  updated.update(graphs[1]);
  const auto run_all = [&] {
    kept.run_for(gpu, 1);
    set.run_for(gpu, 3);
    updated.run_for(gpu, 2);
  };
  run_all();
  control.must_move(folder(arguments, "a"));
  gpu.expect_ran({.step = 3});
  run_all();
  gpu.expect_ran({.step = 3, .curated1 = 3});
  updated.update(graphs[0]);
  kept.run_for(gpu, 1);
  set.run_for(gpu, 3);
  updated.run_for(gpu, 1);
  control.must_move(folder(arguments, "none"));
  gpu.expect_ran({.step = 3, .curated1 = 6});
  updated.update(graphs[1]);
  run_all();
  gpu.finish({.step = 6, .curated1 = 6}, {.untracked = 3});
}

// FIBSHIM_CONFIG is a link that is repointed a thousand times under load: the process ends where it
// leads.
GPU_CASE(swap_link) {
  const auto own = gpu.handles();
  Launchers launchers(gpu, 2, own);
  const std::string link = folder(arguments, "link");
  for (int i = 0; i < 1000; ++i) repoint(link, i % 2 == 0 ? "a" : "b");
  Control control;
  long turns = 0;
  const std::string last = std::filesystem::canonical(link);
  while (last != control.block().status.folder) {
    OK(gpu.launch(own.step, 1));
    ++turns;
  }
  const long each = launchers.stop() + turns;
  OK(cuda().cuCtxSynchronize());
  const Ran before = what_ran(gpu.marks());
  EXPECT_EQUAL(each, before.curated1 + before.curated2);
  for (int i = 0; i < 10; ++i) OK(gpu.launch(own.step, 1));
  OK(cuda().cuCtxSynchronize());
  EXPECT_EQUAL(10, ran_b(before, gpu.marks()));
  Ran ran = what_ran(gpu.marks());
  gpu.finish(ran, {.hit = each + 10, .untracked = each - turns});
}

// The link leads elsewhere between the check of it and the opening of the folder, and back before
// the next check: the process ends where the link leads. `start`: this happens when the process
// begins.
CASE(swap_link_flips) {
  CHECK(arguments.size() == 2);
  const std::string link = arguments[0] + "/link";
  const auto flip = reinterpret_cast<void (*)(const char*, const char*, const char*)>(
      dlsym(RTLD_DEFAULT, "conform_flip_link"));
  CHECK(flip != nullptr);
  const bool is_at_start = arguments[1] == "start";
  const char* const last = is_at_start ? "a" : "fresh";
  if (is_at_start) flip(link.c_str(), "b", last);
  const Gpu gpu;
  const CUfunction step = gpu.step();
  OK(gpu.launch(step, 1));
  Control control;
  if (!is_at_start) {
    flip(link.c_str(), "b", last);
    repoint(link, last);
  }
  const std::string wanted = std::filesystem::canonical(arguments[0] + "/" + last);
  while (wanted != control.block().status.folder) sched_yield();
  OK(cuda().cuCtxSynchronize());
  const Ran before = what_ran(gpu.marks());
  OK(gpu.launch(step, 1));
  OK(cuda().cuCtxSynchronize());
  EXPECT_EQUAL(1, ran_a(before, gpu.marks()));
  gpu.finish(what_ran(gpu.marks()), {.hit = 2});
}

// Modules are loaded and unloaded while the process moves, and new handles are matched in either
// folder.
GPU_CASE(swap_and_unload) {
  Launchers launchers(gpu, 2, gpu.handles());
  std::atomic<bool> is_over{false};
  std::atomic<long> loaded{0};
  std::thread loader([&] {
    gpu.enter();
    while (!is_over.load()) {
      gpu.launch_and_unload_both();
      loaded.fetch_add(1);
    }
  });
  while (loaded.load() == 0) sched_yield();
  {
    Control control;
    for (int i = 0; i < rounds(400); ++i) {
      control.must_move(folder(arguments, i % 2 == 0 ? "b" : "a"));
      if (i % 5 == 0) CHECK(control.move(AskTarget::off) == AnswerState::moved);
    }
    control.must_move(folder(arguments, "a"));
  }
  is_over.store(true);
  loader.join();
  const long each = launchers.stop();
  OK(cuda().cuCtxSynchronize());
  const Ran ran = what_ran(gpu.marks());
  // While off, conform_step itself runs, as the second image's always does.
  EXPECT_EQUAL(each + 2 * loaded.load(), ran.step + ran.curated1 + ran.curated2);
  const long hits = ran.curated1 + ran.curated2;
  gpu.finish(ran, {.hit = hits, .untracked = each + ran.step});
}

// A user who can write the counters file can falsify the counts, and nothing else: while the whole
// file is overwritten, threads launch, modules are loaded and unloaded, and the process moves, each
// launch runs what it should.
GPU_CASE(swap_scribbled) {
  const auto own = gpu.handles();
  OK(gpu.launch(own.step, 1));
  std::atomic<bool> is_over{false};
  std::atomic<long> scribbled{0};
  std::thread scribbler([&] {
    const int file = open(counters_file().c_str(), O_RDWR | O_CLOEXEC);
    CHECK(file >= 0);
    while (!is_over.load()) {
      const auto bytes = static_cast<size_t>(lseek(file, 0, SEEK_END));
      void* const at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
      CHECK(at != MAP_FAILED);
      for (const int value : {0xff, 0}) memset(at, value, bytes);
      munmap(at, bytes);
      scribbled.fetch_add(1);
    }
    close(file);
  });
  while (scribbled.load() == 0) sched_yield();
  OK(cuda().cuCtxSynchronize());
  for (int round = 0; round < 6; ++round) {
    const bool is_to_b = round % 2 == 0;
    const Ran before = what_ran(gpu.marks());
    Launchers launchers(gpu, 2, own);
    std::atomic<bool> is_loader_over{false};
    long loaded = 0;
    std::thread loader([&] {
      gpu.enter();
      do {
        gpu.launch_and_unload_both();
        ++loaded;
      } while (!is_loader_over.load());
    });
    repoint(folder(arguments, "link"), is_to_b ? "b" : "a");
    long launched = 0;
    do {
      OK(gpu.launch(own.step, 1));
      OK(cuda().cuStreamSynchronize(gpu.stream()));
      ++launched;
    } while ((is_to_b ? ran_b : ran_a)(before, gpu.marks()) == 0);
    launchers.set_moved();
    for (int i = 0; i < 100; ++i) OK(gpu.launch(own.step, 1));
    const long more = launchers.stop();
    is_loader_over.store(true);
    loader.join();
    OK(cuda().cuCtxSynchronize());
    const long a = ran_a(before, gpu.marks());
    const long b = ran_b(before, gpu.marks());
    EXPECT_EQUAL(launched + 100 + more + loaded, a + b);
    EXPECT_EQUAL(loaded, what_ran(gpu.marks()).step - before.step);
    CHECK((is_to_b ? b : a) >= launchers.after() + 100);
  }
  is_over.store(true);
  scribbler.join();
}

// A decision with another identity belongs to another job: a process that has prepared does not
// move.
GPU_CASE(swap_decided_for_another) {
  const CUfunction step = gpu.step();
  OK(gpu.launch(step, 1));
  Control control;
  CHECK(control.prepare(folder(arguments, "b"), 5) == AnswerState::prepared);
  CHECK(control.decide(6, fibshim::Verdict::commit) == AnswerState::aborted);
  OK(gpu.launch(step, 1));
  CHECK(control.prepare(folder(arguments, "b"), 7) == AnswerState::prepared);
  CHECK(control.decide(7, fibshim::Verdict::commit) == AnswerState::moved);
  OK(gpu.launch(step, 1));
  gpu.finish({.curated1 = 2, .curated2 = 1}, {.hit = 3});
}

// A handle that the driver returns while the process moves belongs to the new folder after the
// move, whichever folder it was matched in first. The simulated driver answers the shim's calls
// slowly meanwhile.
GPU_CASE(swap_and_hand_out) {
  OK(gpu.launch(gpu.step(), 1));
  Ran ran = {.curated1 = 1};
  long launches = 1;
  Control control;
  for (int i = 0; i < rounds(10); ++i) {
    // Modules are loaded beforehand, so that the threads do almost nothing but get handles.
    constexpr int kModules = 100;
    std::atomic<bool> is_over{false};
    std::atomic<int> begun{0};
    std::vector<CUmodule> modules[4];
    for (std::vector<CUmodule>& own : modules) {
      while (own.size() < kModules) own.push_back(gpu.load_module());
    }
    std::vector<std::thread> threads;
    for (std::vector<CUmodule>& own : modules) {
      threads.emplace_back([&] {
        gpu.enter();
        for (size_t at = 0; !is_over.load(); ++at) {
          if (at == own.size()) own.push_back(gpu.load_module());
          SimcudaHostCall host_call;
          if (cuda().is_simulated) cuda().simcuda_begin_host_call("cuModuleGetFunction");
          (void)gpu.function(own[at]);
          if (cuda().is_simulated) cuda().simcuda_end_host_call(&host_call);
          if (at == 0) begun.fetch_add(1);
        }
      });
    }
    while (begun.load() < 4) sched_yield();
    control.must_move(folder(arguments, i % 2 == 0 ? "b" : "a"));
    is_over.store(true);
    for (std::thread& thread : threads) thread.join();
    for (const std::vector<CUmodule>& own : modules) {
      for (const CUmodule module : own) {
        OK(gpu.launch(gpu.function(module), 1));
        add_curated(&ran, i % 2 == 0 ? 2 : 1);
        ++launches;
      }
      OK(cuda().cuCtxSynchronize());
      for (const CUmodule module : own) OK(cuda().cuModuleUnload(module));
    }
  }
  gpu.finish(ran, {.hit = launches});
}

// Once a process has moved to a folder in which errors fall back, no launch fails, whenever its
// decision was made. The kernel of that folder's solution cannot be launched.
GPU_CASE(swap_and_on_error) {
  const auto own = gpu.handles();
  OK(gpu.launch(own.step, 1));
  CHECK(cuda().simcuda_set_faults("cuLaunchKernel:curated_n2=1") == 1);
  Control control;
  for (int round = 0; round < rounds(40); ++round) {
    std::atomic<bool> is_over{false};
    std::vector<std::thread> threads;
    for (int i = 0; i < 2; ++i) {
      threads.emplace_back([&] {
        gpu.enter();
        while (!is_over.load()) OK(gpu.launch(own.step, 1));
      });
    }
    control.must_move(folder(arguments, "lenient"));
    for (int i = 0; i < 20; ++i) OK(gpu.launch(own.step, 1));
    is_over.store(true);
    for (std::thread& thread : threads) thread.join();
    control.must_move(folder(arguments, "a"));
  }
  const Ran ran = what_ran(gpu.marks());
  gpu.finish(ran, {.hit = ran.curated1, .error_fallback = ran.step});
}

// The child, in which CUDA cannot be used, starts with its parent's folder, moves independently,
// and does not move its parent.
GPU_CASE(swap_and_fork) {
  const CUfunction step = gpu.step();
  OK(gpu.launch(step, 1));
  Control control;
  control.must_move(folder(arguments, "b"));
  OK(gpu.launch(step, 1));
  const pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    end_child_under_sanitizers();
    EXPECT_CODE(CUDA_ERROR_NOT_INITIALIZED, gpu.launch(step, 1));
    Control own;
    CHECK(own.block().status.folder == folder(arguments, "b"));
    own.must_move(folder(arguments, "a"));
    EXPECT_CODE(CUDA_ERROR_NOT_INITIALIZED, gpu.launch(step, 1));
    state({}, {.error = 2});
    _exit(0);
  }
  expect_exit(child);
  OK(gpu.launch(step, 1));
  gpu.finish({.curated1 = 1, .curated2 = 2}, {.hit = 3});
}

// Forks while the process moves again and again: neither process hangs.
GPU_CASE(swap_while_forking) {
  const CUfunction step = gpu.step();
  OK(gpu.launch(step, 1));
  std::atomic<bool> is_over{false};
  std::thread mover([&] {
    Control control;
    for (int i = 0; !is_over.load(); ++i) {
      control.must_move(folder(arguments, i % 2 == 0 ? "b" : "a"));
    }
  });
  constexpr int kChildren = 50;
  for (int i = 0; i < kChildren; ++i) {
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
      EXPECT_CODE(CUDA_ERROR_NOT_INITIALIZED, gpu.launch(step, 1));
      Control own;
      own.must_move(folder(arguments, i % 2 == 0 ? "b" : "a"));
      state({}, {.error = 1});
      _exit(0);
    }
    expect_exit(child);
  }
  is_over.store(true);
  mover.join();
  gpu.finish({.curated1 = 1}, {.hit = 1});
}

// Moving to B and back does not make the process larger, and images that both folders share are
// loaded once.
GPU_CASE(swap_memory) {
  const CUmodule module = gpu.load_module();
  const CUfunction step = gpu.function(module);
  OK(gpu.launch(step, 1));
  OK(gpu.launch(step, 2));
  Control control;
  long before_kb = 0;
  const int count = rounds(1500);
  long launches = 2;
  Ran ran = {.curated1 = 1, .curated2 = 1};
  int64_t libraries = 0;
  for (int i = 0; i < count; ++i) {
    control.must_move(folder(arguments, i % 2 == 0 ? "b" : "a"));
    OK(gpu.launch(step, 1));
    OK(gpu.launch(step, 2));
    launches += 2;
    add_curated(&ran, i % 2 == 0 ? 2 : 1);
    add_curated(&ran, 2);
    if (cuda().is_simulated && i == 1) libraries = cuda().simcuda_live_count("library");
    if (i == count / 3) before_kb = resident_bytes() / 1024;
  }
  const long grown_kb = resident_bytes() / 1024 - before_kb;
  printf("grown by %ld KiB over %d moves\n", grown_kb, count - count / 3);
  // Even a leak of 256 bytes per move would show.
  CHECK(grown_kb < 256);
  if (cuda().is_simulated) EXPECT_EQUAL(libraries, cuda().simcuda_live_count("library"));
  EXPECT_EQUAL(1, control.block().status.image_count);
  EXPECT_EQUAL(0, control.block().status.kept_image_count);
  gpu.finish(ran, {.hit = launches});
}
