// A graph of nodes that store an int, for the tests of graphs.
#pragma once

#include <string.h>

#include "tests/driver/contract/driver_under_test.h"

namespace fibshim::contract {

class Graphs : public ContractTest {
 protected:
  void SetUp() override {
    ContractTest::SetUp();
    module_ = load_module();
    library_ = load_library();
    store_ = function(module_, "sim_store");
    to_ = make_int();
    ASSERT_OK(cuda().cuGraphCreate(&graph_, 0));
  }
  void TearDown() override {
    EXPECT_OK(cuda().cuGraphDestroy(graph_));
    ContractTest::TearDown();
  }

  // Adds sim_store(to_, value), by its function or with a CUkernel and no function. The arguments'
  // memory is gone when this returns.
  CUgraphNode add(CUgraph graph, int32_t value, CUfunction func, CUkernel kern) {
    void* params[] = {&to_, &value};
    CUDA_KERNEL_NODE_PARAMS_v2 node = store_node(params);
    node.func = func;
    node.kern = kern;
    CUgraphNode added = nullptr;
    EXPECT_OK(cuda().cuGraphAddKernelNode_v2(&added, graph, nullptr, 0, &node));
    return added;
  }
  // The same after another node.
  CUgraphNode add_store_after(CUgraph graph, CUgraphNode before, int32_t value) {
    const CUgraphNode node = add_store(graph, value);
    EXPECT_OK(cuda().cuGraphAddDependencies(graph, &before, &node, 1));
    return node;
  }
  CUgraphNode add_store(CUgraph graph, int32_t value) { return add(graph, value, store_, nullptr); }
  CUgraphNode add_store_kernel(CUgraph graph, int32_t value) {
    return add(graph, value, nullptr, kernel(library_, "sim_store"));
  }

  static CUgraphNodeParams any_node(void** params) {
    CUgraphNodeParams node{};
    node.type = CU_GRAPH_NODE_TYPE_KERNEL;
    node.kernel.gridDimX = node.kernel.gridDimY = node.kernel.gridDimZ = 1;
    node.kernel.blockDimX = node.kernel.blockDimY = node.kernel.blockDimZ = 1;
    node.kernel.kernelParams = params;
    return node;
  }

  // Parameters of a node for sim_store(to_, value), by its function. `params` has room for two.
  CUDA_KERNEL_NODE_PARAMS_v2 store_params(void** params, const int32_t* value) {
    params[0] = &to_;
    params[1] = const_cast<int32_t*>(value);
    CUDA_KERNEL_NODE_PARAMS_v2 out = store_node(params);
    out.func = store_;
    return out;
  }

  // Sets a node of a graph to store another value, or to another kernel: sim_increment(to_).
  CUresult set(CUgraphNode node, int32_t value) {
    void* pointers[2];
    const CUDA_KERNEL_NODE_PARAMS_v2 params = store_params(pointers, &value);
    return cuda().cuGraphKernelNodeSetParams_v2(node, &params);
  }
  CUresult set_increment(CUgraphNode node) {
    void* pointers[] = {&to_};
    const CUDA_KERNEL_NODE_PARAMS_v2 params = increment_params(pointers);
    return cuda().cuGraphKernelNodeSetParams_v2(node, &params);
  }
  CUDA_KERNEL_NODE_PARAMS_v2 increment_params(void** params) {
    CUDA_KERNEL_NODE_PARAMS_v2 out = store_node(params);
    out.kern = kernel(library_, "sim_increment");
    return out;
  }

  // Adds an IF that is true; returns its body. `root`: the graph that is instantiated.
  CUgraph add_body(CUgraph root, CUgraph graph) {
    CUgraphConditionalHandle handle = 0;
    EXPECT_OK(cuda().cuGraphConditionalHandleCreate(&handle, root, context_, 1,
                                                    CU_GRAPH_COND_ASSIGN_DEFAULT));
    CUgraphNodeParams params{};
    params.type = CU_GRAPH_NODE_TYPE_CONDITIONAL;
    params.conditional.handle = handle;
    params.conditional.type = CU_GRAPH_COND_TYPE_IF;
    params.conditional.size = 1;
    params.conditional.ctx = context_;
    CUgraphNode node = nullptr;
    EXPECT_OK(cuda().cuGraphAddNode_v2(&node, graph, nullptr, nullptr, 0, &params));
    return params.conditional.phGraph_out[0];
  }

  CUgraph clone(CUgraph graph) {
    CUgraph out = nullptr;
    EXPECT_OK(cuda().cuGraphClone(&out, graph));
    return out;
  }
  static CUgraphNode find_in(CUgraph clone, CUgraphNode original) {
    CUgraphNode out = nullptr;
    EXPECT_OK(cuda().cuGraphNodeFindInClone(&out, original, clone));
    return out;
  }

  CUgraphExec instantiate(CUgraph graph) {
    CUgraphExec exec = nullptr;
    EXPECT_OK(cuda().cuGraphInstantiateWithFlags(&exec, graph, 0));
    return exec;
  }

  int32_t run(CUgraphExec exec) {
    EXPECT_OK(cuda().cuGraphLaunch(exec, nullptr));
    return read_int(to_);
  }

  int32_t run_once(CUgraph graph) {
    const CUgraphExec exec = instantiate(graph);
    const int32_t value = run(exec);
    EXPECT_OK(cuda().cuGraphExecDestroy(exec));
    return value;
  }

  CUmodule module_ = nullptr;
  CUlibrary library_ = nullptr;
  CUfunction store_ = nullptr;
  CUdeviceptr to_ = 0;
  CUgraph graph_ = nullptr;
};

}  // namespace fibshim::contract
