#include "shim/graphs/node_swap.h"

#include <string.h>

#include "shim/base/log.h"
#include "shim/driver/driver.h"
#include "shim/launch/eager_plan.h"

namespace fibshim {

// Followed by the parameters' pointers and bytes.
struct NodeSwap::Kept {
  Kept* next;
  size_t block_bytes;
  CUgraphNode node;
  NodeParams params;
};

namespace {

bool set_params(CUgraphNode node, const NodeParams& params) {
  const auto set = FIBSHIM_REAL(cuGraphKernelNodeSetParams_v2);
  return set != nullptr && set(node, &params) == CUDA_SUCCESS;
}

void put_back_params(CUgraphNode node, const NodeParams& params) {
  if (set_params(node, params)) return;
  log_message(LogLevel::error,
              "a graph's node cannot be given its own kernel back: it keeps a replacement");
}

}  // namespace

void plan_in_exec(CUgraphNode node, const NodeParams& params, NodeFacts* facts, PlannedNode* out) {
  plan_copied_node(node, params, facts, out);
  if (out->is_redirect() && !out->has_plain_shape()) {
    count_many(counter_of_kept_node(out->plan.counter, GraphReason::not_in_place), 1);
    refuse_node(&out->plan, Outcome::fallback_graph);
  }
}

namespace {

// Plans a node that the survey has planned already.
void plan_surveyed(const HostNode& host, const NodeParams& params, Survey* survey,
                   PlannedNode* out) {
  NodeFacts* const facts = &survey->nodes[host.index].facts;
  const KeptPlan& made = survey->plans[host.index];
  if (made.decision != nullptr && !made.has_shape &&
      plan_again(made, params, facts->attributes.cluster, &out->plan)) {
    return;
  }
  plan_in_exec(host.node, params, facts, out);
  survey->counters[host.index] = out->plan.counter;
}

}  // namespace

void NodeSwap::replace(Survey* survey, const TakenOver* written) {
  written_ = written;
  for (const HostNode& host : survey->host_nodes) {
    CounterIndex& counter = survey->counters[host.index];
    if (counter == kNoCounter || outcome_of_counter(counter) != Outcome::hit) continue;
    const uint32_t solution =
        written == nullptr ? replace_node(host, survey) : replace_written(host, survey);
    if (solution == 0) {
      if (counter != kNoCounter) counter = keep_original(counter, GraphReason::refused);
      continue;
    }
    if (survey->solutions.count() == 0) (void)survey->solutions.allocate(survey->nodes.count());
    // Without memory its launches are not checked.
    if (survey->solutions.count() != 0) survey->solutions[host.index] = solution;
  }
}

uint32_t NodeSwap::replace_node(const HostNode& host, Survey* survey) {
  NodeParams params;
  const Record* const record =
      read_kernel(host.node, &params) ? find_tracked(handle_of(params)) : nullptr;
  if (record == nullptr || (params.kernelParams == nullptr && record->param_count != 0)) {
    return 0;
  }
  // The parameters that were read point into the node, which is about to be set: copy them.
  const size_t pointer_bytes = record->param_count * sizeof(void*);
  const size_t block_bytes = sizeof(Kept) + pointer_bytes + record->params_bytes;
  auto* const kept = static_cast<Kept*>(g_graph_pool.allocate_unset(block_bytes));
  if (kept == nullptr) return 0;
  auto** const pointers = reinterpret_cast<void**>(kept + 1);
  char* const bytes = reinterpret_cast<char*>(pointers) + pointer_bytes;
  for (uint32_t i = 0; i < record->param_count; ++i) {
    const Param& param = record->params[i];
    memcpy(bytes + param.offset, params.kernelParams[i], param.size);
    pointers[i] = bytes + param.offset;
  }
  kept->block_bytes = block_bytes;
  kept->node = host.node;
  kept->params = params;
  kept->params.kernelParams = record->param_count == 0 ? nullptr : pointers;
  kept->params.extra = nullptr;
  PlannedNode planned;
  plan_surveyed(host, kept->params, survey, &planned);
  if (planned.is_redirect() && set_params(host.node, planned.plan.params)) {
    kept->next = kept_;
    kept_ = kept;
    return solution_number(planned);
  }
  g_graph_pool.release(kept, block_bytes);
  return 0;
}

uint32_t NodeSwap::replace_written(const HostNode& host, Survey* survey) {
  void* pointers[kMaxParams];
  const NodeParams params = written_->written_kernel(host.index, pointers);
  PlannedNode planned;
  plan_surveyed(host, params, survey, &planned);
  if (!planned.is_redirect() || !set_params(host.node, planned.plan.params)) return 0;
  HostNode* const added = replaced_.add();
  if (added == nullptr) {
    put_back_params(host.node, params);
    return 0;
  }
  *added = host;
  return solution_number(planned);
}

bool NodeSwap::put_back() {
  const bool has_any = kept_ != nullptr || replaced_.count() != 0;
  for (const HostNode& host : replaced_) {
    void* pointers[kMaxParams];
    put_back_params(host.node, written_->written_kernel(host.index, pointers));
  }
  replaced_.clear();
  while (kept_ != nullptr) {
    Kept* const kept = kept_;
    kept_ = kept->next;
    put_back_params(kept->node, kept->params);
    g_graph_pool.release(kept, kept->block_bytes);
  }
  return has_any;
}

}  // namespace fibshim
