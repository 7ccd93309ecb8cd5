// Graphs built by hand: every call that adds a kernel node, or changes it.
#include <string.h>

#include "tests/driver/contract/graphs.h"

namespace fibshim::contract {
namespace {

TEST_F(Graphs, KernelNodesHoldParametersByValue) {
  add_store(graph_, 40);
  EXPECT_EQ(40, run_once(graph_));
}

TEST_F(Graphs, TheOldFormOfKernelNodesWorks) {
  int32_t value = 41;
  void* params[] = {&to_, &value};
  const CUDA_KERNEL_NODE_PARAMS_v2 wide = store_node(params);
  CUDA_KERNEL_NODE_PARAMS_v1 node{};
  memcpy(&node, &wide, sizeof node);
  node.func = store_;
  CUgraphNode added = nullptr;
  ASSERT_OK(cuda().cuGraphAddKernelNode(&added, graph_, nullptr, 0, &node));
  EXPECT_EQ(41, run_once(graph_));
}

TEST_F(Graphs, TheOldFormTakesTheFunctionOfAKernel) {
  CUDA_KERNEL_NODE_PARAMS_v1 node{};
  ASSERT_OK(cuda().cuKernelGetFunction(&node.func, kernel(library_, "sim_store")));
  int32_t value = 53;
  void* params[] = {&to_, &value};
  node.gridDimX = node.gridDimY = node.gridDimZ = 1;
  node.blockDimX = node.blockDimY = node.blockDimZ = 1;
  node.kernelParams = params;
  CUgraphNode added = nullptr;
  ASSERT_OK(cuda().cuGraphAddKernelNode(&added, graph_, nullptr, 0, &node));
  EXPECT_EQ(53, run_once(graph_));
  CUDA_KERNEL_NODE_PARAMS_v2 got = params_of(added);
  EXPECT_EQ(kOfAKernel, handles_of(got));
  EXPECT_EQ(node.func, got.func);
  EXPECT_EQ("sim_store", kernel_name(got));
}

// A node takes a CUkernel in `kern`, with `func` null. As `func` it crashes the process: see
// CrashesOfTheRealDriver.AKernelAsTheFuncOfAGraphNode.
TEST_F(Graphs, KernelNodesTakeAKernelByItsField) {
  add_store_kernel(graph_, 42);
  EXPECT_EQ(42, run_once(graph_));
}

TEST_F(Graphs, ANodeOfAKernelReadsBackAsThatKernel) {
  const CUgraphNode node = add_store_kernel(graph_, 54);
  CUDA_KERNEL_NODE_PARAMS_v2 got = params_of(node);
  EXPECT_EQ(kOfAKernel, handles_of(got));
  EXPECT_EQ("sim_store", kernel_name(got));
  EXPECT_EQ(1u, got.gridDimX);
  ASSERT_NE(nullptr, got.kernelParams);
  EXPECT_EQ(0, memcmp(got.kernelParams[0], &to_, sizeof to_));
  EXPECT_EQ(54, *static_cast<const int32_t*>(got.kernelParams[1]));
  record_old_form(node);
  EXPECT_EQ(54, run_once(graph_));
}

TEST_F(Graphs, ANodeOfAKernelTakesWhatWasReadFromItBack) {
  const CUgraphNode node = add_store_kernel(graph_, 55);
  CUDA_KERNEL_NODE_PARAMS_v2 got = params_of(node);
  int32_t value = 56;
  void* params[] = {&to_, &value};
  got.kernelParams = params;
  got.extra = nullptr;
  ASSERT_OK(cuda().cuGraphKernelNodeSetParams_v2(node, &got));
  EXPECT_EQ(56, run_once(graph_));
}

TEST_F(Graphs, AnInstanceTakesAnotherKernelOfTheSameLibrary) {
  const CUgraphNode node = add_store_kernel(graph_, 57);
  const CUgraphExec exec = instantiate(graph_);
  EXPECT_EQ(57, run(exec));
  void* params[] = {&to_};
  CUDA_KERNEL_NODE_PARAMS_v2 changed = store_node(params);
  changed.kern = kernel(library_, "sim_increment");
  ASSERT_OK(cuda().cuGraphExecKernelNodeSetParams_v2(exec, node, &changed));
  EXPECT_EQ(58, run(exec));
  EXPECT_EQ(59, run(exec));
  EXPECT_EQ(57, run_once(graph_));
  EXPECT_OK(cuda().cuGraphExecDestroy(exec));
}

// This happens to a node whose function is redirected when its parameters are set, and no longer
// when they are set again.
TEST_F(Graphs, AnInstanceChangesFromAFunctionToAKernelAndBack) {
  const CUgraphNode node = add_store(graph_, 60);
  const CUgraphExec exec = instantiate(graph_);
  EXPECT_EQ(60, run(exec));
  void* increment[] = {&to_};
  CUDA_KERNEL_NODE_PARAMS_v2 changed = store_node(increment);
  changed.kern = kernel(library_, "sim_increment");
  ASSERT_OK(cuda().cuGraphExecKernelNodeSetParams_v2(exec, node, &changed));
  EXPECT_EQ(61, run(exec));
  int32_t value = 70;
  void* params[] = {&to_, &value};
  changed = store_node(params);
  changed.func = store_;
  ASSERT_OK(cuda().cuGraphExecKernelNodeSetParams_v2(exec, node, &changed));
  EXPECT_EQ(70, run(exec));
  EXPECT_OK(cuda().cuGraphExecDestroy(exec));
}

TEST_F(Graphs, ANodeChangesFromAFunctionToAKernelAndBack) {
  const CUgraphNode node = add_store(graph_, 71);
  void* increment[] = {&to_};
  CUDA_KERNEL_NODE_PARAMS_v2 changed = store_node(increment);
  changed.kern = kernel(library_, "sim_increment");
  ASSERT_OK(cuda().cuGraphKernelNodeSetParams_v2(node, &changed));
  EXPECT_EQ(1, run_once(graph_));
  int32_t value = 72;
  void* params[] = {&to_, &value};
  changed = store_node(params);
  changed.func = store_;
  ASSERT_OK(cuda().cuGraphKernelNodeSetParams_v2(node, &changed));
  EXPECT_EQ(72, run_once(graph_));
}

TEST_F(Graphs, AnyNodeFormTakesAKernelByItsField) {
  int32_t value = 73;
  void* params[] = {&to_, &value};
  CUgraphNodeParams node = any_node(params);
  node.kernel.kern = kernel(library_, "sim_store");
  CUgraphNode added = nullptr;
  ASSERT_OK(cuda().cuGraphAddNode(&added, graph_, nullptr, 0, &node));
  EXPECT_EQ(73, run_once(graph_));
}

TEST_F(Graphs, AnyNodeFormWorksForKernels) {
  int32_t value = 43;
  void* params[] = {&to_, &value};
  CUgraphNodeParams node = any_node(params);
  node.kernel.func = store_;
  CUgraphNode first = nullptr, second = nullptr;
  ASSERT_OK(cuda().cuGraphAddNode(&first, graph_, nullptr, 0, &node));
  EXPECT_EQ(43, run_once(graph_));
  value = 44;
  ASSERT_OK(cuda().cuGraphAddNode_v2(&second, graph_, &first, nullptr, 1, &node));
  EXPECT_EQ(44, run_once(graph_));
  value = 45;
  ASSERT_OK(cuda().cuGraphNodeSetParams(second, &node));
  EXPECT_EQ(45, run_once(graph_));
}

TEST_F(Graphs, NodesCanBeGivenOtherParameters) {
  const CUgraphNode node = add_store(graph_, 46);
  const CUgraphExec exec = instantiate(graph_);
  EXPECT_EQ(46, run(exec));
  CUDA_KERNEL_NODE_PARAMS_v2 got = params_of(node);
  int32_t value = 47;
  void* params[] = {&to_, &value};
  got.kernelParams = params;
  got.extra = nullptr;
  // Set in the instance: the graph does not change.
  ASSERT_OK(cuda().cuGraphExecKernelNodeSetParams_v2(exec, node, &got));
  EXPECT_EQ(47, run(exec));
  EXPECT_EQ(46, run_once(graph_));
  // Set in the graph: the instance does not change.
  value = 48;
  ASSERT_OK(cuda().cuGraphKernelNodeSetParams_v2(node, &got));
  EXPECT_EQ(47, run(exec));
  EXPECT_EQ(48, run_once(graph_));
  // An update from the graph changes the instance.
  CUgraphExecUpdateResultInfo info{};
  ASSERT_OK(cuda().cuGraphExecUpdate_v2(exec, graph_, &info));
  EXPECT_EQ(CU_GRAPH_EXEC_UPDATE_SUCCESS, info.result);
  EXPECT_EQ(48, run(exec));
  EXPECT_OK(cuda().cuGraphExecDestroy(exec));
}

TEST_F(Graphs, UpdatesRefuseAnotherShape) {
  add_store(graph_, 49);
  const CUgraphExec exec = instantiate(graph_);
  add_store(graph_, 50);
  CUgraphExecUpdateResultInfo info{};
  EXPECT_CUDA(CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE,
              cuda().cuGraphExecUpdate_v2(exec, graph_, &info));
  EXPECT_EQ(CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED, info.result);
  EXPECT_EQ(49, run(exec));
  EXPECT_OK(cuda().cuGraphExecDestroy(exec));
}

TEST_F(Graphs, ClonesAndChildrenAreCopies) {
  const CUgraphNode node = add_store(graph_, 51);
  CUgraph clone = nullptr, parent = nullptr;
  ASSERT_OK(cuda().cuGraphClone(&clone, graph_));
  ASSERT_OK(cuda().cuGraphCreate(&parent, 0));
  CUgraphNode child = nullptr;
  ASSERT_OK(cuda().cuGraphAddChildGraphNode(&child, parent, nullptr, 0, graph_));
  int32_t value = 52;
  void* params[] = {&to_, &value};
  CUDA_KERNEL_NODE_PARAMS_v2 changed = store_node(params);
  changed.func = store_;
  ASSERT_OK(cuda().cuGraphKernelNodeSetParams_v2(node, &changed));
  EXPECT_EQ(51, run_once(clone));
  EXPECT_EQ(52, run_once(graph_));
  EXPECT_EQ(51, run_once(parent));
  EXPECT_OK(cuda().cuGraphDestroy(parent));
  EXPECT_OK(cuda().cuGraphDestroy(clone));
}

}  // namespace
}  // namespace fibshim::contract
