#include "shim/graphs/merged_kernels.h"

#include <string.h>

#include "shim/driver/driver.h"
#include "shim/launch/learn.h"
#include "shim/launch/recording.h"
#include "shim/launch/served_solutions.h"
#include "shim/plan/parameter_words.h"
#include "shim/registry/generation.h"

namespace fibshim {

bool read_merged(const Generation& generation, const Block<KernelNode>& nodes,
                 const Rewrite& rewrite, const uint32_t* kernels, const NodeParams* params,
                 RewriteCall* call) {
  MemberLaunch members[kMaxRewriteKernels];
  for (uint32_t i = 0; i < rewrite.member_count; ++i) {
    KernelNode& node = nodes[kernels[i]];
    members[i].params = params[i];
    members[i].record = find_member(handle_of(params[i]), generation);
    if (members[i].record == nullptr || !is_member(*members[i].record, rewrite, i)) return false;
    memcpy(members[i].cluster, attributes_of(node.kept, &node.facts).cluster,
           sizeof members[i].cluster);
  }
  return read_call(generation, rewrite, members, call);
}

bool read_instance(const Originals& originals, const Variant& variant, size_t first,
                   uint32_t (&kernels)[kMaxRewriteKernels], RewriteCall* call) {
  const Generation& generation = *current_generation();
  const Snapshot& snapshot = *generation.snapshot;
  const uint32_t number = variant.nodes[first].merge;
  if (number == 0 || variant.generation != generation.number) return false;
  const Merge& merge = variant.merges.all[number - 1];
  if (merge.kernels[0] != first) return false;
  const Rewrite& rewrite = snapshot.begin(snapshot.rewrites)[merge.rewrite];
  NodeParams params[kMaxRewriteKernels];
  for (uint32_t i = 0; i < rewrite.member_count; ++i) {
    kernels[i] = merge.kernels[i];
    if (!read_kernel(originals.nodes[kernels[i]].kept, &params[i])) return false;
  }
  return read_merged(generation, originals.nodes, rewrite, kernels, params, call);
}

namespace {

bool runs_quarantined(const Variant& variant) {
  for (const Run& run : variant.runs) {
    if (run.number != 0 && outcome_of_counter(run.counter) == Outcome::hit &&
        is_series_quarantined(series_of_counter(run.counter))) {
      return true;
    }
  }
  return false;
}

}  // namespace

Following::Following(Exec* exec, Variant* variant, const TakenOver* written)
    : exec_(exec), variant_(variant), written_(written), generation_(current_generation()) {
  may_follow_ = !variant->is_host() && generation_ != nullptr && generation_->mode != Mode::off &&
                variant->generation == generation_->number && variant->merges.may_stay &&
                !is_recording() && !runs_quarantined(*variant);
}

bool Following::change(size_t index, const NodeParams& params, PlannedNode& planned) {
  const VariantNode& node = variant_->nodes[index];
  if (node.is_bound) return false;
  if (node.merge != 0) {
    const Merges& merges = variant_->merges;
    if (is_changed_.count() == 0 && !is_changed_.allocate(merges.all.count())) return false;
    const uint32_t merge = node.merge - 1;
    is_changed_[merge] = true;
    if (merge < first_changed_) first_changed_ = merge;
    if (merge >= end_changed_) end_changed_ = merge + 1;
    return is_apart(index, params, &merges.all[node.merge - 1]);
  }
  // A replacement that begins early depends on what others are given (early_nodes.h).
  if (!is_same_shape(node.shape, planned.shape) || node.solution != solution_number(planned)) {
    return false;
  }
  if (has_members(handle_of(params)) || !is_apart(index, params, nullptr)) return false;
  return give_workspace(variant_, index, false, &planned) &&
         set(node.node, planned.is_redirect() ? planned.plan.params : params) &&
         (node.counter == planned.plan.counter ||
          count_node_as(variant_, index, planned.plan.counter, exec_->nodes[index].is_disabled));
}

bool Following::finish() {
  for (uint32_t i = first_changed_; i < end_changed_; ++i) {
    if (is_changed_[i] && !follow_merge(variant_->merges.all[i])) return false;
  }
  return true;
}

// True if the kernel has no address inside a dead buffer, except those that its own rewrite knows.
bool Following::is_apart(size_t index, const NodeParams& params, const Merge* own) {
  const Merges& merges = variant_->merges;
  if (merges.all.count() == 0) return true;
  Param room[kMaxParams];
  const Param* layout = room;
  uint32_t count = 0;
  if (written_ != nullptr) {
    layout = written_->written_layout(index, &count);
  } else if (!find_params(handle_of(params), room, &count)) {
    return false;
  }
  const auto is_known = [&](uint64_t word) {
    for (uint32_t i = 0; own != nullptr && i < own->range_count; ++i) {
      const BufferRange& range = merges.ranges[own->first_range + i];
      if (range.is_dead && word >= range.begin && word < range.end) return true;
    }
    return false;
  };
  const auto is_elsewhere = [&](uint64_t word, uint32_t, uint32_t) {
    return is_known(word) || !merges.dead.has_any_in(word, word + 1);
  };
  return for_each_word(params.kernelParams, params.extra, layout, count, is_elsewhere);
}

bool Following::follow_merge(const Merge& merge) {
  const Snapshot& snapshot = *generation_->snapshot;
  const Rewrite& rewrite = snapshot.begin(snapshot.rewrites)[merge.rewrite];
  NodeParams params[kMaxRewriteKernels];
  void* pointers[kMaxRewriteKernels][kMaxParams];
  for (uint32_t i = 0; i < rewrite.member_count; ++i) {
    const uint32_t kernel = merge.kernels[i];
    if (written_ != nullptr) {
      params[i] = written_->written_kernel(kernel, pointers[i]);
    } else if (!read_kernel(exec_->nodes[kernel].kept, &params[i])) {
      return false;
    }
  }
  RewriteCall call;
  if (!read_merged(*generation_, exec_->nodes, rewrite, merge.kernels, params, &call)) return false;
  uint32_t range_count = 0;
  if (ranges_.count() < rewrite.buffers.count && !ranges_.allocate(rewrite.buffers.count)) {
    return false;
  }
  if (!read_buffers(call, ranges_.begin(), &range_count) || range_count != merge.range_count) {
    return false;
  }
  for (uint32_t i = 0; i < range_count; ++i) {
    if (!(ranges_[i] == variant_->merges.ranges[merge.first_range + i])) return false;
  }
  const uint32_t first = merge.kernels[0];
  const VariantNode& node = variant_->nodes[first];
  PlannedNode planned;
  memset(&planned.shape, 0, sizeof planned.shape);
  // One for each rewrite: its launches in a graph most often have the same key.
  KnownDecision* const known = variant_->merges.decision_of(rewrite);
  if (plan_rewrite(&call, &planned.plan, known) != LaunchAction::redirect) return false;
  shape_replacement(attributes_of(exec_->nodes[first].kept, &exec_->nodes[first].facts), &planned);
  planned.shape.runs_in = first + 1;
  if (!is_same_shape(node.shape, planned.shape) || node.solution != solution_number(planned) ||
      !give_workspace(variant_, first, false, &planned) || !set(node.node, planned.plan.params)) {
    return false;
  }
  const CounterIndex hit = planned.plan.counter;
  if (node.counter == hit) return true;
  const CounterIndex absorbed = counter_of(series_of_counter(hit), Outcome::absorbed);
  for (uint32_t i = 0; i < rewrite.member_count; ++i) {
    if (!count_node_as(variant_, merge.kernels[i], i == 0 ? hit : absorbed, false)) return false;
  }
  return true;
}

bool Following::set(CUgraphNode node, const NodeParams& params) const {
  const auto set_in = FIBSHIM_REAL(cuGraphExecKernelNodeSetParams_v2);
  return set_in != nullptr && set_in(variant_->exec, node, &params) == CUDA_SUCCESS;
}

}  // namespace fibshim
