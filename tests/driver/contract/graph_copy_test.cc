// The shim's operations on a host's graph: it copies it, changes the copy, instantiates both, and
// applies the host's changes to both execs.
#include <string.h>
#include <unistd.h>

#include <atomic>
#include <string>
#include <vector>

#include "tests/driver/contract/graphs.h"

namespace fibshim::contract {
namespace {

class GraphCopies : public Graphs {
 protected:
  // Sets a node of an exec.
  CUresult set_in(CUgraphExec exec, CUgraphNode node, int32_t value) {
    void* pointers[2];
    const CUDA_KERNEL_NODE_PARAMS_v2 params = store_params(pointers, &value);
    return cuda().cuGraphExecKernelNodeSetParams_v2(exec, node, &params);
  }
  CUresult set_increment_in(CUgraphExec exec, CUgraphNode node) {
    void* pointers[] = {&to_};
    const CUDA_KERNEL_NODE_PARAMS_v2 params = increment_params(pointers);
    return cuda().cuGraphExecKernelNodeSetParams_v2(exec, node, &params);
  }

  struct Edges {
    std::vector<CUgraphNode> nodes;
    std::vector<CUgraphEdgeData> data;
  };
  static Edges edges_into(CUgraphNode node) {
    size_t count = 0;
    EXPECT_OK(cuda().cuGraphNodeGetDependencies_v2(node, nullptr, nullptr, &count));
    Edges out{std::vector<CUgraphNode>(count), std::vector<CUgraphEdgeData>(count)};
    if (count != 0) {
      EXPECT_OK(
          cuda().cuGraphNodeGetDependencies_v2(node, out.nodes.data(), out.data.data(), &count));
    }
    return out;
  }
  static Edges edges_out_of(CUgraphNode node) {
    size_t count = 0;
    EXPECT_OK(cuda().cuGraphNodeGetDependentNodes_v2(node, nullptr, nullptr, &count));
    Edges out{std::vector<CUgraphNode>(count), std::vector<CUgraphEdgeData>(count)};
    if (count != 0) {
      EXPECT_OK(
          cuda().cuGraphNodeGetDependentNodes_v2(node, out.nodes.data(), out.data.data(), &count));
    }
    return out;
  }
  static CUgraphEdgeData programmatic() {
    CUgraphEdgeData data{};
    data.from_port = CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC;
    data.type = CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC;
    return data;
  }
  void end(CUgraphExec exec) { EXPECT_OK(cuda().cuGraphExecDestroy(exec)); }
  void end(CUgraph graph) { EXPECT_OK(cuda().cuGraphDestroy(graph)); }
};

// --- copies ---

TEST_F(GraphCopies, ANodeIsFoundInTheClone) {
  const CUgraphNode node = add_store(graph_, 1);
  const CUgraph copy = clone(graph_);
  const CUgraphNode found = find_in(copy, node);
  EXPECT_NE(node, found);
  ASSERT_OK(set(found, 2));
  EXPECT_EQ(1, run_once(graph_));
  EXPECT_EQ(2, run_once(copy));
  end(copy);
}

TEST_F(GraphCopies, ANodeIsFoundInACloneOfAClone) {
  const CUgraphNode node = add_store(graph_, 1);
  const CUgraph copy = clone(graph_);
  const CUgraph second = clone(copy);
  ASSERT_OK(set(find_in(second, find_in(copy, node)), 3));
  EXPECT_EQ(1, run_once(copy));
  EXPECT_EQ(3, run_once(second));
  end(second);
  end(copy);
}

TEST_F(GraphCopies, OnlyNodesThatWereThereAreFound) {
  add_store(graph_, 1);
  const CUgraph copy = clone(graph_);
  const CUgraphNode later = add_store(graph_, 2);
  CUgraphNode found = nullptr;
  EXPECT_CUDA(CUDA_ERROR_INVALID_VALUE, cuda().cuGraphNodeFindInClone(&found, later, copy));
  end(copy);
}

// Nodes of a child graph correspond to those of its copy by their order.
TEST_F(GraphCopies, TheChildOfACloneIsACopyWithAsManyNodesInTheSameOrder) {
  const CUgraphNode first = add_store(graph_, 1);
  add_store_after(graph_, first, 2);
  CUgraph parent = nullptr;
  ASSERT_OK(cuda().cuGraphCreate(&parent, 0));
  CUgraphNode child_node = nullptr;
  ASSERT_OK(cuda().cuGraphAddChildGraphNode(&child_node, parent, nullptr, 0, graph_));
  CUgraph child = nullptr;
  ASSERT_OK(cuda().cuGraphChildGraphNodeGetGraph(child_node, &child));
  const CUgraph copy = clone(parent);
  CUgraph child_copy = nullptr;
  ASSERT_OK(cuda().cuGraphChildGraphNodeGetGraph(find_in(copy, child_node), &child_copy));
  EXPECT_NE(child, child_copy);
  CUgraphNode nodes[2] = {};
  CUgraphNode copies[2] = {};
  size_t count = 2;
  ASSERT_OK(cuda().cuGraphGetNodes(child, nodes, &count));
  ASSERT_OK(cuda().cuGraphGetNodes(child_copy, copies, &count));
  ASSERT_EQ(2u, count);
  for (int i = 0; i < 2; ++i) {
    const auto value = [](CUgraphNode node) {
      return *static_cast<const int32_t*>(params_of(node).kernelParams[1]);
    };
    EXPECT_EQ(value(nodes[i]), value(copies[i]));
  }
  CUgraphNode found = nullptr;
  const CUresult inner = cuda().cuGraphNodeFindInClone(&found, nodes[0], child_copy);
  record("inner_node_in_child_copy", error_name(inner));
  if (inner == CUDA_SUCCESS) {
    EXPECT_EQ(copies[0], found);
  }
  record("inner_node_in_whole_copy",
         error_name(cuda().cuGraphNodeFindInClone(&found, nodes[0], copy)));
  end(copy);
  end(parent);
}

TEST_F(GraphCopies, ACloneOutlivesItsOriginal) {
  CUgraph original = nullptr;
  ASSERT_OK(cuda().cuGraphCreate(&original, 0));
  add_store(original, 4);
  const CUgraph copy = clone(original);
  end(original);
  EXPECT_EQ(4, run_once(copy));
  end(copy);
}

TEST_F(GraphCopies, AClonesNodesHoldAttributesAndEdges) {
  const CUgraphNode first = add_store(graph_, 1);
  const CUgraphNode second = add_store(graph_, 2);
  const CUgraphEdgeData data = programmatic();
  ASSERT_OK(cuda().cuGraphAddDependencies_v2(graph_, &first, &second, &data, 1));
  CUlaunchAttributeValue value{};
  value.priority = -1;
  ASSERT_OK(cuda().cuGraphKernelNodeSetAttribute(first, CU_LAUNCH_ATTRIBUTE_PRIORITY, &value));
  const CUgraph copy = clone(graph_);
  const Edges edges = edges_into(find_in(copy, second));
  ASSERT_EQ(1u, edges.nodes.size());
  EXPECT_EQ(find_in(copy, first), edges.nodes[0]);
  EXPECT_EQ(0, memcmp(&data, &edges.data[0], sizeof data));
  CUlaunchAttributeValue got{};
  ASSERT_OK(cuda().cuGraphKernelNodeGetAttribute(find_in(copy, first), CU_LAUNCH_ATTRIBUTE_PRIORITY,
                                                 &got));
  EXPECT_EQ(-1, got.priority);
  EXPECT_EQ(2, run_once(copy));
  end(copy);
}

TEST_F(GraphCopies, GraphsWithMemoryNodesAreNotCloned) {
  CUDA_MEM_ALLOC_NODE_PARAMS memory{};
  memory.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  memory.poolProps.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  memory.poolProps.location.id = device_;
  memory.bytesize = 256;
  CUgraphNode made = nullptr;
  CUgraphNode freed = nullptr;
  ASSERT_OK(cuda().cuGraphAddMemAllocNode(&made, graph_, nullptr, 0, &memory));
  ASSERT_OK(cuda().cuGraphAddMemFreeNode(&freed, graph_, &made, 1, memory.dptr));
  CUgraph copy = nullptr;
  const CUresult result = cuda().cuGraphClone(&copy, graph_);
  record("clone", error_name(result));
  EXPECT_NE(CUDA_SUCCESS, result);
  // Graphs that cannot be cloned can be run.
  const CUgraphNode store = add_store(graph_, 5);
  EXPECT_EQ(5, run_once(graph_));
  // A node may be set before the graph is instantiated, and set back afterwards.
  ASSERT_OK(set(store, 6));
  const CUgraphExec exec = instantiate(graph_);
  ASSERT_OK(set(store, 5));
  EXPECT_EQ(6, run(exec));
  end(exec);
}

TEST_F(GraphCopies, GraphsWithConditionalNodesAreNotCloned) {
  add_store(add_body(graph_, graph_), 7);
  CUgraph copy = nullptr;
  const CUresult result = cuda().cuGraphClone(&copy, graph_);
  record("clone", error_name(result));
  EXPECT_NE(CUDA_SUCCESS, result);
  EXPECT_EQ(7, run_once(graph_));
}

TEST_F(GraphCopies, ANodeKeepsItsPriorityWithAnotherKernel) {
  int least = 0;
  int greatest = 0;
  ASSERT_OK(cuda().cuCtxGetStreamPriorityRange(&least, &greatest));
  const CUgraphNode node = add_store(graph_, 1);
  CUlaunchAttributeValue value{};
  value.priority = greatest;
  ASSERT_OK(cuda().cuGraphKernelNodeSetAttribute(node, CU_LAUNCH_ATTRIBUTE_PRIORITY, &value));
  const CUgraph copy = clone(graph_);
  const CUgraphNode copied = find_in(copy, node);
  ASSERT_OK(set_increment(copied));
  value = {};
  ASSERT_OK(cuda().cuGraphKernelNodeGetAttribute(copied, CU_LAUNCH_ATTRIBUTE_PRIORITY, &value));
  EXPECT_EQ(greatest, value.priority);
  end(copy);
}

// --- edges ---

TEST_F(GraphCopies, EdgesAreRemovedAndAddedWithTheirData) {
  const CUgraphNode first = add_store(graph_, 1);
  const CUgraphNode second = add_store(graph_, 2);
  const CUgraphEdgeData data = programmatic();
  ASSERT_OK(cuda().cuGraphAddDependencies_v2(graph_, &first, &second, &data, 1));
  EXPECT_EQ(1u, edges_out_of(first).nodes.size());
  ASSERT_OK(cuda().cuGraphRemoveDependencies_v2(graph_, &first, &second, &data, 1));
  EXPECT_EQ(0u, edges_into(second).nodes.size());
  ASSERT_OK(cuda().cuGraphAddDependencies_v2(graph_, &first, &second, &data, 1));
  // Without data given, an edge is removed whatever its data are.
  ASSERT_OK(cuda().cuGraphRemoveDependencies_v2(graph_, &first, &second, nullptr, 1));
  EXPECT_EQ(0u, edges_into(second).nodes.size());
  ASSERT_OK(cuda().cuGraphAddDependencies_v2(graph_, &first, &second, nullptr, 1));
  const Edges edges = edges_into(second);
  ASSERT_EQ(1u, edges.nodes.size());
  EXPECT_EQ(CU_GRAPH_DEPENDENCY_TYPE_DEFAULT, edges.data[0].type);
  EXPECT_EQ(2, run_once(graph_));
}

TEST_F(GraphCopies, AnEdgeIsAddedOnce) {
  const CUgraphNode first = add_store(graph_, 1);
  const CUgraphNode second = add_store_after(graph_, first, 2);
  EXPECT_CUDA(CUDA_ERROR_INVALID_VALUE, cuda().cuGraphAddDependencies(graph_, &first, &second, 1));
}

TEST_F(GraphCopies, TheOldFormDoesNotLeaveDataOut) {
  const CUgraphNode first = add_store(graph_, 1);
  const CUgraphNode second = add_store(graph_, 2);
  const CUgraphEdgeData data = programmatic();
  ASSERT_OK(cuda().cuGraphAddDependencies_v2(graph_, &first, &second, &data, 1));
  CUgraphNode before = nullptr;
  size_t count = 1;
  EXPECT_CUDA(CUDA_ERROR_LOSSY_QUERY, cuda().cuGraphNodeGetDependencies(second, &before, &count));
}

// --- execs ---

TEST_F(GraphCopies, TwoExecsOfAGraphAndItsCloneAreApart) {
  const CUgraphNode node = add_store(graph_, 1);
  const CUgraph copy = clone(graph_);
  const CUgraphNode twin = find_in(copy, node);
  const CUgraphExec exec = instantiate(graph_);
  const CUgraphExec other = instantiate(copy);
  ASSERT_OK(set_in(exec, node, 10));
  ASSERT_OK(set_in(other, twin, 20));
  EXPECT_EQ(10, run(exec));
  EXPECT_EQ(20, run(other));
  EXPECT_CUDA(CUDA_ERROR_INVALID_VALUE, set_in(exec, twin, 30));
  EXPECT_CUDA(CUDA_ERROR_INVALID_VALUE, set_in(other, node, 30));
  end(other);
  end(exec);
  end(copy);
}

TEST_F(GraphCopies, AnExecOutlivesItsGraph) {
  CUgraph graph = nullptr;
  ASSERT_OK(cuda().cuGraphCreate(&graph, 0));
  add_store(graph, 11);
  const CUgraphExec exec = instantiate(graph);
  end(graph);
  EXPECT_EQ(11, run(exec));
  end(exec);
}

// The exec still accepts a graph's node that has got another kernel since the exec was made.
TEST_F(GraphCopies, AnExecTakesANodeThatHasChangedSince) {
  const CUgraphNode node = add_store(graph_, 1);
  const CUgraphExec exec = instantiate(graph_);
  ASSERT_OK(set_increment(node));
  EXPECT_EQ(1, run(exec));
  ASSERT_OK(set_in(exec, node, 12));
  EXPECT_EQ(12, run(exec));
  // And a second exec of the changed graph accepts that node, too.
  const CUgraphExec second = instantiate(graph_);
  EXPECT_EQ(13, run(second));
  ASSERT_OK(set_in(second, node, 14));
  EXPECT_EQ(14, run(second));
  EXPECT_EQ(12, run(exec));
  end(second);
  end(exec);
}

TEST_F(GraphCopies, AReplacedNodeOfACloneRunsTheReplacement) {
  const CUgraphNode first = add_store(graph_, 15);
  const CUgraphNode second = add_store_after(graph_, first, 30);
  const CUgraph copy = clone(graph_);
  ASSERT_OK(set_increment(find_in(copy, second)));
  const CUgraphExec exec = instantiate(copy);
  EXPECT_EQ(16, run(exec));
  ASSERT_OK(set_in(exec, find_in(copy, second), 17));
  EXPECT_EQ(17, run(exec));
  ASSERT_OK(set_increment_in(exec, find_in(copy, second)));
  EXPECT_EQ(16, run(exec));
  end(exec);
  end(copy);
}

// As in shadow checks: before a node, the memory that it writes is copied, and another kernel runs
// on the copy.
TEST_F(GraphCopies, NodesAreAddedToAClone) {
  const CUgraphNode first = add_store(graph_, 15);
  const CUgraph copy = clone(graph_);
  const CUgraphNode found = find_in(copy, first);
  CUdeviceptr other = make_int();
  expect_stores(store_, to_, 7);
  CUDA_MEMCPY3D bytes{};
  bytes.srcMemoryType = bytes.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  bytes.srcDevice = to_;
  bytes.dstDevice = other;
  bytes.WidthInBytes = bytes.srcPitch = bytes.dstPitch = sizeof(int32_t);
  bytes.Height = bytes.Depth = bytes.srcHeight = bytes.dstHeight = 1;
  CUgraphNode copied = nullptr;
  ASSERT_OK(cuda().cuGraphAddMemcpyNode(&copied, copy, nullptr, 0, &bytes, context_));
  void* pointers[] = {&other};
  CUDA_KERNEL_NODE_PARAMS_v2 params = store_node(pointers);
  params.kern = kernel(library_, "sim_increment");
  CUgraphNode added = nullptr;
  ASSERT_OK(cuda().cuGraphAddKernelNode_v2(&added, copy, &copied, 1, &params));
  ASSERT_OK(cuda().cuGraphAddDependencies_v2(copy, &added, &found, nullptr, 1));
  const CUgraphExec exec = instantiate(copy);
  EXPECT_EQ(15, run(exec));
  EXPECT_EQ(8, read_int(other));
  expect_stores(store_, to_, 20);
  EXPECT_EQ(15, run_once(graph_));
  EXPECT_EQ(8, read_int(other));
  EXPECT_EQ(15, run(exec));
  EXPECT_EQ(16, read_int(other));
  end(exec);
  end(copy);
}

TEST_F(GraphCopies, NodesAreDisabledAndEnabledInAnExec) {
  const CUgraphNode first = add_store(graph_, 18);
  const CUgraphNode second = add_store_after(graph_, first, 19);
  const CUgraphExec exec = instantiate(graph_);
  unsigned is_enabled = 0;
  ASSERT_OK(cuda().cuGraphNodeGetEnabled(exec, second, &is_enabled));
  EXPECT_EQ(1u, is_enabled);
  ASSERT_OK(cuda().cuGraphNodeSetEnabled(exec, second, 0));
  EXPECT_EQ(18, run(exec));
  // Its parameters may be set while it is disabled; it stays disabled.
  ASSERT_OK(set_in(exec, second, 21));
  EXPECT_EQ(18, run(exec));
  ASSERT_OK(cuda().cuGraphNodeGetEnabled(exec, second, &is_enabled));
  EXPECT_EQ(0u, is_enabled);
  ASSERT_OK(cuda().cuGraphNodeSetEnabled(exec, second, 1));
  EXPECT_EQ(21, run(exec));
  // In a new exec of the graph all nodes are enabled.
  ASSERT_OK(cuda().cuGraphNodeSetEnabled(exec, second, 0));
  EXPECT_EQ(19, run_once(graph_));
  end(exec);
}

TEST_F(GraphCopies, EmptyNodesAreNotDisabled) {
  CUgraphNode node = nullptr;
  ASSERT_OK(cuda().cuGraphAddEmptyNode(&node, graph_, nullptr, 0));
  const CUgraphExec exec = instantiate(graph_);
  EXPECT_NE(CUDA_SUCCESS, cuda().cuGraphNodeSetEnabled(exec, node, 0));
  end(exec);
}

TEST_F(GraphCopies, FlagsOfNodePriorityAreNotReadBack) {
  add_store(graph_, 1);
  CUgraphExec exec = nullptr;
  ASSERT_OK(cuda().cuGraphInstantiateWithFlags(&exec, graph_,
                                               CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY));
  cuuint64_t flags = 77;
  ASSERT_OK(cuda().cuGraphExecGetFlags(exec, &flags));
  EXPECT_EQ(0u, flags);
  end(exec);
}

// An update from a clone in which a node has another kernel. Afterwards the exec is set by nodes of
// its own graph.
TEST_F(GraphCopies, AnUpdateTakesAnotherKernel) {
  const CUgraphNode node = add_store(graph_, 22);
  const CUgraphExec exec = instantiate(graph_);
  EXPECT_EQ(22, run(exec));
  const CUgraph copy = clone(graph_);
  ASSERT_OK(set_increment(find_in(copy, node)));
  CUgraphExecUpdateResultInfo info{};
  ASSERT_OK(cuda().cuGraphExecUpdate_v2(exec, copy, &info));
  EXPECT_EQ(23, run(exec));
  record("node_of_the_first_graph", error_name(set_in(exec, node, 24)));
  record("node_of_the_updating_graph", error_name(set_in(exec, find_in(copy, node), 25)));
  end(copy);
  end(exec);
}

// If only parameters change, no copy is made: the host's node holds another kernel during the
// instantiation or update. Afterwards the graph is as before, and the exec has the other kernel and
// accepts that node.
TEST_F(GraphCopies, ANodeIsSetForOneCallAndBack) {
  for (const bool is_kernel : {false, true}) {
    CUgraph graph = nullptr;
    ASSERT_OK(cuda().cuGraphCreate(&graph, 0));
    const CUgraphNode node = is_kernel ? add_store_kernel(graph, 40) : add_store(graph, 40);
    const std::string handles = handles_of(params_of(node));
    const auto set_for = [&](const auto& call) {
      ASSERT_OK(set_increment(node));
      call();
      int32_t value = 40;
      void* pointers[2];
      CUDA_KERNEL_NODE_PARAMS_v2 params = store_params(pointers, &value);
      if (is_kernel) {
        params.func = nullptr;
        params.kern = kernel(library_, "sim_store");
      }
      ASSERT_OK(cuda().cuGraphKernelNodeSetParams_v2(node, &params));
      EXPECT_EQ(handles, handles_of(params_of(node)));
      EXPECT_EQ(40, run_once(graph));
    };
    CUgraphExec exec = nullptr;
    set_for([&] { exec = instantiate(graph); });
    EXPECT_EQ(41, run(exec));
    ASSERT_OK(set_in(exec, node, 42));
    EXPECT_EQ(42, run(exec));
    set_for([&] {
      CUgraphExecUpdateResultInfo info{};
      ASSERT_OK(cuda().cuGraphExecUpdate_v2(exec, graph, &info));
    });
    EXPECT_EQ(41, run(exec));
    ASSERT_OK(set_in(exec, node, 43));
    EXPECT_EQ(43, run(exec));
    end(exec);
    end(graph);
  }
}

// Records whether a disabled node stays disabled.
TEST_F(GraphCopies, AnUpdateAndADisabledNode) {
  const CUgraphNode first = add_store(graph_, 26);
  const CUgraphNode second = add_store_after(graph_, first, 27);
  const CUgraphExec exec = instantiate(graph_);
  ASSERT_OK(cuda().cuGraphNodeSetEnabled(exec, second, 0));
  CUgraphExecUpdateResultInfo info{};
  ASSERT_OK(cuda().cuGraphExecUpdate_v2(exec, graph_, &info));
  unsigned is_enabled = 2;
  ASSERT_OK(cuda().cuGraphNodeGetEnabled(exec, second, &is_enabled));
  record("after_an_update", is_enabled == 0 ? "disabled" : "enabled");
  // cuGraphNodeGetEnabled agrees with what runs.
  EXPECT_EQ(is_enabled == 0 ? 26 : 27, run(exec));
  end(exec);
}

// An exec that is destroyed while it runs is completed.
TEST_F(GraphCopies, AnExecThatRunsIsEnded) {
  CUgraphNode last = add_store(graph_, 0);
  for (int32_t i = 1; i < 500; ++i) last = add_store_after(graph_, last, i);
  const CUgraphExec exec = instantiate(graph_);
  const CUstream stream = make_stream();
  for (int i = 0; i < 4; ++i) ASSERT_OK(cuda().cuGraphLaunch(exec, stream));
  end(exec);
  ASSERT_OK(cuda().cuStreamSynchronize(stream));
  EXPECT_EQ(499, read_int(to_));
}

// Memory can be freed while kernels run that use it.
TEST_F(GraphCopies, FreeingMemoryWaitsForAllThatRuns) {
  CUgraphNode last = add_store(graph_, 0);
  for (int32_t i = 1; i < 500; ++i) last = add_store_after(graph_, last, i);
  const CUgraphExec exec = instantiate(graph_);
  const CUstream stream = make_stream();
  CUevent done = nullptr;
  ASSERT_OK(cuda().cuEventCreate(&done, CU_EVENT_DISABLE_TIMING));
  CUdeviceptr other = 0;
  ASSERT_OK(cuda().cuMemAlloc_v2(&other, 4096));
  for (int i = 0; i < 8; ++i) ASSERT_OK(cuda().cuGraphLaunch(exec, stream));
  ASSERT_OK(cuda().cuEventRecord(done, stream));
  ASSERT_OK(cuda().cuMemFree_v2(other));
  EXPECT_OK(cuda().cuEventQuery(done));
  ASSERT_OK(cuda().cuEventDestroy_v2(done));
  end(exec);
}

// An upload into a stream waits for the exec's launches in other streams, and later work in that
// stream waits for the upload. So it orders another exec after this one.
TEST_F(GraphCopies, AnUploadWaitsForLaunchesInOtherStreams) {
  CUgraphNode last = add_store(graph_, 0);
  for (int32_t i = 1; i < 500; ++i) last = add_store_after(graph_, last, i);
  const CUgraphExec exec = instantiate(graph_);
  const CUstream one = make_stream();
  const CUstream two = make_stream();
  ASSERT_OK(cuda().cuGraphUpload(exec, two));
  ASSERT_OK(cuda().cuStreamSynchronize(two));
  for (int i = 0; i < 20; ++i) {
    for (int k = 0; k < 8; ++k) ASSERT_OK(cuda().cuGraphLaunch(exec, one));
    ASSERT_OK(cuda().cuGraphUpload(exec, two));
    ASSERT_OK(launch_store(store_, to_, -1, two));
    ASSERT_OK(cuda().cuStreamSynchronize(one));
    ASSERT_OK(cuda().cuStreamSynchronize(two));
    ASSERT_EQ(-1, read_int(to_)) << "an upload does not wait";
  }
  end(exec);
}

// If a graph is launched into two streams, its runs do not overlap.
TEST_F(GraphCopies, LaunchesOfOneExecAreOrdered) {
  CUgraphNode last = add_store(graph_, 0);
  for (int32_t i = 1; i < 500; ++i) last = add_store_after(graph_, last, i);
  void* pointers[] = {&to_};
  CUDA_KERNEL_NODE_PARAMS_v2 params = store_node(pointers);
  params.kern = kernel(library_, "sim_increment");
  CUgraphNode increment = nullptr;
  ASSERT_OK(cuda().cuGraphAddKernelNode_v2(&increment, graph_, &last, 1, &params));
  const CUgraphExec exec = instantiate(graph_);
  const CUstream streams[] = {make_stream(), make_stream()};
  for (int i = 0; i < 20; ++i) ASSERT_OK(cuda().cuGraphLaunch(exec, streams[i % 2]));
  for (const CUstream stream : streams) ASSERT_OK(cuda().cuStreamSynchronize(stream));
  EXPECT_EQ(500, read_int(to_));
  end(exec);
}

// --- other nodes ---

TEST_F(GraphCopies, CopiesAreSetInTheGraphAndInAnExec) {
  const CUdeviceptr other = make_int();
  expect_stores(store_, other, 33);
  CUDA_MEMCPY3D copy{};
  copy.srcMemoryType = copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.srcDevice = other;
  copy.dstDevice = to_;
  copy.WidthInBytes = sizeof(int32_t);
  copy.Height = copy.Depth = 1;
  CUgraphNode node = nullptr;
  ASSERT_OK(cuda().cuGraphAddMemcpyNode(&node, graph_, nullptr, 0, &copy, context_));
  const CUgraphExec exec = instantiate(graph_);
  EXPECT_EQ(33, run(exec));
  const CUdeviceptr third = make_int();
  expect_stores(store_, third, 34);
  copy.srcDevice = third;
  ASSERT_OK(cuda().cuGraphExecMemcpyNodeSetParams(exec, node, &copy, context_));
  EXPECT_EQ(34, run(exec));
  EXPECT_EQ(33, run_once(graph_));
  ASSERT_OK(cuda().cuGraphMemcpyNodeSetParams(node, &copy));
  EXPECT_EQ(34, run_once(graph_));
  end(exec);
}

TEST_F(GraphCopies, FillsAreSetInTheGraphAndInAnExec) {
  CUDA_MEMSET_NODE_PARAMS fill{};
  fill.dst = to_;
  fill.value = 35;
  fill.elementSize = 4;
  fill.width = fill.height = 1;
  CUgraphNode node = nullptr;
  ASSERT_OK(cuda().cuGraphAddMemsetNode(&node, graph_, nullptr, 0, &fill, context_));
  const CUgraphExec exec = instantiate(graph_);
  EXPECT_EQ(35, run(exec));
  fill.value = 36;
  ASSERT_OK(cuda().cuGraphExecMemsetNodeSetParams(exec, node, &fill, context_));
  EXPECT_EQ(36, run(exec));
  EXPECT_EQ(35, run_once(graph_));
  ASSERT_OK(cuda().cuGraphMemsetNodeSetParams(node, &fill));
  EXPECT_EQ(36, run_once(graph_));
  end(exec);
}

TEST_F(GraphCopies, HostFunctionsAreSetInTheGraphAndInAnExec) {
  int calls[2] = {};
  CUDA_HOST_NODE_PARAMS host{};
  host.fn = [](void* data) { ++*static_cast<int*>(data); };
  host.userData = &calls[0];
  CUgraphNode node = nullptr;
  ASSERT_OK(cuda().cuGraphAddHostNode(&node, graph_, nullptr, 0, &host));
  const CUgraphExec exec = instantiate(graph_);
  (void)run(exec);
  host.userData = &calls[1];
  ASSERT_OK(cuda().cuGraphExecHostNodeSetParams(exec, node, &host));
  (void)run(exec);
  (void)run(exec);
  EXPECT_EQ(1, calls[0]);
  EXPECT_EQ(2, calls[1]);
  ASSERT_OK(cuda().cuGraphHostNodeSetParams(node, &host));
  (void)run_once(graph_);
  EXPECT_EQ(3, calls[1]);
  end(exec);
}

TEST_F(GraphCopies, EventsAreSetInTheGraphAndInAnExec) {
  CUevent one = nullptr;
  CUevent two = nullptr;
  ASSERT_OK(cuda().cuEventCreate(&one, CU_EVENT_DISABLE_TIMING));
  ASSERT_OK(cuda().cuEventCreate(&two, CU_EVENT_DISABLE_TIMING));
  CUgraphNode recorded = nullptr;
  CUgraphNode waited = nullptr;
  ASSERT_OK(cuda().cuGraphAddEventRecordNode(&recorded, graph_, nullptr, 0, one));
  ASSERT_OK(cuda().cuGraphAddEventWaitNode(&waited, graph_, &recorded, 1, two));
  const CUgraphExec exec = instantiate(graph_);
  (void)run(exec);
  ASSERT_OK(cuda().cuGraphExecEventRecordNodeSetEvent(exec, recorded, two));
  ASSERT_OK(cuda().cuGraphExecEventWaitNodeSetEvent(exec, waited, one));
  (void)run(exec);
  CUevent got = nullptr;
  ASSERT_OK(cuda().cuGraphEventRecordNodeGetEvent(recorded, &got));
  EXPECT_EQ(one, got);
  ASSERT_OK(cuda().cuGraphEventRecordNodeSetEvent(recorded, two));
  ASSERT_OK(cuda().cuGraphEventRecordNodeGetEvent(recorded, &got));
  EXPECT_EQ(two, got);
  EXPECT_OK(cuda().cuGraphEventWaitNodeSetEvent(waited, one));
  end(exec);
  EXPECT_OK(cuda().cuEventDestroy_v2(one));
  EXPECT_OK(cuda().cuEventDestroy_v2(two));
}

// --- user objects ---

class UserObjects : public GraphCopies {
 protected:
  // Gives a graph the only reference to an object; its destructor increments `ended`.
  void give_object(CUgraph graph, std::atomic<int>* ended) {
    CUuserObject object = nullptr;
    const CUhostFn destroy = [](void* data) { ++*static_cast<std::atomic<int>*>(data); };
    ASSERT_OK(
        cuda().cuUserObjectCreate(&object, ended, destroy, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
    ASSERT_OK(cuda().cuGraphRetainUserObject(graph, object, 1, CU_GRAPH_USER_OBJECT_MOVE));
  }
  // The driver calls destructors on a thread of its own.
  static int wait_for(const std::atomic<int>& ended) {
    for (int i = 0; i < 10'000 && ended == 0; ++i) usleep(1'000);
    return ended;
  }
  CUgraph graph_with(std::atomic<int>* ended, int32_t value) {
    CUgraph graph = nullptr;
    EXPECT_OK(cuda().cuGraphCreate(&graph, 0));
    add_store(graph, value);
    give_object(graph, ended);
    return graph;
  }
  std::atomic<int> ended_ = 0, other_ended_ = 0;
};

TEST_F(UserObjects, AreHeldByClones) {
  const CUgraph graph = graph_with(&ended_, 41);
  const CUgraph copy = clone(graph);
  end(graph);
  EXPECT_EQ(41, run_once(copy));
  EXPECT_EQ(0, ended_);
  end(copy);
  EXPECT_EQ(1, wait_for(ended_));
}

TEST_F(UserObjects, AreHeldByExecs) {
  const CUgraph graph = graph_with(&ended_, 42);
  const CUgraphExec exec = instantiate(graph);
  end(graph);
  EXPECT_EQ(42, run(exec));
  EXPECT_EQ(0, ended_);
  end(exec);
  EXPECT_EQ(1, wait_for(ended_));
}

TEST_F(UserObjects, AreThoseOfTheGraphThatAnExecTookOver) {
  const CUgraph graph = graph_with(&ended_, 43);
  const CUgraph other = graph_with(&other_ended_, 44);
  const CUgraphExec exec = instantiate(graph);
  end(graph);
  CUgraphExecUpdateResultInfo info{};
  ASSERT_OK(cuda().cuGraphExecUpdate_v2(exec, other, &info));
  end(other);
  EXPECT_EQ(44, run(exec));
  EXPECT_EQ(1, wait_for(ended_));
  EXPECT_EQ(0, other_ended_);
  end(exec);
  EXPECT_EQ(1, wait_for(other_ended_));
}

// --- captures ---

TEST_F(GraphCopies, ALaunchIntoACaptureInvalidatesIt) {
  add_store(graph_, 37);
  const CUgraphExec exec = instantiate(graph_);
  const CUstream stream = make_stream();
  ASSERT_OK(cuda().cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  const CUresult launched = cuda().cuGraphLaunch(exec, stream);
  record("launch", error_name(launched));
  EXPECT_NE(CUDA_SUCCESS, launched);
  CUgraph captured = nullptr;
  EXPECT_CUDA(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuda().cuStreamEndCapture(stream, &captured));
  EXPECT_EQ(37, run_once(graph_));
  end(exec);
}

TEST_F(GraphCopies, AProgrammaticLaunchIsCapturedBehindAProgrammaticEdge) {
  const CUstream stream = make_stream();
  int32_t values[] = {38, 39};
  ASSERT_OK(cuda().cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  ASSERT_OK(launch_store(store_, to_, values[0], stream));
  CUlaunchAttribute attribute{};
  attribute.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
  attribute.value.programmaticStreamSerializationAllowed = 1;
  CUlaunchConfig config{};
  config.gridDimX = config.gridDimY = config.gridDimZ = 1;
  config.blockDimX = config.blockDimY = config.blockDimZ = 1;
  config.hStream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  void* params[] = {&to_, &values[1]};
  ASSERT_OK(cuda().cuLaunchKernelEx(&config, store_, params, nullptr));
  CUgraph captured = nullptr;
  ASSERT_OK(cuda().cuStreamEndCapture(stream, &captured));
  CUgraphNode nodes[2] = {};
  size_t count = 2;
  ASSERT_OK(cuda().cuGraphGetNodes(captured, nodes, &count));
  int programmatic_edges = 0;
  for (const CUgraphNode node : nodes) {
    for (const CUgraphEdgeData& data : edges_into(node).data) {
      if (data.type == CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC) ++programmatic_edges;
    }
  }
  EXPECT_EQ(1, programmatic_edges);
  (void)run_once(captured);
  end(captured);
}

}  // namespace
}  // namespace fibshim::contract
