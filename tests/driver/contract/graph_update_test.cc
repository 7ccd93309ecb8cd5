// What cuGraphExecUpdate copies from a graph besides its nodes' parameters, and what the shim then
// reads from graphs.
#include <string>
#include <utility>
#include <vector>

#include "tests/driver/contract/graphs.h"

namespace fibshim::contract {
namespace {

constexpr uint32_t kMostBlocks = 8;

class GraphUpdates : public Graphs {
 protected:
  // Adds sim_cluster(to_, more) of `kMostBlocks` blocks.
  CUgraphNode add_cluster(CUgraph graph, int32_t more) {
    void* pointers[] = {&to_, &more};
    CUDA_KERNEL_NODE_PARAMS_v2 params = store_node(pointers);
    params.func = function(module_, "sim_cluster");
    params.gridDimX = kMostBlocks;
    CUgraphNode node = nullptr;
    EXPECT_OK(cuda().cuGraphAddKernelNode_v2(&node, graph, nullptr, 0, &params));
    return node;
  }
  // Adds sim_store(to, value) after a node.
  void add_other(CUgraph graph, CUgraphNode before, CUdeviceptr to, int32_t value) {
    void* pointers[] = {&to, &value};
    CUDA_KERNEL_NODE_PARAMS_v2 params = store_node(pointers);
    params.func = store_;
    CUgraphNode node = nullptr;
    EXPECT_OK(cuda().cuGraphAddKernelNode_v2(&node, graph, &before, 1, &params));
  }
  static CUresult set_attribute(CUgraphNode node, CUlaunchAttributeID id,
                                const CUlaunchAttributeValue& value) {
    return cuda().cuGraphKernelNodeSetAttribute(node, id, &value);
  }
  static CUgraph make_graph() {
    CUgraph graph = nullptr;
    EXPECT_OK(cuda().cuGraphCreate(&graph, 0));
    return graph;
  }
  static CUresult update(CUgraphExec exec, CUgraph graph, CUgraphExecUpdateResultInfo* info) {
    *info = {};
    return cuda().cuGraphExecUpdate_v2(exec, graph, info);
  }
};

// After an update the parameters are the new graph's, but the cluster is the one that the exec was
// made with. 0: no cluster is set.
TEST_F(GraphUpdates, TakeParametersAndNoCluster) {
  if (sm() < 90) GTEST_SKIP() << "clusters came with sm_90";
  const CUdeviceptr other = make_int();
  struct Change {
    unsigned from;
    unsigned to;
  };
  for (const Change& change :
       {Change{0, 2}, Change{2, 0}, Change{1, 2}, Change{2, 1}, Change{2, 4}, Change{2, 2}}) {
    const auto make = [&](unsigned cluster, int32_t more) {
      CUgraph const graph = make_graph();
      const CUgraphNode node = add_cluster(graph, more);
      CUlaunchAttributeValue value{};
      value.clusterDim = {cluster, 1, 1};
      if (cluster != 0) {
        EXPECT_OK(set_attribute(node, CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, value));
      }
      add_other(graph, node, other, more);
      return graph;
    };
    CUgraph const first = make(change.from, 100);
    CUgraph const second = make(change.to, 200);
    const CUgraphExec exec = instantiate(first);
    const int blocks = change.from == 0 ? 1 : static_cast<int>(change.from);
    EXPECT_EQ(100 + blocks, run(exec));
    CUgraphExecUpdateResultInfo info;
    EXPECT_OK(update(exec, second, &info));
    EXPECT_EQ(200 + blocks, run(exec));
    EXPECT_EQ(200, read_int(other));
    EXPECT_OK(cuda().cuGraphExecDestroy(exec));
    EXPECT_OK(cuda().cuGraphDestroy(first));
    EXPECT_OK(cuda().cuGraphDestroy(second));
  }
}

// Where both graphs list the same nodes and edges, the n-th node of the graph from which the exec was made is the n-th of the
// one that it took over, also where others would fit: then a node that is set afterwards is known.
TEST_F(GraphUpdates, PairNodesInTheirOrder) {
  using Edges = std::vector<std::pair<int, int>>;
  struct Shape {
    const char* name;
    int nodes;
    Edges edges;
  };
  const Shape shapes[] = {
      {"apart", 4, {}},
      {"chain", 4, {{0, 1}, {1, 2}, {2, 3}}},
      {"back", 4, {{3, 2}, {2, 1}, {1, 0}}},
      {"two_chains", 4, {{0, 2}, {1, 3}}},
      {"crossed", 4, {{1, 2}, {0, 3}}},
      {"fork", 5, {{0, 1}, {0, 2}, {0, 3}, {0, 4}}},
      {"join", 5, {{1, 4}, {0, 4}, {3, 4}, {2, 4}}},
      {"diamond", 4, {{0, 2}, {0, 1}, {2, 3}, {1, 3}}},
  };
  constexpr int kMostNodes = 5;
  CUdeviceptr places[kMostNodes];
  for (CUdeviceptr& place : places) place = make_int();
  const auto params_of = [&](void** pointers, const int* place, const int32_t* value) {
    pointers[0] = &places[*place];
    pointers[1] = const_cast<int32_t*>(value);
    CUDA_KERNEL_NODE_PARAMS_v2 params = store_node(pointers);
    params.func = store_;
    return params;
  };
  for (const Shape& shape : shapes) {
    const auto make = [&](std::vector<CUgraphNode>* nodes, int32_t value) {
      CUgraph const graph = make_graph();
      for (int i = 0; i < shape.nodes; ++i) {
        void* pointers[2];
        const CUDA_KERNEL_NODE_PARAMS_v2 params = params_of(pointers, &i, &value);
        CUgraphNode node = nullptr;
        EXPECT_OK(cuda().cuGraphAddKernelNode_v2(&node, graph, nullptr, 0, &params));
        nodes->push_back(node);
      }
      for (const auto& [from, to] : shape.edges) {
        EXPECT_OK(cuda().cuGraphAddDependencies(graph, &(*nodes)[from], &(*nodes)[to], 1));
      }
      return graph;
    };
    std::vector<CUgraphNode> firsts;
    std::vector<CUgraphNode> seconds;
    CUgraph const first = make(&firsts, 1);
    CUgraph const second = make(&seconds, 2);
    for (int set = 0; set < shape.nodes; ++set) {
      const CUgraphExec exec = instantiate(first);
      CUgraphExecUpdateResultInfo info;
      EXPECT_OK(update(exec, second, &info));
      const int32_t value = 3;
      void* pointers[2];
      const CUDA_KERNEL_NODE_PARAMS_v2 params = params_of(pointers, &set, &value);
      EXPECT_OK(cuda().cuGraphExecKernelNodeSetParams_v2(exec, firsts[set], &params));
      EXPECT_OK(cuda().cuGraphLaunch(exec, nullptr));
      // Had another node been set, its own place would keep 1.
      for (int i = 0; i < shape.nodes; ++i) {
        EXPECT_EQ(i == set ? 3 : 2, read_int(places[i])) << shape.name << ' ' << set << ' ' << i;
      }
      EXPECT_OK(cuda().cuGraphExecDestroy(exec));
      // All places hold 1 again.
      const CUgraphExec own = instantiate(first);
      EXPECT_OK(cuda().cuGraphLaunch(own, nullptr));
      EXPECT_OK(cuda().cuCtxSynchronize());
      EXPECT_OK(cuda().cuGraphExecDestroy(own));
    }
    EXPECT_OK(cuda().cuGraphDestroy(first));
    EXPECT_OK(cuda().cuGraphDestroy(second));
  }
}

// So the shim need not compare the cooperative attribute before an update.
TEST_F(GraphUpdates, RefuseAnotherCooperation) {
  for (const bool is_first : {true, false}) {
    CUgraph const plain = make_graph();
    CUgraph const cooperative = make_graph();
    add_cluster(plain, 100);
    CUlaunchAttributeValue value{};
    value.cooperative = 1;
    ASSERT_OK(set_attribute(add_cluster(cooperative, 200), CU_LAUNCH_ATTRIBUTE_COOPERATIVE, value));
    const CUgraphExec exec = instantiate(is_first ? cooperative : plain);
    CUgraphExecUpdateResultInfo info;
    EXPECT_CUDA(CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE,
                update(exec, is_first ? plain : cooperative, &info));
    record(is_first ? "to_none" : "to_cooperative", "result_" + std::to_string(info.result));
    EXPECT_EQ(is_first ? 201 : 101, run(exec));
    EXPECT_OK(cuda().cuGraphExecDestroy(exec));
    EXPECT_OK(cuda().cuGraphDestroy(plain));
    EXPECT_OK(cuda().cuGraphDestroy(cooperative));
  }
}

TEST_F(GraphUpdates, RefuseNodesThatTheDeviceUpdates) {
  add_cluster(graph_, 100);
  CUgraph const updatable = make_graph();
  CUlaunchAttributeValue value{};
  value.deviceUpdatableKernelNode.deviceUpdatable = 1;
  ASSERT_OK(set_attribute(add_cluster(updatable, 200),
                          CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE, value));
  const CUgraphExec exec = instantiate(graph_);
  CUgraphExecUpdateResultInfo info;
  EXPECT_CUDA(CUDA_ERROR_NOT_SUPPORTED, update(exec, updatable, &info));
  EXPECT_EQ(101, run(exec));
  EXPECT_OK(cuda().cuGraphExecDestroy(exec));
  EXPECT_OK(cuda().cuGraphDestroy(updatable));
}

// Other attributes do not change the result of an update.
TEST_F(GraphUpdates, WithOtherAttributes) {
  struct Attribute {
    const char* name;
    CUlaunchAttributeID id;
    CUlaunchAttributeValue value;
  };
  std::vector<Attribute> attributes(6, Attribute{});
  attributes[0] = {"priority", CU_LAUNCH_ATTRIBUTE_PRIORITY, {}};
  attributes[0].value.priority = -1;
  attributes[1] = {"domain", CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN, {}};
  attributes[1].value.memSyncDomain = CU_LAUNCH_MEM_SYNC_DOMAIN_REMOTE;
  attributes[2] = {"window", CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW, {}};
  attributes[2].value.accessPolicyWindow.base_ptr = reinterpret_cast<void*>(to_);
  attributes[2].value.accessPolicyWindow.num_bytes = 4;
  attributes[2].value.accessPolicyWindow.hitRatio = 1;
  attributes[2].value.accessPolicyWindow.hitProp = CU_ACCESS_PROPERTY_PERSISTING;
  attributes[2].value.accessPolicyWindow.missProp = CU_ACCESS_PROPERTY_STREAMING;
  attributes[3] = {"scheduling", CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE, {}};
  attributes[3].value.clusterSchedulingPolicyPreference = CU_CLUSTER_SCHEDULING_POLICY_SPREAD;
  attributes[4] = {"carveout", CU_LAUNCH_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, {}};
  attributes[4].value.sharedMemCarveout = 50;
  attributes[5] = {"preferred_cluster", CU_LAUNCH_ATTRIBUTE_PREFERRED_CLUSTER_DIMENSION, {}};
  attributes[5].value.preferredClusterDim = {4, 1, 1};
  for (const Attribute& attribute : attributes) {
    CUgraph const plain = make_graph();
    CUgraph const other = make_graph();
    (void)add_cluster(plain, 100);
    const CUresult set = set_attribute(add_cluster(other, 200), attribute.id, attribute.value);
    const CUgraphExec exec = instantiate(plain);
    CUgraphExecUpdateResultInfo info;
    const CUresult updated = update(exec, other, &info);
    record(attribute.name, "set_" + error_name(set) + "_update_" + error_name(updated) +
                               "_result_" + std::to_string(info.result) + "_runs_" +
                               std::to_string(run(exec)));
    EXPECT_OK(cuda().cuGraphExecDestroy(exec));
    EXPECT_OK(cuda().cuGraphDestroy(plain));
    EXPECT_OK(cuda().cuGraphDestroy(other));
  }
}

// This tells whether a node is a kernel.
TEST_F(GraphUpdates, OtherNodesHaveNoKernelParameters) {
  CUDA_MEMSET_NODE_PARAMS fill{};
  fill.dst = to_;
  fill.elementSize = 4;
  fill.width = fill.height = 1;
  CUgraphNode nodes[2] = {};
  ASSERT_OK(cuda().cuGraphAddMemsetNode(&nodes[0], graph_, nullptr, 0, &fill, context_));
  ASSERT_OK(cuda().cuGraphAddEmptyNode(&nodes[1], graph_, nullptr, 0));
  for (const CUgraphNode node : nodes) {
    CUDA_KERNEL_NODE_PARAMS_v2 params{};
    EXPECT_NE(CUDA_SUCCESS, cuda().cuGraphKernelNodeGetParams_v2(node, &params));
  }
}

TEST_F(GraphUpdates, ListsAreReadByOneCallWithMoreRoomThanTheyNeed) {
  const CUgraphNode first = add_store(graph_, 1);
  const CUgraphNode second = add_store_after(graph_, first, 2);
  CUgraphNode from[3] = {}, to[3] = {}, nodes[3] = {};
  CUgraphEdgeData data[3] = {};
  size_t count = 3;
  ASSERT_OK(cuda().cuGraphGetNodes(graph_, nodes, &count));
  EXPECT_EQ(2u, count);
  EXPECT_EQ(first, nodes[0]);
  EXPECT_EQ(second, nodes[1]);
  count = 3;
  ASSERT_OK(cuda().cuGraphGetEdges_v2(graph_, from, to, data, &count));
  EXPECT_EQ(1u, count);
  EXPECT_EQ(first, from[0]);
  EXPECT_EQ(second, to[0]);
}

}  // namespace
}  // namespace fibshim::contract
