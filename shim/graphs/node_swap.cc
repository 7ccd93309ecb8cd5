#include "shim/graphs/node_swap.h"

#include <string.h>

#include "shim/base/log.h"
#include "shim/base/read_section.h"
#include "shim/driver/driver.h"

namespace fibshim {

// Followed by the parameters' pointers and bytes.
struct NodeSwap::Kept {
  Kept* next;
  size_t block_bytes;
  CUgraphNode node;
  NodeParams params;
};

namespace {

bool has_plain_shape(const PlannedNode& planned) {
  constexpr NodeShape kPlain = {};
  return is_same_shape(planned.shape, kPlain);
}

bool set_params(CUgraphNode node, const NodeParams& params) {
  const auto set = FIBSHIM_REAL(cuGraphKernelNodeSetParams_v2);
  return set != nullptr && set(node, &params) == CUDA_SUCCESS;
}

}  // namespace

void plan_in_exec(CUgraphNode node, const NodeParams& params, NodeFacts* facts, PlannedNode* out) {
  plan_copied_node(node, params, facts, out);
  if (out->is_redirect() && !has_plain_shape(*out)) {
    refuse_node(&out->plan, Outcome::fallback_graph);
  }
}

void NodeSwap::replace(CUgraph graph, Survey* survey) {
  bool has_uncopied = false;
  size_t index = 0;
  const ReadSection section;
  (void)for_each_kernel(graph, &has_uncopied, [&](CUgraph, CUgraphNode node) {
    NodeParams params;
    const size_t at = index++;
    NodeFacts* const facts = &survey->nodes[at].facts;
    if (!read_kernel(node, &params)) return true;
    PlannedNode planned;
    plan_in_exec(node, params, facts, &planned);
    survey->counters[at] = planned.plan.counter;
    if (!planned.is_redirect()) return true;
    if (params.kernelParams == nullptr && planned.plan.launch.record->param_count != 0) {
      survey->counters[at] = counter_of_unchanged(planned.plan.counter);
      return true;
    }
    // What was read lies in the node, which is about to be set.
    const Record& record = *planned.plan.launch.record;
    const size_t pointer_bytes = record.param_count * sizeof(void*);
    const size_t block_bytes = sizeof(Kept) + pointer_bytes + record.params_bytes;
    auto* const kept = static_cast<Kept*>(g_graph_pool.allocate(block_bytes));
    if (kept == nullptr) {
      survey->counters[at] = counter_of_unchanged(planned.plan.counter);
      return true;
    }
    auto** const pointers = reinterpret_cast<void**>(kept + 1);
    char* const bytes = reinterpret_cast<char*>(pointers) + pointer_bytes;
    for (uint32_t i = 0; i < record.param_count; ++i) {
      const Param& param = record.params[i];
      memcpy(bytes + param.offset, params.kernelParams[i], param.size);
      pointers[i] = bytes + param.offset;
    }
    kept->block_bytes = block_bytes;
    kept->node = node;
    kept->params = params;
    kept->params.kernelParams = record.param_count == 0 ? nullptr : pointers;
    kept->params.extra = nullptr;
    plan_in_exec(node, kept->params, facts, &planned);  // now with arguments in the copy
    if (planned.is_redirect() && set_params(node, planned.plan.params)) {
      kept->next = kept_;
      kept_ = kept;
      return true;
    }
    survey->counters[at] = counter_of_unchanged(survey->counters[at]);
    g_graph_pool.release(kept, block_bytes);
    return true;
  });
}

void NodeSwap::put_back() {
  while (kept_ != nullptr) {
    Kept* const kept = kept_;
    kept_ = kept->next;
    if (!set_params(kept->node, kept->params)) {
      log_message(LogLevel::error,
                  "a graph's node cannot be given its own kernel back: it keeps a replacement");
    }
    g_graph_pool.release(kept, kept->block_bytes);
  }
}

}  // namespace fibshim
