#include "shim/graphs/follow_update.h"

#include <string.h>

#include "shim/base/read_section.h"
#include "shim/graphs/merged_kernels.h"
#include "shim/registry/handles.h"

namespace fibshim {
namespace {

// Plans a kernel that the survey has planned, for the same parameters. `running`: as which it runs.
void plan_surveyed(const KeptPlan& kept, const VariantNode& running, const NodeParams& params,
                   KernelNode* node, PlannedNode* out) {
  memset(&out->shape, 0, sizeof out->shape);
  if (kept.decision != nullptr && !kept.is_redirect()) {
    out->plan.launch.action = LaunchAction::original;
    out->plan.counter = counter_of_kept(kept);
    return;
  }
  const auto plan_it_again = [&] {
    return plan_again(kept, params, attributes_of(node->kept, &node->facts).cluster, &out->plan);
  };
  if (kept.decision != nullptr && !running.shape.has_early_edge() && plan_it_again() &&
      solution_number(*out) == running.solution) {
    // The same solution gives the same node the same shape.
    out->shape = running.shape;
  } else {
    plan_copied_node(node->kept, params, &node->facts, out);
  }
}

}  // namespace

bool follow_update(const Survey& survey, Exec* exec, Variant* running) {
  const ReadSection section;
  const TakenOver& written = exec->taken_over;
  // Its plans may have died since.
  if (written.has_changed_others() || survey.plans_changes != handle_changes()) return false;
  Following following(exec, running, &written);
  if (!following.may_follow()) return false;
  for (size_t i = 0; i < survey.is_changed.count(); ++i) {
    if (!survey.is_changed[i]) continue;
    void* pointers[kMaxParams];
    const NodeParams params = written.written_kernel(i, pointers);
    PlannedNode planned;
    if (running->nodes[i].merge == 0) {
      plan_surveyed(survey.plans[i], running->nodes[i], params, &exec->nodes[i], &planned);
    }
    if (!following.change(i, params, planned)) return false;
  }
  return following.finish();
}

}  // namespace fibshim
