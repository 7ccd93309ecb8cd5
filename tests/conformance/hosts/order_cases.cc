// A rewrite of three kernels, in a graph in which they run in its order, and in another one.
#include "tests/conformance/hosts/graphs.h"

namespace conform {
namespace {

constexpr int kWords = 64;
constexpr CUdeviceptr kHalf = 1 << 19;  // graphs_config takes buffers of a MiB's upper half as dead

struct Memory {
  CUdeviceptr in, first, second, out;
};

CUgraphNode add(CUgraph graph, CUfunction function, CUdeviceptr from, CUdeviceptr with,
                CUdeviceptr to, const std::vector<CUgraphNode>& after) {
  int words = kWords, salt = 1;
  void* pointers[] = {&from, &with, &to, &words, &salt};
  auto params = zeroed<NodeParams2>();
  params.func = function;
  params.gridDimX = params.gridDimY = params.gridDimZ = 1;
  params.blockDimX = kWords;
  params.blockDimY = params.blockDimZ = 1;
  params.kernelParams = pointers;
  return add_kernel(graph, params, after);
}

}  // namespace
}  // namespace conform

using namespace conform;

GPU_CASE(members_in_another_order) {
  const CUmodule module = gpu.load_module("graphs.fatbin");
  const CUfunction a = gpu.function(module, "graph_a"), b = gpu.function(module, "graph_b"),
                   c = gpu.function(module, "graph_c");
  const CUdeviceptr base = (device_memory(3 << 20) + (1 << 20) - 1) & ~CUdeviceptr{(1 << 20) - 1};
  const Memory at = {base, base + kHalf, base + kHalf + 4096, base + 4096};
  uint32_t words[kWords], in_order[kWords], read[kWords];
  for (uint32_t i = 0; i < kWords; ++i) words[i] = 7 * i;
  const auto run = [&](const Graph& graph, uint32_t(&out)[kWords]) {
    OK(cuda().cuMemcpyHtoD_v2(at.in, words, sizeof words));
    OK(cuda().cuMemcpyHtoD_v2(at.second, words, sizeof words));
    graph.run(gpu);
    OK(cuda().cuCtxSynchronize());
    OK(cuda().cuMemcpyDtoH_v2(out, at.out, sizeof out));
  };
  {
    const Graph graph;
    const CUgraphNode one = add(graph.get(), a, at.in, at.in, at.first, {});
    const CUgraphNode two = add(graph.get(), b, at.first, at.in, at.second, {one});
    add(graph.get(), c, at.second, at.in, at.out, {two});
    run(graph, in_order);
  }
  EXPECT_EQUAL(1, ran("curated_abc"));
  // The third reads what was there before, and the second writes after that.
  {
    const Graph graph;
    const CUgraphNode one = add(graph.get(), a, at.in, at.in, at.first, {});
    const CUgraphNode three = add(graph.get(), c, at.second, at.in, at.out, {one});
    add(graph.get(), b, at.first, at.in, at.second, {one, three});
    run(graph, read);
  }
  EXPECT_EQUAL(1, ran("curated_abc"));
  const Graph alone;
  add(alone.get(), c, at.second, at.in, at.out, {});
  uint32_t wanted[kWords];
  run(alone, wanted);
  CHECK(memcmp(read, wanted, sizeof read) == 0);
  CHECK(memcmp(read, in_order, sizeof read) != 0);
  gpu.finish({}, {.hit = 4, .graph = 1, .absorbed = 2});
}
