// Graphs of one kernel node or a few, for the cases.
#pragma once

#include "tests/conformance/hosts/host.h"

namespace conform {

using NodeParams1 = CUDA_KERNEL_NODE_PARAMS_v1;
using NodeParams2 = CUDA_KERNEL_NODE_PARAMS_v2;

// Zeros, except for one block of 32 threads.
template <class Params>
Params one_block() {
  auto params = zeroed<Params>();
  params.gridDimX = params.gridDimY = params.gridDimZ = 1;
  params.blockDimX = 32;
  params.blockDimY = params.blockDimZ = 1;
  return params;
}

inline CUlaunchConfig launch_config(CUstream stream) {
  auto config = one_block<CUlaunchConfig>();
  config.hStream = stream;
  return config;
}

// An attribute with only its id set, and one that lets the launch begin before the launch before it
// ends.
CUlaunchAttribute attribute_of(CUlaunchAttributeID id);
CUlaunchAttribute programmatic();

// Fills one word.
CUDA_MEMSET_NODE_PARAMS fill_of(CUdeviceptr to, unsigned value);
CUDA_MEMCPY3D copy_of(CUdeviceptr to, CUdeviceptr from, size_t bytes);

// Returns a node's parameters, as the node itself returns them.
NodeParams2 params_of(CUgraphNode node);

// A launch of one block of 32 threads, in each struct that graph calls accept.
NodeParams1 node_params1(CUfunction function, Arguments* arguments);
NodeParams2 node_params2(CUfunction function, Arguments* arguments);
NodeParams2 node_params2(CUkernel kernel, Arguments* arguments);
CUgraphNodeParams node_params(CUfunction function, Arguments* arguments);
// The name of the kernel in such params.
std::string kernel_name(const NodeParams2& params);
// The third and the second argument of conform_step, in params read from a node.
int value_of(const NodeParams2& params);
int shape_of(const NodeParams2& params);

CUgraphNode add_kernel(CUgraph graph, const NodeParams2& params,
                       const std::vector<CUgraphNode>& after = {});

class Graph {
 public:
  Graph() { OK(cuda().cuGraphCreate(&graph_, 0)); }
  explicit Graph(CUgraph graph) : graph_(graph) {}
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  ~Graph() {
    if (graph_ != nullptr) OK(cuda().cuGraphDestroy(graph_));
  }

  CUgraph get() const { return graph_; }
  CUgraph release();
  CUgraphNode add(CUfunction function, Arguments* arguments, CUgraphNode after = nullptr) const;
  CUgraphNode add(CUfunction function, Arguments&& arguments, CUgraphNode after = nullptr) const {
    return add(function, &arguments, after);
  }
  std::vector<CUgraphNode> nodes() const;
  // The kernel's name, as the host reads it from the first node.
  std::string first_kernel() const;
  // Instantiates the graph, launches it `times` times, waits, and destroys the executable graph.
  void run(const Gpu& gpu, int times = 1) const;
  // Runs it once, and expects that its last kernel stores this value.
  void run_for(const Gpu& gpu, int value) const {
    run(gpu);
    gpu.expect_last_value(value);
  }

 private:
  CUgraph graph_ = nullptr;
};

// An IF node, and its body.
struct Conditional {
  CUgraphNode node;
  CUgraph body;
};
// `add`: calls cuGraphAddNode with a CUgraphNode*, dependencies, their number, and parameters.
template <class Add>
Conditional add_conditional(const Gpu& gpu, CUgraph graph, bool condition,
                            const std::vector<CUgraphNode>& after, const Add& add) {
  CUgraphConditionalHandle handle = 0;
  OK(cuda().cuGraphConditionalHandleCreate(&handle, graph, gpu.context(), condition ? 1 : 0,
                                           CU_GRAPH_COND_ASSIGN_DEFAULT));
  auto params = zeroed<CUgraphNodeParams>();
  params.type = CU_GRAPH_NODE_TYPE_CONDITIONAL;
  params.conditional.handle = handle;
  params.conditional.type = CU_GRAPH_COND_TYPE_IF;
  params.conditional.size = 1;
  params.conditional.ctx = gpu.context();
  CUgraphNode node = nullptr;
  OK(add(&node, after.data(), after.size(), &params));
  return {node, params.conditional.phGraph_out[0]};
}
inline Conditional add_conditional(const Gpu& gpu, CUgraph graph, bool condition = true,
                                   const std::vector<CUgraphNode>& after = {}) {
  return add_conditional(gpu, graph, condition, after,
                         [graph](CUgraphNode* node, const CUgraphNode* before, size_t count,
                                 CUgraphNodeParams* params) {
                           return cuda().cuGraphAddNode(node, graph, before, count, params);
                         });
}

// Adds a node of 256 bytes and, behind it, one that frees them. Returns the first.
CUgraphNode add_memory_nodes(const Gpu& gpu, CUgraph graph);
CUgraphNode add_child(CUgraph graph, CUgraph child);
CUgraph clone_of(CUgraph graph);
// Requires that the graph has one node.
CUgraphNode only_node(CUgraph graph);

class Executable {
 public:
  explicit Executable(CUgraph graph) {
    OK(cuda().cuGraphInstantiateWithFlags(&executable_, graph, 0));
  }
  Executable(const Executable&) = delete;
  Executable& operator=(const Executable&) = delete;
  ~Executable() { OK(cuda().cuGraphExecDestroy(executable_)); }
  CUgraphExec get() const { return executable_; }
  void set(CUgraphNode node, const NodeParams2& params) const {
    OK(cuda().cuGraphExecKernelNodeSetParams_v2(executable_, node, &params));
  }
  void set(CUgraphNode node, CUfunction function, Arguments&& arguments) const {
    set(node, node_params2(function, &arguments));
  }
  void enable(CUgraphNode node, bool is_enabled) const {
    OK(cuda().cuGraphNodeSetEnabled(executable_, node, is_enabled ? 1 : 0));
  }
  bool is_enabled(CUgraphNode node) const;
  void update(const Graph& graph) const;
  void run(const Gpu& gpu, int times = 1) const;
  void run_for(const Gpu& gpu, int value) const {
    run(gpu);
    gpu.expect_last_value(value);
  }

 private:
  CUgraphExec executable_ = nullptr;
};

// Captures what `record` launches on the host's stream, and runs it once.
template <class Function>
void run_captured(const Gpu& gpu, Function record) {
  Graph(gpu.capture(record)).run(gpu);
}

// Returns a value from the parameters of a launch that the simulated driver recorded.
template <class T>
T param_at(const SimcudaLaunch& launch, size_t offset) {
  T value;
  memcpy(&value, launch.params + offset, sizeof value);
  return value;
}

}  // namespace conform
