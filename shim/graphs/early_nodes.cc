#include "shim/graphs/early_nodes.h"

#include <string.h>

#include "shim/driver/driver.h"

namespace fibshim {
namespace {

// The allocation that a pointer leads into. False: there is none, or the driver does not tell.
bool find_allocation(CUdeviceptr pointer, CUdeviceptr* base, size_t* size) {
  const auto get_range = FIBSHIM_REAL(cuMemGetAddressRange_v2);
  return get_range != nullptr && get_range(base, size, pointer) == CUDA_SUCCESS;
}

CUdeviceptr pointer_at(const NodeParams& params, uint32_t index) {
  CUdeviceptr pointer = 0;
  memcpy(&pointer, params.kernelParams[index], sizeof pointer);
  return pointer;
}

// Whether none of `before`'s parameters leads into what `node` reads before its wait.
bool is_apart(const RewrittenNode& node, const RewrittenNode& before) {
  const uint32_t early = node.solution->early_params;
  if (early == 0) return true;
  NodeParams own;
  NodeParams other;
  if (!read_kernel(node.node, &own) || !read_kernel(before.node, &other)) return false;
  const auto& sizes = node.solution->param_sizes;
  const auto& other_sizes = before.solution->param_sizes;
  if (own.kernelParams == nullptr || other.kernelParams == nullptr || other_sizes.count == 0) {
    return false;
  }
  for (uint32_t i = 0; i < 32; ++i) {
    if ((early >> i & 1) == 0) continue;
    CUdeviceptr base = 0;
    size_t size = 0;
    if (i >= sizes.count || node.snapshot->begin(sizes)[i] != sizeof base ||
        !find_allocation(pointer_at(own, i), &base, &size)) {
      return false;
    }
    for (uint32_t k = 0; k < other_sizes.count; ++k) {
      const uint16_t bytes = before.snapshot->begin(other_sizes)[k];
      if (bytes > sizeof base) return false;  // a struct: pointers may be anywhere in it
      if (bytes == sizeof base && pointer_at(other, k) - base < size) return false;
    }
  }
  return true;
}

}  // namespace

bool let_nodes_begin_early(const Block<RewrittenNode>& nodes) {
  for (size_t i = 0; i < nodes.count(); ++i) {
    const RewrittenNode& node = nodes[i];
    if (node.graph == nullptr || node.solution->waits_for_previous == 0) continue;
    const CUgraphNode only = find_only_before(node.node);
    if (only == nullptr) continue;
    // Most often it is the one before it in the list.
    for (size_t k = 1; k < nodes.count(); ++k) {
      const RewrittenNode& before = nodes[(i + nodes.count() - k) % nodes.count()];
      if (before.graph != node.graph || before.node != only) continue;
      if (before.solution->waits_for_previous == 0 || !is_apart(node, before)) break;
      if (!make_edge_early(node.graph, only, node.node)) return false;
      node.shape->begins_early = 1;
      before.shape->lets_begin_early = 1;
      break;
    }
  }
  return true;
}

}  // namespace fibshim
