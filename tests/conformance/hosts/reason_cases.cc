// Why a kernel node keeps its original (shim/abi/graph_reasons.h), where no other case shows it.
#include "tests/conformance/hosts/graphs.h"

namespace conform {
namespace {

// A kernel, and another in a child graph behind it: such a graph is replaced in an exec of the shim's own.
struct Nested {
  Nested(const Gpu& gpu, CUfunction step, int value) {
    const Graph child;
    child.add(step, Arguments(gpu.marks(), 1, value + 1));
    first = graph.add(step, Arguments(gpu.marks(), 1, value));
    OK(cuda().cuGraphAddChildGraphNode(&node, graph.get(), &first, 1, child.get()));
  }
  Graph graph;
  CUgraphNode first = nullptr;
  CUgraphNode node = nullptr;
};

}  // namespace
}  // namespace conform

using namespace conform;

// The driver does not copy the graph.
GPU_CASE(kept_uncopied) {
  const CUfunction step = gpu.step();
  const Nested nested(gpu, step, 1);
  CHECK(cuda().simcuda_set_faults("cuGraphClone=2*1") == 1);
  const Executable executable(nested.graph.get());
  CHECK(cuda().simcuda_set_faults("") == 1);
  executable.run_for(gpu, 2);
  gpu.finish({.step = 2}, {.graph = 2});
}

// A child graph that the host sets keeps an object alive: the exec alone may hold it.
GPU_CASE(kept_child_with_objects) {
  const CUfunction step = gpu.step();
  const Nested nested(gpu, step, 1);
  const Executable executable(nested.graph.get());
  const Graph child;
  child.add(step, Arguments(gpu.marks(), 1, 3));
  static int ended = 0;
  CUuserObject object = nullptr;
  OK(cuda().cuUserObjectCreate(
      &object, &ended, [](void* count) { ++*static_cast<int*>(count); }, 1,
      CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
  OK(cuda().cuGraphRetainUserObject(child.get(), object, 1, CU_GRAPH_USER_OBJECT_MOVE));
  OK(cuda().cuGraphExecChildGraphNodeSetParams(executable.get(), nested.node, child.get()));
  executable.run_for(gpu, 3);
  gpu.finish({.step = 2}, {.hit = 2});
}

// The driver does not describe the graph from which an exec is updated.
GPU_CASE(kept_undescribed) {
  const CUfunction step = gpu.step();
  const Nested nested(gpu, step, 1);
  const Nested other(gpu, step, 3);
  const Executable executable(nested.graph.get());
  CHECK(cuda().simcuda_set_faults("cuGraphGetNodes=2*8") == 1);
  executable.update(other.graph);
  CHECK(cuda().simcuda_set_faults("") == 1);
  executable.run_for(gpu, 4);
  gpu.finish({.step = 2}, {.hit = 2});
}

// The copy of a node that the host sets does not take its parameters.
GPU_CASE(kept_set_unknown) {
  const CUfunction step = gpu.step();
  const Nested nested(gpu, step, 1);
  const Executable executable(nested.graph.get());
  CHECK(cuda().simcuda_set_faults("cuGraphKernelNodeSetParams_v2=1*1") == 1);
  executable.set(nested.first, step, Arguments(gpu.marks(), 1, 5));
  CHECK(cuda().simcuda_set_faults("") == 1);
  executable.run_for(gpu, 2);
  gpu.finish({.step = 2}, {.hit = 2});
}

// The exec was updated from another graph, which is copied.
GPU_CASE(kept_set_after_update) {
  const CUfunction step = gpu.step();
  const Nested nested(gpu, step, 1);
  const Nested other(gpu, step, 3);
  const Executable executable(nested.graph.get());
  executable.update(other.graph);
  executable.run_for(gpu, 4);
  executable.set(nested.first, step, Arguments(gpu.marks(), 1, 5));
  executable.run_for(gpu, 4);
  gpu.finish({.step = 2, .curated1 = 2}, {.hit = 2});
}
