// Solutions with device memory of their own: graph_c's, in folders in which its workspace has 1 KB and 1,024 bytes for each of the
// launch's salt. The second argument's folder "none" has no solution for it.
#include "tests/conformance/hosts/control.h"
#include "tests/conformance/hosts/graphs.h"

namespace conform {
namespace {

constexpr int kWords = 64;
constexpr int kMostSalt = 65535;  // 64 MiB with the 1 KB

uint32_t expected(uint32_t in, uint32_t with, int32_t salt) {
  uint32_t x = in * 0x9e3779b1u + (with ^ uint32_t{'c'} * 0x85ebca6bu);
  x ^= static_cast<uint32_t>(salt) * 0xc2b2ae35u;
  x = (x ^ x >> 15) * 0x2c1b3c6du;
  return x ^ x >> 13;
}

// graph_c, and memory for its launches.
class Step {
 public:
  explicit Step(const Gpu& gpu)
      : function_(gpu.function(gpu.load_module("graphs.fatbin"), "graph_c")),
        memory_(device_memory(3 * sizeof(uint32_t) * kWords)) {
    uint32_t words[2 * kWords];
    for (uint32_t i = 0; i < 2 * kWords; ++i) words[i] = 7 * i;
    OK(cuda().cuMemcpyHtoD_v2(memory_, words, sizeof words));
  }

  void launch(int32_t salt, CUstream stream) const {
    const Call call(*this, salt);
    OK(cuda().cuLaunchKernel(function_, 1, 1, 1, kWords, 1, 1, 0, stream, call.pointers, nullptr));
  }
  CUgraphNode add(CUgraph graph, int32_t salt, CUgraphNode after) const {
    const Call call(*this, salt);
    auto params = zeroed<CUDA_KERNEL_NODE_PARAMS_v2>();
    params.func = function_;
    params.gridDimX = params.gridDimY = params.gridDimZ = 1;
    params.blockDimX = kWords;
    params.blockDimY = params.blockDimZ = 1;
    params.kernelParams = call.pointers;
    CUgraphNode node = nullptr;
    OK(cuda().cuGraphAddKernelNode_v2(&node, graph, &after, after == nullptr ? 0 : 1, &params));
    return node;
  }

  // Waits, and expects what the last launch has written.
  void expect_result(int32_t salt) const {
    OK(cuda().cuCtxSynchronize());
    uint32_t out[kWords];
    OK(cuda().cuMemcpyDtoH_v2(out, memory_ + 2 * sizeof out, sizeof out));
    for (uint32_t i = 0; i < kWords; ++i) {
      EXPECT_EQUAL(expected(7 * i, 7 * (i + kWords), salt), out[i]);
    }
  }

 private:
  struct Call {
    Call(const Step& step, int32_t its_salt)
        : in(step.memory_),
          with(in + sizeof(uint32_t) * kWords),
          out(with + sizeof(uint32_t) * kWords),
          salt(its_salt) {}
    CUdeviceptr in, with, out;
    int32_t words = kWords, salt;
    mutable void* pointers[5] = {&in, &with, &out, &words, &salt};
  };
  CUfunction function_;
  CUdeviceptr memory_;
};

// Where the last launch of the solution had its workspace; 0 with a real driver.
uint64_t workspace() {
  if (!cuda().is_simulated) return 0;
  uint64_t address = 0;
  memcpy(&address, last_launch("curated_c").params + 40, sizeof address);
  return address;
}

class Blocks {
 public:
  long made() const { return calls("cuMemAlloc_v2") - made_; }
  long freed() const { return calls("cuMemFree_v2") - freed_; }
  // Waits until so many blocks have been made and freed.
  void expect(long made_now, long freed_now) const {
    if (!cuda().is_simulated) return;
    for (int i = 0; i < 5000 && freed() < freed_now; ++i) usleep(1000);
    EXPECT_EQUAL(made_now, made());
    EXPECT_EQUAL(freed_now, freed());
  }

 private:
  long made_ = cuda().is_simulated ? calls("cuMemAlloc_v2") : 0;
  long freed_ = cuda().is_simulated ? calls("cuMemFree_v2") : 0;
};

}  // namespace
}  // namespace conform

using namespace conform;

// One for each stream, which grows, and ends with it.
GPU_CASE(workspaces_of_streams) {
  const Step step(gpu);
  CUstream const one = new_stream();
  CUstream const other = new_stream();
  const Blocks blocks;
  step.launch(1, one);
  const uint64_t first = workspace();
  step.launch(0, one);
  EXPECT_EQUAL(first, workspace());
  step.expect_result(0);
  step.launch(1, other);
  CHECK(!cuda().is_simulated || workspace() != first);
  blocks.expect(2, 0);
  step.launch(9, one);
  CHECK(!cuda().is_simulated || workspace() != first);
  step.expect_result(9);
  step.launch(3, one);
  step.launch(3, CU_STREAM_LEGACY);
  step.launch(3, CU_STREAM_PER_THREAD);
  blocks.expect(5, 0);
  OK(cuda().cuStreamDestroy_v2(other));
  blocks.expect(5, 1);
  OK(cuda().cuStreamDestroy_v2(one));
  blocks.expect(5, 3);
  step.expect_result(3);
  gpu.finish({}, {.hit = 7});
}

// A launch for which there is none left runs the original, and so does one that asks for too much.
GPU_CASE(workspaces_have_a_limit) {
  const Step step(gpu);
  const Blocks blocks;
  step.launch(kMostSalt - 1, gpu.stream());
  step.expect_result(kMostSalt - 1);
  CUstream const other = new_stream();
  step.launch(2000, other);
  step.expect_result(2000);
  step.launch(kMostSalt + 1, gpu.stream());
  step.expect_result(kMostSalt + 1);
  step.launch(-1000, gpu.stream());
  blocks.expect(1, 0);
  OK(cuda().cuStreamDestroy_v2(other));
  gpu.finish({}, {.hit = 1, .where = 2, .refused = 1});
}

// Nodes that run one after the other share one, others do not; they end with the exec.
GPU_CASE(workspaces_of_graphs) {
  const Step step(gpu);
  for (const bool is_chain : {true, false}) {
    const Graph graph;
    CUgraphNode const first = step.add(graph.get(), 4, nullptr);
    CUgraphNode const second = step.add(graph.get(), 3, is_chain ? first : nullptr);
    (void)step.add(graph.get(), 5, is_chain ? second : first);
    const Blocks blocks;
    {
      const Executable executable(graph.get());
      // The last one is larger.
      blocks.expect(is_chain ? 2 : 3, 0);
      executable.run(gpu);
      OK(cuda().cuCtxSynchronize());
    }
    blocks.expect(is_chain ? 2 : 3, is_chain ? 2 : 3);
  }
  step.launch(2, gpu.stream());
  step.expect_result(2);
  gpu.finish({}, {.hit = 7});
}

// They end with the folder, and with the context.
GPU_CASE(workspaces_end) {
  const Step step(gpu);
  const Blocks blocks;
  step.launch(1, gpu.stream());
  Control control;
  control.must_move(folder(arguments, "none"));
  blocks.expect(1, 1);
  step.launch(2, gpu.stream());
  step.expect_result(2);
  control.must_move(folder(arguments, "a"));
  step.launch(3, gpu.stream());
  step.expect_result(3);
  CUcontext context = nullptr;
  OK(cuda().cuCtxCreate_v2(&context, 0, gpu.device()));
  {
    const Step own(gpu);
    own.launch(4, new_stream());
    own.expect_result(4);
  }
  OK(cuda().cuCtxDestroy_v2(context));
  control.must_move(folder(arguments, "none"));
  gpu.enter();
  blocks.expect(4, 2);  // one of them is that of `own`
  gpu.finish({}, {.hit = 3, .no_solution = 1});
}
