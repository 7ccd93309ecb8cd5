#include "tests/conformance/hosts/graph_steps.h"

namespace conform {

CUgraphNode StepMaker::add(CUgraph graph, const Step& step,
                           const std::vector<CUgraphNode>& after) const {
  CUgraphNode node = nullptr;
  const CUgraphNode* const before = step.begins_early ? nullptr : after.data();
  const size_t count = step.begins_early ? 0 : after.size();
  switch (step.kind) {
    case StepKind::kernel: {
      StepArguments arguments(base_, step);
      const NodeParams2 params = kernel_params(step, &arguments);
      OK(cuda().cuGraphAddKernelNode_v2(&node, graph, before, count, &params));
      set_attributes(node, step);
      break;
    }
    case StepKind::fill: {
      const CUDA_MEMSET_NODE_PARAMS params = fill_params(step);
      OK(cuda().cuGraphAddMemsetNode(&node, graph, before, count, &params, gpu_.context()));
      break;
    }
    case StepKind::copy: {
      const CUDA_MEMCPY3D params = copy_params(step);
      OK(cuda().cuGraphAddMemcpyNode(&node, graph, before, count, &params, gpu_.context()));
      break;
    }
    case StepKind::child: {
      CUgraph const child = make_child(step);
      OK(cuda().cuGraphAddChildGraphNode(&node, graph, before, count, child));
      OK(cuda().cuGraphDestroy(child));
      break;
    }
    case StepKind::empty: OK(cuda().cuGraphAddEmptyNode(&node, graph, before, count)); break;
    case StepKind::host: {
      const CUDA_HOST_NODE_PARAMS params = {do_nothing, nullptr};
      OK(cuda().cuGraphAddHostNode(&node, graph, before, count, &params));
      break;
    }
  }
  if (step.begins_early) {
    auto data = zeroed<CUgraphEdgeData>();
    data.from_port = CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC;
    data.type = CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC;
    OK(cuda().cuGraphAddDependencies_v2(graph, after.data(), &node, &data, 1));
  }
  return node;
}

CUgraph StepMaker::make_child(const Step& step) const {
  CUgraph child = nullptr;
  OK(cuda().cuGraphCreate(&child, 0));
  std::vector<CUgraphNode> last;
  for (const Step& one : step.body) last = {add(child, one, last)};
  return child;
}

void StepMaker::set_attributes(CUgraphNode node, const Step& step) {
  auto value = zeroed<CUlaunchAttributeValue>();
  if (step.priority != 0) {
    value.priority = step.priority;
    OK(cuda().cuGraphKernelNodeSetAttribute(node, CU_LAUNCH_ATTRIBUTE_PRIORITY, &value));
  }
  if (step.has_cluster) {
    value.clusterDim = {1, 1, 1};
    OK(cuda().cuGraphKernelNodeSetAttribute(node, CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, &value));
  }
}

}  // namespace conform
