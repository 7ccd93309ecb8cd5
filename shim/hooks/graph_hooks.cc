// Hooks for graphs: kernel nodes are redirected like launches; see graphs.h.
//
// The driver takes a node's parameters in two layouts (CUDA_KERNEL_NODE_PARAMS version 1, and
// version 2 with a CUkernel), plain or inside a CUgraphNodeParams. All hooks widen them to
// version 2.
#include "shim/hooks/hooks.h"

#include <string.h>

#include "shim/base/read_section.h"
#include "shim/counters/counters.h"
#include "shim/driver/driver.h"
#include "shim/graphs/captures.h"
#include "shim/graphs/graphs.h"
#include "shim/hooks/call_real.h"
#include "shim/launch/eager_plan.h"
#include "shim/launch/launch.h"
#include "shim/launch/node_plan.h"
#include "shim/launch/recording.h"

namespace fibshim {
namespace {

NodeParams widen(const CUDA_KERNEL_NODE_PARAMS_v1& params) {
  NodeParams wide;
  memset(&wide, 0, sizeof wide);
  memcpy(&wide, &params, sizeof params);  // version 2 begins with version 1
  return wide;
}
NodeParams widen(const NodeParams& params) { return params; }
NodeParams widen(const CUgraphNodeParams& params) {
  NodeParams wide;
  static_assert(sizeof wide == sizeof params.kernel);
  memcpy(&wide, &params.kernel, sizeof wide);
  return wide;
}

// Writes `wide` into the host's layout. False: that layout cannot express it.
bool narrow(const NodeParams& wide, CUDA_KERNEL_NODE_PARAMS_v1* out) {
  memcpy(out, &wide, sizeof *out);
  if (out->func != nullptr) return true;
  // Version 1 knows no CUkernel: its function in the current context.
  const auto get_function = FIBSHIM_REAL(cuKernelGetFunction);
  return get_function != nullptr && get_function(&out->func, wide.kern) == CUDA_SUCCESS;
}
bool narrow(const NodeParams& wide, NodeParams* out) {
  *out = wide;
  return true;
}
bool narrow(const NodeParams& wide, CUgraphNodeParams* out) {
  memcpy(&out->kernel, &wide, sizeof wide);
  return true;
}

bool is_kernel(const CUDA_KERNEL_NODE_PARAMS_v1*) { return true; }
bool is_kernel(const NodeParams*) { return true; }
bool is_kernel(const CUgraphNodeParams* params) {
  return params->type == CU_GRAPH_NODE_TYPE_KERNEL;
}

// The graph that such parameters put into a node, or null.
template <class Params>
CUgraph child_in(const Params*) {
  return nullptr;
}
CUgraph child_in(const CUgraphNodeParams* params) {
  return params != nullptr && params->type == CU_GRAPH_NODE_TYPE_GRAPH ? params->graph.graph
                                                                       : nullptr;
}
CUgraph child_in(CUgraphNodeParams* params) {
  return child_in(const_cast<const CUgraphNodeParams*>(params));
}

CUresult set_cluster(CUgraphNode node, const uint32_t* cluster) {
  CUkernelNodeAttrValue value;
  memset(&value, 0, sizeof value);
  value.clusterDim.x = cluster[0];
  value.clusterDim.y = cluster[1];
  value.clusterDim.z = cluster[2];
  return call_real(real::cuGraphKernelNodeSetAttribute, node, CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION,
                   &value);
}

// Gives a redirected node the replacement's cluster, which parameters do not carry.
CUresult set_planned_cluster(CUgraphNode node, const LaunchPlan& plan) {
  return has_cluster(plan) ? set_cluster(node, plan.geometry + kClusterX) : CUDA_SUCCESS;
}

enum class NodeUse { add, set, set_executable };

// Makes or sets a node. `apply` calls the driver with the parameters it is given; `node` is where
// the node's handle is once that has succeeded.
template <class Params, class Apply>
CUresult make_node(NodeUse use, Params* params, const CUgraphNode* node, const Apply& apply) {
  if (params == nullptr || !is_kernel(params) || !resolve_driver()) {
    const CUresult result = apply(params);
    const CUgraph child = child_in(params);
    if (result == CUDA_SUCCESS && use != NodeUse::set_executable && node != nullptr &&
        child != nullptr) {
      remember_child_copy(child, *node);
    }
    return result;
  }
  const NodeParams original = widen(*params);
  const ReadSection section;
  NodePlan plan;
  const LaunchAction action = plan_node(original, &plan);
  if (action == LaunchAction::fail) return plan.launch.decision->error;
  SavedNode* saved = action == LaunchAction::redirect ? save_original(original, &plan) : nullptr;
  std::remove_const_t<Params> replaced = *params;
  const bool is_redirected =
      saved != nullptr && narrow(plan.params, &replaced) &&
      // An executable node keeps the attributes that it was instantiated with.
      !(use == NodeUse::set_executable && has_cluster(plan.launch));
  // The cluster of the replacement that is in the node leaves with it.
  uint32_t cluster_before[3];
  uint32_t replaced_cluster[3];
  const bool had_cluster =
      use == NodeUse::set && find_replaced_cluster(*node, cluster_before, replaced_cluster);
  if (had_cluster) (void)set_cluster(*node, cluster_before);
  if (!is_redirected) {
    release_saved(saved);
    if (action == LaunchAction::redirect) refuse_redirect(&plan.launch);
    const CUresult result = apply(params);
    if (use == NodeUse::add && result == CUDA_SUCCESS) record_node(original, plan.launch);
    if (use == NodeUse::set && result == CUDA_SUCCESS) forget_node(*node);
    if (had_cluster && result != CUDA_SUCCESS) (void)set_cluster(*node, replaced_cluster);
    return result;
  }
  const Decision& decision = *plan.launch.decision;
  count(decision.counter);
  CUresult result = apply(&replaced);
  const bool was_applied = result == CUDA_SUCCESS;
  if (was_applied && use != NodeUse::set_executable && node != nullptr) {
    result = set_planned_cluster(*node, plan.launch);
    if (result == CUDA_SUCCESS) remember_node(*node, saved);
  }
  if (use == NodeUse::add && result == CUDA_SUCCESS) record_node(original, plan.launch);
  if (result == CUDA_SUCCESS) {
    if (use == NodeUse::set_executable || node == nullptr) release_saved(saved);
    return result;
  }
  const bool runs_original =
      end_failed_launch(decision.counter, result, decision.on_error == OnError::fallback);
  // The call fails, or goes on with the original. No node may be left with half a replacement, and
  // what the host gave may have lain in the node.
  if (use == NodeUse::add && was_applied && node != nullptr) {
    (void)call_real(real::cuGraphDestroyNode, *node);
  }
  CUresult original_result = result;
  if (runs_original || (use == NodeUse::set && was_applied)) {
    std::remove_const_t<Params> kept = *params;
    original_result =
        narrow(saved_params(*saved), &kept) ? apply(&kept) : CUDA_ERROR_INVALID_HANDLE;
  }
  release_saved(saved);
  if (use == NodeUse::set && original_result == CUDA_SUCCESS) {
    forget_node(*node);
  } else if (had_cluster) {
    (void)set_cluster(*node, replaced_cluster);
  }
  return runs_original ? original_result : result;
}

template <class Params>
CUresult give_original(CUresult result, CUgraphNode node, Params* params) {
  NodeParams original;
  if (result == CUDA_SUCCESS && params != nullptr &&
      find_original_params(node, widen(*params), &original)) {
    // As the driver reads such a node: a kernel comes with its function, both with the context.
    const auto get_function = FIBSHIM_REAL(cuKernelGetFunction);
    if (original.func == nullptr && get_function != nullptr) {
      (void)get_function(&original.func, original.kern);
    }
    original.ctx = widen(*params).ctx;
    Params narrowed = *params;
    if (narrow(original, &narrowed)) *params = narrowed;
  }
  return result;
}

CUresult begin_capture(CUresult result, CUstream stream, bool is_per_thread_stream) {
  if (result == CUDA_SUCCESS) record_capture(stream, is_per_thread_stream);
  return result;
}

// A capture that was invalidated or not joined ends with an error, but it ends.
CUresult end_capture(CUresult result, CUstream stream, bool is_per_thread_stream) {
  if (result == CUDA_SUCCESS || result == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED ||
      result == CUDA_ERROR_STREAM_CAPTURE_UNJOINED) {
    end_capture_of_stream(stream, is_per_thread_stream);
  }
  return result;
}

}  // namespace
}  // namespace fibshim

using namespace fibshim;  // NOLINT(google-build-using-namespace): this file is all hooks

// --- make and set nodes ---

CUresult hook_cuGraphAddKernelNode(CUgraphNode* node, CUgraph graph,
                                   const CUgraphNode* dependencies, size_t count,
                                   const CUDA_KERNEL_NODE_PARAMS_v1* params) {
  return make_node(NodeUse::add, params, node, [&](const CUDA_KERNEL_NODE_PARAMS_v1* given) {
    return call_real(real::cuGraphAddKernelNode, node, graph, dependencies, count, given);
  });
}

CUresult hook_cuGraphAddKernelNode_v2(CUgraphNode* node, CUgraph graph,
                                      const CUgraphNode* dependencies, size_t count,
                                      const NodeParams* params) {
  return make_node(NodeUse::add, params, node, [&](const NodeParams* given) {
    return call_real(real::cuGraphAddKernelNode_v2, node, graph, dependencies, count, given);
  });
}

CUresult hook_cuGraphAddNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies,
                             size_t count, CUgraphNodeParams* params) {
  return make_node(NodeUse::add, params, node, [&](CUgraphNodeParams* given) {
    return call_real(real::cuGraphAddNode, node, graph, dependencies, count, given);
  });
}

CUresult hook_cuGraphAddNode_v2(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies,
                                const CUgraphEdgeData* edges, size_t count,
                                CUgraphNodeParams* params) {
  return make_node(NodeUse::add, params, node, [&](CUgraphNodeParams* given) {
    return call_real(real::cuGraphAddNode_v2, node, graph, dependencies, edges, count, given);
  });
}

CUresult hook_cuGraphKernelNodeSetParams(CUgraphNode node,
                                         const CUDA_KERNEL_NODE_PARAMS_v1* params) {
  return make_node(NodeUse::set, params, &node, [&](const CUDA_KERNEL_NODE_PARAMS_v1* given) {
    return call_real(real::cuGraphKernelNodeSetParams, node, given);
  });
}

CUresult hook_cuGraphKernelNodeSetParams_v2(CUgraphNode node, const NodeParams* params) {
  return make_node(NodeUse::set, params, &node, [&](const NodeParams* given) {
    return call_real(real::cuGraphKernelNodeSetParams_v2, node, given);
  });
}

CUresult hook_cuGraphNodeSetParams(CUgraphNode node, CUgraphNodeParams* params) {
  return make_node(NodeUse::set, params, &node, [&](CUgraphNodeParams* given) {
    return call_real(real::cuGraphNodeSetParams, node, given);
  });
}

CUresult hook_cuGraphExecKernelNodeSetParams(CUgraphExec executable, CUgraphNode node,
                                             const CUDA_KERNEL_NODE_PARAMS_v1* params) {
  return make_node(
      NodeUse::set_executable, params, &node, [&](const CUDA_KERNEL_NODE_PARAMS_v1* given) {
        return call_real(real::cuGraphExecKernelNodeSetParams, executable, node, given);
      });
}

CUresult hook_cuGraphExecKernelNodeSetParams_v2(CUgraphExec executable, CUgraphNode node,
                                                const NodeParams* params) {
  return make_node(NodeUse::set_executable, params, &node, [&](const NodeParams* given) {
    return call_real(real::cuGraphExecKernelNodeSetParams_v2, executable, node, given);
  });
}

CUresult hook_cuGraphExecNodeSetParams(CUgraphExec executable, CUgraphNode node,
                                       CUgraphNodeParams* params) {
  return make_node(NodeUse::set_executable, params, &node, [&](CUgraphNodeParams* given) {
    return call_real(real::cuGraphExecNodeSetParams, executable, node, given);
  });
}

// --- read nodes ---

CUresult hook_cuGraphKernelNodeGetParams(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS_v1* params) {
  return give_original(call_real(real::cuGraphKernelNodeGetParams, node, params), node, params);
}

CUresult hook_cuGraphKernelNodeGetParams_v2(CUgraphNode node, NodeParams* params) {
  return give_original(call_real(real::cuGraphKernelNodeGetParams_v2, node, params), node, params);
}

// The host's cluster and cooperation attributes do not apply to the replacement.
CUresult hook_cuGraphKernelNodeSetAttribute(CUgraphNode node, CUkernelNodeAttrID attribute,
                                            const CUkernelNodeAttrValue* value) {
  if (attribute == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION && value != nullptr) {
    const uint32_t cluster[3] = {value->clusterDim.x, value->clusterDim.y, value->clusterDim.z};
    if (keep_original_cluster(node, cluster)) return CUDA_SUCCESS;
  }
  if (rule_of(attribute) == AttributeRule::drop && is_redirected_node(node)) return CUDA_SUCCESS;
  return call_real(real::cuGraphKernelNodeSetAttribute, node, attribute, value);
}

// --- copy and end nodes ---

CUresult hook_cuGraphClone(CUgraph* clone, CUgraph original) {
  const CUresult result = call_real(real::cuGraphClone, clone, original);
  if (result == CUDA_SUCCESS && clone != nullptr) remember_copy(original, *clone);
  return result;
}

CUresult hook_cuGraphAddChildGraphNode(CUgraphNode* node, CUgraph graph,
                                       const CUgraphNode* dependencies, size_t count,
                                       CUgraph child) {
  const CUresult result =
      call_real(real::cuGraphAddChildGraphNode, node, graph, dependencies, count, child);
  if (result == CUDA_SUCCESS && node != nullptr) remember_child_copy(child, *node);
  return result;
}

CUresult hook_cuGraphDestroyNode(CUgraphNode node) {
  forget_node(node);
  return call_real(real::cuGraphDestroyNode, node);
}

CUresult hook_cuGraphDestroy(CUgraph graph) {
  forget_graph(graph);
  return call_real(real::cuGraphDestroy, graph);
}

// --- captures ---

CUresult hook_cuStreamBeginCapture(CUstream stream) {
  return begin_capture(call_real(real::cuStreamBeginCapture, stream), stream, false);
}

CUresult hook_cuStreamBeginCapture_ptsz(CUstream stream) {
  return begin_capture(call_real(real::cuStreamBeginCapture_ptsz, stream), stream, true);
}

CUresult hook_cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode) {
  return begin_capture(call_real(real::cuStreamBeginCapture_v2, stream, mode), stream, false);
}

CUresult hook_cuStreamBeginCapture_v2_ptsz(CUstream stream, CUstreamCaptureMode mode) {
  return begin_capture(call_real(real::cuStreamBeginCapture_v2_ptsz, stream, mode), stream, true);
}

CUresult hook_cuStreamBeginCaptureToGraph(CUstream stream, CUgraph graph,
                                          const CUgraphNode* dependencies,
                                          const CUgraphEdgeData* edges, size_t count,
                                          CUstreamCaptureMode mode) {
  return begin_capture(
      call_real(real::cuStreamBeginCaptureToGraph, stream, graph, dependencies, edges, count, mode),
      stream, false);
}

CUresult hook_cuStreamBeginCaptureToGraph_ptsz(CUstream stream, CUgraph graph,
                                               const CUgraphNode* dependencies,
                                               const CUgraphEdgeData* edges, size_t count,
                                               CUstreamCaptureMode mode) {
  return begin_capture(call_real(real::cuStreamBeginCaptureToGraph_ptsz, stream, graph,
                                 dependencies, edges, count, mode),
                       stream, true);
}

CUresult hook_cuStreamEndCapture(CUstream stream, CUgraph* graph) {
  return end_capture(call_real(real::cuStreamEndCapture, stream, graph), stream, false);
}

CUresult hook_cuStreamEndCapture_ptsz(CUstream stream, CUgraph* graph) {
  return end_capture(call_real(real::cuStreamEndCapture_ptsz, stream, graph), stream, true);
}

CUresult hook_cuStreamDestroy(CUstream stream) {
  end_captures_of_stream(stream);
  return call_real(real::cuStreamDestroy, stream);
}

CUresult hook_cuStreamDestroy_v2(CUstream stream) {
  end_captures_of_stream(stream);
  return call_real(real::cuStreamDestroy_v2, stream);
}
