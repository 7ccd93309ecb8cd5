#include "shim/graphs/early_nodes.h"

#include <string.h>

#include "shim/driver/memory_range.h"

namespace fibshim {
namespace {

CUdeviceptr pointer_at(const NodeParams& params, uint32_t index) {
  CUdeviceptr pointer = 0;
  memcpy(&pointer, params.kernelParams[index], sizeof pointer);
  return pointer;
}

// True if `other` writes no memory that `node` reads before its wait.
bool is_apart(const RewrittenNode& node, const RewrittenNode& other) {
  NodeParams own;
  NodeParams others;
  if (!read_kernel(node.node, &own) || !read_kernel(other.node, &others)) return false;
  const auto& sizes = node.solution->param_sizes;
  const auto& other_sizes = other.solution->param_sizes;
  if (own.kernelParams == nullptr || others.kernelParams == nullptr || other_sizes.count == 0) {
    return false;
  }
  for (uint32_t i = 0; i < 32; ++i) {
    if ((node.solution->early_params >> i & 1) == 0) continue;
    CUdeviceptr base = 0;
    size_t size = 0;
    if (i >= sizes.count || node.snapshot->begin(sizes)[i] != sizeof base ||
        !find_memory(pointer_at(own, i), &base, &size)) {
      return false;
    }
    for (uint32_t k = 0; k < other_sizes.count; ++k) {
      if (k < 32 && (other.solution->kept_params >> k & 1) != 0) continue;
      const uint16_t bytes = other.snapshot->begin(other_sizes)[k];
      if (bytes > sizeof base) return false;  // a struct may hold pointers anywhere
      if (bytes == sizeof base && pointer_at(others, k) - base < size) return false;
    }
  }
  return true;
}

// Finds the entry of a node, which is most often shortly before `near`.
const RewrittenNode* find_rewritten(const Block<RewrittenNode>& nodes, CUgraphNode node,
                                    const RewrittenNode& near) {
  const size_t from = static_cast<size_t>(&near - nodes.begin());
  for (size_t k = 1; node != nullptr && k < nodes.count(); ++k) {
    const RewrittenNode& entry = nodes[(from + nodes.count() - k) % nodes.count()];
    if (entry.graph == near.graph && entry.node == node) return &entry;
  }
  return nullptr;
}

// True if no kernel that may still run when `node` begins early after `before` can write what
// `node` reads before its wait. Kernels further back may still run if each kernel between lets the
// next begin early.
bool is_apart_from_all(const Block<RewrittenNode>& nodes, const RewrittenNode& node,
                       const RewrittenNode* before) {
  for (size_t steps = 0; steps < nodes.count(); ++steps) {
    if (!is_apart(node, *before)) return false;
    // Everything before it has ended when the next kernel begins.
    if (before->solution->next_may_begin == 0) return true;
    const NodesBefore further = nodes_before(before->node);
    if (!further.is_known) return false;
    const RewrittenNode* const entry = find_rewritten(nodes, further.only, *before);
    if (entry == nullptr) return further.is_plain;  // an original, which has ended by then
    before = entry;
  }
  return false;
}

// Lets the kernel of `before` release its successor before its own wait. Does nothing if several
// nodes follow it: some may be the host's.
bool tell_next_may_begin(const RewrittenNode& before) {
  const auto set_params = FIBSHIM_REAL(cuGraphKernelNodeSetParams_v2);
  const Solution& solution = *before.solution;
  if (solution.next_may_begin == 0 || !has_one_after(before.node)) return true;
  const uint32_t at = solution.next_may_begin - 1u;
  const auto& sizes = solution.param_sizes;
  NodeParams params;
  if (at >= sizes.count || before.snapshot->begin(sizes)[at] != sizeof(int32_t) ||
      !read_kernel(before.node, &params) || params.kernelParams == nullptr) {
    return true;
  }
  int32_t yes = 1;
  Block<void*> values;
  if (!values.allocate(sizes.count)) return true;
  memcpy(values.begin(), params.kernelParams, sizes.count * sizeof(void*));
  values[at] = &yes;
  params.kernelParams = values.begin();
  return set_params != nullptr && set_params(before.node, &params) == CUDA_SUCCESS;
}

}  // namespace

bool let_nodes_begin_early(const Block<RewrittenNode>& nodes) {
  for (const RewrittenNode& node : nodes) {
    if (node.graph == nullptr || node.solution->waits_for_previous == 0) continue;
    const NodesBefore all = nodes_before(node.node);
    if (!all.is_plain) continue;
    const RewrittenNode* const before = find_rewritten(nodes, all.only, node);
    if (before == nullptr) continue;
    const bool reads_early = node.solution->early_params != 0;
    if (reads_early && !is_apart(node, *before)) continue;
    if (!make_edge_early(node.graph, before->node, node.node)) return false;
    const bool is_free = !reads_early || is_apart_from_all(nodes, node, before);
    if (is_free && !tell_next_may_begin(*before)) return false;
    node.shape->begins_early = 1;
    before->shape->lets_begin_early = 1;
  }
  return true;
}

}  // namespace fibshim
