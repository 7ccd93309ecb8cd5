#include "shim/graphs/make_variant.h"

#include <string.h>

#include <atomic>

#include "shim/base/log.h"
#include "shim/driver/driver.h"
#include "shim/graphs/rewrites.h"
#include "shim/launch/eager_plan.h"
#include "shim/registry/generation.h"

namespace fibshim {
namespace {

constexpr int kMostRefusals =
    4;  // nodes that the driver may refuse to change before the graph is left alone

bool clone_graph(CUgraph graph, CUgraph* clone) {
  const auto clone_real = FIBSHIM_REAL(cuGraphClone);
  return clone_real != nullptr && graph != nullptr && clone_real(clone, graph) == CUDA_SUCCESS;
}

// Finds the index of a kept node, from `*index` on, since it is most often close.
bool find_kept(const Block<KernelNode>& nodes, CUgraphNode kept, size_t* index) {
  for (size_t i = 0; i < nodes.count(); ++i) {
    const size_t at = (*index + i) % nodes.count();
    if (nodes[at].kept != kept) continue;
    *index = at;
    return true;
  }
  return false;
}

// For messages that a graph runs without its replacements: the first is a warning.
LogLevel level_of_refusal() {
  static std::atomic<bool> was_said{false};
  return was_said.exchange(true, std::memory_order_relaxed) ? LogLevel::info : LogLevel::warn;
}

enum class Rewriting : uint8_t { done, refused, failed };

// What to try with a copy. Anything that the driver refuses is omitted from the next attempt.
struct Attempt {
  Block<bool> is_refused;  // nodes that keep their original
  bool has_rewrites;
  bool lets_begin_early;
};

// Finds the kernel nodes of a copy, by their indexes among the originals'. The driver may list the
// copy's nodes in another order.
bool find_copies(const Originals& originals, CUgraph copy, const Block<CopiedKernel>& kernels) {
  bool is_flat = true;
  for (size_t i = 0; is_flat && i < kernels.count(); ++i) {
    kernels[i] = {copy, nullptr, true, false, kNoCounter};
    is_flat = find_in_clone(originals.nodes[i].kept, copy, &kernels[i].node);
  }
  if (is_flat) return true;
  size_t index = 0;
  size_t count = 0;
  return for_each_copied_kernel(
             originals.graph, copy,
             [&](CUgraphNode kept, CUgraph graph, CUgraphNode node, bool is_certain) {
               if (!find_kept(originals.nodes, kept, &index)) return false;
               ++count;
               kernels[index] = {graph, node, is_certain, false, kNoCounter};
               return true;
             }) &&
         count == kernels.count();
}

// Replaces one node of the copy if a solution serves it. False: the driver refuses.
bool rewrite_kernel(const Originals& originals, const CopiedKernel& kernel, size_t index,
                    bool is_refused, Variant* variant, const Block<RewrittenNode>& rewritten,
                    bool* is_changed) {
  NodeParams params;
  if (!read_kernel(originals.nodes[index].kept, &params)) return false;
  PlannedNode planned;
  plan_copied_node(originals.nodes[index].kept, params, &originals.nodes[index].facts, &planned);
  const bool is_without =
      !is_refused && !give_workspace(variant, index, kernel.graph == variant->graph, &planned);
  if (planned.is_redirect() && (is_refused || is_without)) {
    refuse_node(&planned.plan, Outcome::fallback_refused);
    memset(&planned.shape, 0, sizeof planned.shape);
  }
  VariantNode& made = variant->nodes[index];
  if (planned.is_redirect()) {
    *is_changed = true;
    if (!rewrite_node(kernel.graph, kernel.node, planned)) return false;
    if (!originals.nodes[index].is_disabled) {
      rewritten[index] = {kernel.graph, kernel.node, planned.plan.launch.decision->snapshot,
                          &solution_of(planned.plan), &made.shape};
    }
  }
  made.shape = planned.shape;
  made.solution = solution_number(planned);
  const bool is_unknown = planned.plan.launch.candidate == nullptr;
  (void)count_node_as(
      variant, index,
      is_unknown && kernel.refused != kNoCounter ? kernel.refused : planned.plan.counter, false);
  return true;
}

// Rewrites a new copy of the originals. `refused`: the driver has refused something, which
// `attempt` now excludes; the copy is unusable.
Rewriting rewrite_copy(const Originals& originals, CUgraph copy, Attempt* attempt, Variant* variant,
                       bool* is_changed) {
  const size_t count = variant->nodes.count();
  Block<RewrittenNode> rewritten;
  Block<CopiedKernel> kernels;
  if (!rewritten.allocate(count) || !kernels.allocate(count) ||
      !find_copies(originals, copy, kernels)) {
    return Rewriting::failed;
  }
  for (size_t i = 0; i < count; ++i) variant->nodes[i].node = kernels[i].node;
  if (attempt->has_rewrites) {
    const Absorbed absorbed = absorb_kernels(originals, copy, kernels, variant, rewritten);
    if (absorbed == Absorbed::failed) {
      attempt->has_rewrites = false;
      return Rewriting::refused;
    }
    *is_changed = variant->has_rewrites = absorbed == Absorbed::some;
  }
  for (size_t i = 0; i < count; ++i) {
    if (!kernels[i].is_taken && !rewrite_kernel(originals, kernels[i], i, attempt->is_refused[i],
                                                variant, rewritten, is_changed)) {
      attempt->is_refused[i] = true;
      return Rewriting::refused;
    }
  }
  if (!attempt->lets_begin_early || let_nodes_begin_early(rewritten)) return Rewriting::done;
  attempt->lets_begin_early = false;
  return Rewriting::refused;
}

// Disables the nodes that the host has disabled.
bool disable_nodes(const Originals& originals, const Variant& variant) {
  const auto set_enabled = FIBSHIM_REAL(cuGraphNodeSetEnabled);
  const auto disable = [&](CUgraphNode node) {
    return set_enabled != nullptr && set_enabled(variant.exec, node, 0) == CUDA_SUCCESS;
  };
  for (size_t i = 0; i < originals.nodes.count(); ++i) {
    if (originals.nodes[i].is_disabled && !disable(variant.nodes[i].node)) return false;
  }
  for (const CUgraphNode other : originals.disabled_others) {
    CUgraphNode node = nullptr;
    if (!find_in_clone(other, variant.graph, &node) || !disable(node)) return false;
  }
  return true;
}

CUresult make_exec(const Instantiation& how, CUgraphExec* exec, CUgraph graph) {
  const auto with_flags = FIBSHIM_REAL(cuGraphInstantiateWithFlags);
  const auto with_params = how.is_per_thread_stream
                               ? FIBSHIM_REAL(cuGraphInstantiateWithParams_ptsz)
                               : FIBSHIM_REAL(cuGraphInstantiateWithParams);
  if ((how.flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD) != 0) {
    CUDA_GRAPH_INSTANTIATE_PARAMS params;
    memset(&params, 0, sizeof params);
    params.flags = how.flags;
    params.hUploadStream = how.upload_stream;
    return with_params == nullptr ? CUDA_ERROR_NOT_SUPPORTED : with_params(exec, graph, &params);
  }
  if (with_flags != nullptr) return with_flags(exec, graph, how.flags);
  const auto plain = FIBSHIM_REAL(cuGraphInstantiate_v2);
  return plain == nullptr ? CUDA_ERROR_NOT_SUPPORTED : plain(exec, graph, nullptr, nullptr, 0);
}

}  // namespace

Made make_rewritten(const Originals& originals, Variant** out) {
  *out = nullptr;
  const uint64_t generation = current_generation()->number;
  Attempt attempt = {{}, true, originals.may_be_rearranged};
  if (!attempt.is_refused.allocate(originals.nodes.count())) return Made::failed;
  for (int refusals = 0; refusals < kMostRefusals; ++refusals) {
    Variant* const variant = make_variant(originals.nodes.count());
    if (variant == nullptr) return Made::failed;
    variant->generation = generation;
    if (!clone_graph(originals.graph, &variant->graph)) {
      log_message(level_of_refusal(), "a graph cannot be copied once more; it runs as it is");
      end_variant(variant);
      return Made::failed;
    }
    bool is_changed = false;
    const Rewriting rewriting =
        rewrite_copy(originals, variant->graph, &attempt, variant, &is_changed);
    if (rewriting == Rewriting::done) {
      // The counters were set as if all nodes ran.
      for (size_t i = 0; i < originals.nodes.count(); ++i) {
        if (originals.nodes[i].is_disabled) switch_node(variant, i, true);
      }
      find_sample_interval(variant);
      *out = variant;
      if (is_changed || originals.needs_exec) return Made::rewritten;
      end_variant_graph(variant);
      return Made::unchanged;
    }
    end_variant(variant);
    if (rewriting == Rewriting::failed) break;
  }
  log_message(level_of_refusal(),
              "the driver refuses to change a copy of a graph; it runs as it is");
  return Made::failed;
}

bool copy_originals(const Originals& originals, Variant* variant, Block<CopiedKernel>* kernels) {
  if (!clone_graph(originals.graph, &variant->graph) ||
      !kernels->allocate(originals.nodes.count()) ||
      !find_copies(originals, variant->graph, *kernels)) {
    return false;
  }
  for (size_t i = 0; i < kernels->count(); ++i) variant->nodes[i].node = (*kernels)[i].node;
  return true;
}

void upload_variant(const Variant& variant) {
  const auto create = FIBSHIM_REAL(cuStreamCreate);
  const auto destroy = FIBSHIM_REAL(cuStreamDestroy_v2);
  const auto synchronize = FIBSHIM_REAL(cuStreamSynchronize);
  const auto upload = FIBSHIM_REAL(cuGraphUpload);
  CUstream stream = nullptr;
  if (create == nullptr || destroy == nullptr || synchronize == nullptr || upload == nullptr ||
      create(&stream, CU_STREAM_NON_BLOCKING) != CUDA_SUCCESS) {
    return;
  }
  if (upload(variant.exec, stream) == CUDA_SUCCESS) (void)synchronize(stream);
  (void)destroy(stream);
}

bool instantiate_variant(const Originals& originals, Variant* variant) {
  const CUresult result = make_exec(originals.instantiation, &variant->exec, variant->graph);
  if (result == CUDA_SUCCESS && disable_nodes(originals, *variant)) return true;
  log_message(level_of_refusal(), "a rewritten graph is not instantiated (%s); it runs as it is",
              ErrorText(result).text);
  return false;
}

}  // namespace fibshim
