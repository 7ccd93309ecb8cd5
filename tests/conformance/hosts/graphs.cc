// See graphs.h.
#include "tests/conformance/hosts/graphs.h"

namespace conform {
namespace {

template <class Params>
Params one_block_of(Arguments* arguments) {
  auto params = one_block<Params>();
  params.kernelParams = arguments->params();
  return params;
}

}  // namespace

CUlaunchAttribute attribute_of(CUlaunchAttributeID id) {
  auto attribute = zeroed<CUlaunchAttribute>();
  attribute.id = id;
  return attribute;
}

CUlaunchAttribute programmatic() {
  CUlaunchAttribute attribute = attribute_of(CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION);
  attribute.value.programmaticStreamSerializationAllowed = 1;
  return attribute;
}

CUDA_MEMSET_NODE_PARAMS fill_of(CUdeviceptr to, unsigned value) {
  auto fill = zeroed<CUDA_MEMSET_NODE_PARAMS>();
  fill.dst = to;
  fill.value = value;
  fill.elementSize = 4;
  fill.width = fill.height = 1;
  return fill;
}

CUDA_MEMCPY3D copy_of(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
  auto copy = zeroed<CUDA_MEMCPY3D>();
  copy.srcMemoryType = copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.srcDevice = from;
  copy.dstDevice = to;
  copy.WidthInBytes = bytes;
  copy.Height = copy.Depth = 1;
  return copy;
}

CUgraphNode add_memory_nodes(const Gpu& gpu, CUgraph graph) {
  auto params = zeroed<CUDA_MEM_ALLOC_NODE_PARAMS>();
  params.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  params.poolProps.location = {CU_MEM_LOCATION_TYPE_DEVICE, gpu.device()};
  params.bytesize = 256;
  CUgraphNode made = nullptr;
  CUgraphNode freed = nullptr;
  OK(cuda().cuGraphAddMemAllocNode(&made, graph, nullptr, 0, &params));
  OK(cuda().cuGraphAddMemFreeNode(&freed, graph, &made, 1, params.dptr));
  return made;
}

CUgraphNode add_child(CUgraph graph, CUgraph child) {
  CUgraphNode node = nullptr;
  OK(cuda().cuGraphAddChildGraphNode(&node, graph, nullptr, 0, child));
  return node;
}

CUgraph clone_of(CUgraph graph) {
  CUgraph clone = nullptr;
  OK(cuda().cuGraphClone(&clone, graph));
  return clone;
}

CUgraphNode only_node(CUgraph graph) {
  CUgraphNode node = nullptr;
  size_t count = 1;
  OK(cuda().cuGraphGetNodes(graph, &node, &count));
  return node;
}

NodeParams2 params_of(CUgraphNode node) {
  auto params = zeroed<NodeParams2>();
  OK(cuda().cuGraphKernelNodeGetParams_v2(node, &params));
  return params;
}

NodeParams1 node_params1(CUfunction function, Arguments* arguments) {
  auto params = one_block_of<NodeParams1>(arguments);
  params.func = function;
  return params;
}

NodeParams2 node_params2(CUfunction function, Arguments* arguments) {
  auto params = one_block_of<NodeParams2>(arguments);
  params.func = function;
  return params;
}

NodeParams2 node_params2(CUkernel kernel, Arguments* arguments) {
  auto params = one_block_of<NodeParams2>(arguments);
  params.kern = kernel;
  return params;
}

CUgraphNodeParams node_params(CUfunction function, Arguments* arguments) {
  auto params = zeroed<CUgraphNodeParams>();
  params.type = CU_GRAPH_NODE_TYPE_KERNEL;
  params.kernel = one_block_of<CUDA_KERNEL_NODE_PARAMS_v3>(arguments);
  params.kernel.func = function;
  return params;
}

std::string kernel_name(const NodeParams2& params) {
  const char* name = nullptr;
  if (params.func != nullptr) {
    OK(cuda().cuFuncGetName(&name, params.func));
  } else {
    OK(cuda().cuKernelGetName(&name, params.kern));
  }
  return name;
}

namespace {

// A real driver returns arguments in the form in which a captured launch passed them.
int argument_of(const NodeParams2& params, int index, size_t offset) {
  if (params.kernelParams != nullptr) return *static_cast<const int*>(params.kernelParams[index]);
  CHECK(params.extra != nullptr);
  for (void** at = params.extra; *at != CU_LAUNCH_PARAM_END; at += 2) {
    if (at[0] != CU_LAUNCH_PARAM_BUFFER_POINTER) continue;
    int value = 0;
    memcpy(&value, static_cast<const char*>(at[1]) + offset, sizeof value);
    return value;
  }
  fail(__FILE__, __LINE__, "a node's extra has no buffer");
}

}  // namespace

int value_of(const NodeParams2& params) { return argument_of(params, 2, 12); }
int shape_of(const NodeParams2& params) { return argument_of(params, 1, 8); }

CUgraph Graph::release() {
  const CUgraph graph = graph_;
  graph_ = nullptr;
  return graph;
}

CUgraphNode Graph::add(CUfunction function, Arguments* arguments, CUgraphNode after) const {
  const NodeParams2 params = node_params2(function, arguments);
  return after == nullptr ? add_kernel(graph_, params) : add_kernel(graph_, params, {after});
}

std::vector<CUgraphNode> Graph::nodes() const {
  size_t count = 0;
  OK(cuda().cuGraphGetNodes(graph_, nullptr, &count));
  std::vector<CUgraphNode> nodes(count);
  if (count > 0) OK(cuda().cuGraphGetNodes(graph_, nodes.data(), &count));
  return nodes;
}

CUgraphNode add_kernel(CUgraph graph, const NodeParams2& params,
                       const std::vector<CUgraphNode>& after) {
  CUgraphNode node = nullptr;
  OK(cuda().cuGraphAddKernelNode_v2(&node, graph, after.data(), after.size(), &params));
  return node;
}

std::string Graph::first_kernel() const { return kernel_name(params_of(nodes().at(0))); }

void Graph::run(const Gpu& gpu, int times) const { Executable(graph_).run(gpu, times); }

bool Executable::is_enabled(CUgraphNode node) const {
  unsigned out = 2;
  OK(cuda().cuGraphNodeGetEnabled(executable_, node, &out));
  return out != 0;
}

void Executable::update(const Graph& graph) const {
  auto info = zeroed<CUgraphExecUpdateResultInfo>();
  OK(cuda().cuGraphExecUpdate_v2(executable_, graph.get(), &info));
}

void Executable::run(const Gpu& gpu, int times) const {
  for (int i = 0; i < times; ++i) OK(cuda().cuGraphLaunch(executable_, gpu.stream()));
  OK(cuda().cuStreamSynchronize(gpu.stream()));
}

}  // namespace conform
