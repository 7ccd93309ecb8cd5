// The bodies of conditional nodes, which the shim changes before a graph is instantiated, and back after it.
#include <string>

#include "tests/driver/contract/graphs.h"

namespace fibshim::contract {
namespace {

class Bodies : public Graphs {
 protected:
  static int32_t value_of(CUgraphNode node) {
    CUDA_KERNEL_NODE_PARAMS_v2 params{};
    EXPECT_OK(cuda().cuGraphKernelNodeGetParams_v2(node, &params));
    return *static_cast<const int32_t*>(params.kernelParams[1]);
  }
  // The exec runs what the node is set to before it is made; the graph keeps what it is set to after that.
  void expect_set_before(CUgraphNode node) {
    EXPECT_OK(set_increment(node));
    const CUgraphExec exec = instantiate(graph_);
    EXPECT_OK(set(node, 70));
    EXPECT_EQ(70, value_of(node));
    const int32_t before = read_int(to_);
    EXPECT_EQ(before + 1, run(exec));
    EXPECT_EQ(before + 2, run(exec));
    EXPECT_OK(cuda().cuGraphExecDestroy(exec));
    EXPECT_EQ(70, run_once(graph_));
  }
};

TEST_F(Bodies, ANodeMayBeSetBeforeTheGraphIsInstantiatedAndBack) {
  expect_set_before(add_store(add_body(graph_, graph_), 7));
}

TEST_F(Bodies, ANodeOfANestedBodyMayBeSet) {
  expect_set_before(add_store(add_body(graph_, add_body(graph_, graph_)), 7));
}

TEST_F(Bodies, ANodeOfAChildGraphInABodyMayBeSet) {
  CUgraph inner = nullptr;
  ASSERT_OK(cuda().cuGraphCreate(&inner, 0));
  add_store(inner, 7);
  CUgraphNode child_node = nullptr;
  ASSERT_OK(
      cuda().cuGraphAddChildGraphNode(&child_node, add_body(graph_, graph_), nullptr, 0, inner));
  CUgraph child = nullptr;
  ASSERT_OK(cuda().cuGraphChildGraphNodeGetGraph(child_node, &child));
  CUgraphNode node = nullptr;
  size_t count = 1;
  ASSERT_OK(cuda().cuGraphGetNodes(child, &node, &count));
  ASSERT_EQ(1u, count);
  expect_set_before(node);
  ASSERT_OK(cuda().cuGraphDestroy(inner));
}

TEST_F(Bodies, AGraphWithThemHasOneExecAtATime) {
  add_store(add_body(graph_, graph_), 7);
  const CUgraphExec exec = instantiate(graph_);
  CUgraphExec second = nullptr;
  EXPECT_EQ(CUDA_ERROR_NOT_SUPPORTED, cuda().cuGraphInstantiateWithFlags(&second, graph_, 0));
  EXPECT_OK(cuda().cuGraphExecDestroy(exec));
  EXPECT_EQ(7, run_once(graph_));
}

TEST_F(Bodies, AnUpdateTakesThemOver) {
  const CUgraphNode node = add_store(add_body(graph_, graph_), 7);
  const CUgraphExec exec = instantiate(graph_);
  EXPECT_EQ(7, run(exec));
  EXPECT_OK(set(node, 8));
  CUgraphExecUpdateResultInfo info{};
  const CUresult result = cuda().cuGraphExecUpdate_v2(exec, graph_, &info);
  record("update", error_name(result));
  EXPECT_EQ(result == CUDA_SUCCESS ? 8 : 7, run(exec));
  cuuint64_t flags = 77;
  EXPECT_OK(cuda().cuGraphExecGetFlags(exec, &flags));
  EXPECT_EQ(0u, flags);
  EXPECT_OK(cuda().cuGraphExecDestroy(exec));
}

}  // namespace
}  // namespace fibshim::contract
