#include "shim/graphs/child_graphs.h"

#include "shim/driver/driver.h"
#include "shim/graphs/node_rewrite.h"
#include "shim/graphs/survey.h"

namespace fibshim {
namespace {

// Where the originals have the child graph. An earlier replacement is no clone of the host's node.
CUgraphNode find_copy(const Exec& exec, CUgraphNode node) {
  for (const ChildCopy& child : exec.children) {
    if (child.host == node) return child.kept;
  }
  CUgraphNode kept = nullptr;
  return find_in_clone(node, exec.originals, &kept) ? kept : nullptr;
}

bool remember_copy(Exec* exec, CUgraphNode node, CUgraphNode kept) {
  for (ChildCopy& child : exec->children) {
    if (child.host != node) continue;
    child.kept = kept;
    return true;
  }
  ChildCopy* const added = exec->children.append();
  if (added != nullptr) *added = {node, kept};
  return added != nullptr;
}

// Adds `child` with the edges of the node that it replaces. Null: that is not possible.
CUgraphNode add_in_place_of(CUgraphNode node, CUgraph graph, CUgraph child) {
  const auto add = FIBSHIM_REAL(cuGraphAddChildGraphNode);
  const auto add_edges = FIBSHIM_REAL(cuGraphAddDependencies_v2);
  const NodeEdges edges = edges_of(node);
  Block<CUgraphNode> before;
  Block<CUgraphNode> after;
  CUgraphNode added = nullptr;
  if (!edges.is_known || edges.begins_early || edges.has_other_ports || add == nullptr ||
      add_edges == nullptr || !list_before(node, &before) || !list_after(node, &after) ||
      add(&added, graph, before.begin(), before.count(), child) != CUDA_SUCCESS) {
    return nullptr;
  }
  for (const CUgraphNode one : after) {
    if (add_edges(graph, &added, &one, nullptr, 1) != CUDA_SUCCESS) return nullptr;
  }
  return added;
}

}  // namespace

bool replace_child(Exec* exec, CUgraphNode node, CUgraph child) {
  const auto destroy = FIBSHIM_REAL(cuGraphDestroyNode);
  const CUgraphNode kept = find_copy(*exec, node);
  CUgraph before = nullptr;
  CUgraph copy = nullptr;
  if (kept == nullptr || destroy == nullptr || !find_child(kept, &before)) return false;
  const CUgraphNode added = add_in_place_of(kept, exec->originals, child);
  if (added == nullptr || !find_child(added, &copy) || !remember_copy(exec, node, added)) {
    return false;
  }
  const auto adopt = [&](CUgraphNode old, CUgraph, CUgraphNode now, bool) {
    NodeParams params;
    for (KernelNode& known : exec->nodes) {
      if (known.kept != old) continue;
      // The driver says only of the whole child graph that its nodes are in the order of before.
      const bool is_added =
          !known.is_disabled && read_kernel(now, &params) && add_owner(params, &exec->owners);
      known = {now, false, false, false, {}};
      return is_added;
    }
    return false;
  };
  return for_each_copied_kernel(before, copy, adopt, true) && destroy(kept) == CUDA_SUCCESS;
}

}  // namespace fibshim
