// The launches of the benchmark, for callgrind: runs the same loop COUNT times and twice as often,
// so that the difference is exactly COUNT launches. Each run ends with its own dump. Only the runs
// are instrumented, where callgrind does not do so at the start.
//
//   launch_loop COUNT KERNEL...
//
// KERNEL "graph" launches a graph with one bench_hit, "graph_of_ten" one with ten, in two streams by
// turns. bench_packed is launched as cuBLAS does: with a packed parameter and a cluster.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <valgrind/callgrind.h>

#include <string>

#include "tests/bench/engine.h"

namespace fibshim::bench {
namespace {

// Not inlined, so that both runs execute the same instructions.
__attribute__((noinline)) void launch_often(CUfunction kernel, CUstream stream,
                                            Arguments& arguments, long count) {
  const auto function = cuda().launch;
  for (long i = 0; i < count; ++i) {
    require(launch(function, kernel, stream, arguments), "cuLaunchKernel");
  }
}

__attribute__((noinline)) void replay_often(CUgraphExec exec, CUstream one, CUstream other,
                                            long count) {
  const auto function = cuda().launch_graph;
  for (long i = 0; i < count; ++i) {
    require(function(exec, i / 3 % 2 == 0 ? one : other), "cuGraphLaunch");
  }
}

// The first launches look up the kernel, decide and get the thread's counters. Then a dump separates
// the runs, so that there are only launches between two dumps.
template <class Launch>
void measure(const char* name, long count, const Launch& launch_times) {
  const std::string names[] = {std::string(name) + " 0", std::string(name) + " 1",
                               std::string(name) + " 2"};
  launch_times(8);
  CALLGRIND_START_INSTRUMENTATION;
  for (int i = 0; i < 3; ++i) {
    launch_times(i * count);
    const char* const dump = names[i].c_str();
    CALLGRIND_DUMP_STATS_AT(dump);
  }
  CALLGRIND_STOP_INSTRUMENTATION;
}

void measure_kernel(const char* name, CUstream stream, long count) {
  const CUfunction kernel = load_kernel("launches", name);
  Arguments arguments;
  measure(name, count, [&](long times) { launch_often(kernel, stream, arguments, times); });
}

void measure_packed(const char* name, CUstream stream, long count) {
  const CUfunction kernel = load_kernel("launches", name);
  PackedLaunch launch(stream);
  measure(name, count, [&](long times) {
    for (long i = 0; i < times; ++i) require(launch(kernel), "cuLaunchKernelEx");
  });
}

void measure_graph(const char* name, CUstream stream, long count) {
  const bool is_of_ten = strcmp(name, "graph_of_ten") == 0;
  Arguments arguments;
  CUDA_KERNEL_NODE_PARAMS_v2 params;
  memset(&params, 0, sizeof params);
  params.func = load_function("launches", "bench_hit");
  params.gridDimX = 64;
  params.blockDimX = 128;
  params.gridDimY = params.gridDimZ = params.blockDimY = params.blockDimZ = 1;
  params.kernelParams = arguments.params();
  CUgraph graph = nullptr;
  CUgraphNode node = nullptr;
  CUgraphExec exec = nullptr;
  require(cuda().create_graph(&graph, 0), "cuGraphCreate");
  for (int i = 0; i < (is_of_ten ? 10 : 1); ++i) {
    require(cuda().add_kernel_node(&node, graph, &node, i == 0 ? 0 : 1, &params),
            "cuGraphAddKernelNode_v2");
  }
  require(cuda().instantiate(&exec, graph, 0), "cuGraphInstantiateWithFlags");
  const CUstream other = is_of_ten ? start_thread() : stream;
  measure(name, count, [&](long times) { replay_often(exec, stream, other, times); });
}

}  // namespace
}  // namespace fibshim::bench

int main(int argc, char** argv) {
  using namespace fibshim::bench;  // NOLINT(google-build-using-namespace): a short main
  if (argc < 3) {
    fprintf(stderr, "usage: launch_loop COUNT KERNEL...\n");
    return 2;
  }
  const long count = atol(argv[1]);
  const CUstream stream = start_thread();
  for (int i = 2; i < argc; ++i) {
    const std::string name = argv[i];
    const auto measure_it = name.starts_with("graph") ? measure_graph
                            : name == "bench_packed"  ? measure_packed
                                                      : measure_kernel;
    measure_it(argv[i], stream, count);
  }
  return 0;
}
