#include "shim/graphs/node_rewrite.h"

#include <string.h>

#include "shim/driver/driver.h"

namespace fibshim {

bool read_kernel(CUgraphNode node, NodeParams* params) {
  const auto get_params = FIBSHIM_REAL(cuGraphKernelNodeGetParams_v2);
  memset(params, 0, sizeof *params);
  if (get_params == nullptr || get_params(node, params) != CUDA_SUCCESS) return false;
  // The driver returns a CUkernel together with its function; only the CUkernel is a known handle.
  if (params->kern != nullptr) params->func = nullptr;
  return true;
}

namespace {

void shape_node(const NodeAttributes& attributes, PlannedNode* out) {
  NodeShape& shape = out->shape;
  const LaunchPlan& launch = out->plan.launch;
  shape.has_workspace = launch.workspace_bytes != 0 ? 1 : 0;
  for (int i = 0; i < 3; ++i) {
    if (has_cluster(launch)) {
      shape.cluster[i] = launch.geometry[kClusterX + i];
    } else if (attributes.cluster[0] != 0) {
      shape.cluster[i] = 1;
    }
  }
  shape.drops_cooperation = attributes.is_cooperative ? 1 : 0;
}

}  // namespace

const NodeAttributes& attributes_of(CUgraphNode node, NodeFacts* facts) {
  if (!facts->has_attributes) facts->attributes = attributes_of(node);
  facts->has_attributes = true;
  return facts->attributes;
}

void plan_copied_node(CUgraphNode kept, const NodeParams& params, NodeFacts* facts,
                      PlannedNode* out) {
  memset(&out->shape, 0, sizeof out->shape);
  NodeAttributes attributes = {};
  if (facts->has_attributes || is_tracked_kernel(handle_of(params))) {
    attributes = attributes_of(kept, facts);
  }
  if (plan_node(params, attributes.cluster, &out->plan) != LaunchAction::redirect) return;
  if (!facts->has_edges) facts->edges = edges_of(kept);
  facts->has_edges = true;
  const NodeEdges& edges = facts->edges;
  if (!edges.is_known || edges.has_other_ports) {
    return refuse_node(&out->plan, Outcome::fallback_refused);
  }
  shape_node(attributes, out);
  out->shape.has_full_edges =
      edges.begins_early && !solution_of(out->plan).may_begin_early() ? 1 : 0;
}

void shape_replacement(const NodeAttributes& kept, PlannedNode* planned) {
  shape_node(kept, planned);
}

bool rewrite_node(CUgraph graph, CUgraphNode copy, const PlannedNode& planned) {
  const auto set_params = FIBSHIM_REAL(cuGraphKernelNodeSetParams_v2);
  const NodeShape& shape = planned.shape;
  constexpr uint32_t kNoCluster[3] = {1, 1, 1};
  // Remove the original's cluster and cooperation before the kernel is replaced, and set the
  // replacement's cluster afterwards, since the driver checks each against the node's current
  // kernel. A preferred cluster is a multiple of the cluster.
  const NodeAttributes original = shape.cluster[0] != 0 ? attributes_of(copy) : NodeAttributes{};
  if (original.cluster[0] != 0 &&
      (!set_cluster(copy, kNoCluster) ||
       (original.has_preferred_cluster && !set_preferred_cluster(copy, kNoCluster)))) {
    return false;
  }
  if (shape.drops_cooperation != 0 && !drop_cooperation(copy)) return false;
  if (set_params == nullptr || set_params(copy, &planned.plan.params) != CUDA_SUCCESS) return false;
  if (original.has_preferred_cluster && !set_preferred_cluster(copy, shape.cluster)) return false;
  if (shape.cluster[0] != 0 && !set_cluster(copy, shape.cluster)) return false;
  return shape.has_full_edges == 0 || make_edges_full(graph, copy);
}

}  // namespace fibshim
