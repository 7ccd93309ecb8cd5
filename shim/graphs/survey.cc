#include "shim/graphs/survey.h"

#include <stdlib.h>

#include "shim/base/read_section.h"
#include "shim/launch/eager_plan.h"
#include "shim/launch/recording.h"
#include "shim/launch/rewrite_plan.h"
#include "shim/registry/handles.h"

namespace fibshim {
namespace {

int compare(const void* one, const void* other) {
  const auto first = reinterpret_cast<uintptr_t>(static_cast<const HostNode*>(one)->node);
  const auto second = reinterpret_cast<uintptr_t>(static_cast<const HostNode*>(other)->node);
  return first < second ? -1 : first > second ? 1 : 0;
}

// A plan that makes the host's call fail.
void fail_survey(const PlannedNode& planned, Survey* survey) {
  count_many(counter_of_kind(planned.plan.counter, CountKind::node), 1);
  survey->failure = planned.plan.launch.decision->error;
}

bool survey_node(CUgraphNode node, size_t index, Survey* survey) {
  NodeParams params;
  if (!read_kernel(node, &params)) return false;
  PlannedNode planned;
  plan_copied_node(node, params, &survey->nodes[index].facts, &planned);
  survey->host_nodes[index] = {node, static_cast<uint32_t>(index)};
  survey->counters[index] = planned.plan.counter;
  const LaunchPlan& launch = planned.plan.launch;
  if (launch.record != nullptr) {
    record_failed_plan(launch);
    record_node(params, launch);
  }
  if (launch.action == LaunchAction::fail) {
    fail_survey(planned, survey);
    return false;
  }
  survey->has_redirects |= planned.is_redirect() || has_members(handle_of(params));
  survey->has_observed |= launch.outcome == Outcome::observed && launch.candidate != nullptr;
  return add_owner(params, &survey->owners);
}

}  // namespace

bool Survey::take(CUgraph graph) {
  size_t count = 0;
  if (!for_each_kernel(graph, &has_uncopied, [&count](CUgraph, CUgraphNode) {
        ++count;
        return true;
      })) {
    return false;
  }
  if (count == 0 || !nodes.allocate(count) || !host_nodes.allocate(count) ||
      !counters.allocate(count)) {
    return false;
  }
  const ReadSection section;
  size_t index = 0;
  const bool is_whole = for_each_kernel(graph, &has_uncopied, [&](CUgraph, CUgraphNode node) {
    return index < count && survey_node(node, index++, this);
  });
  if (!is_whole || index != count) return false;
  qsort(host_nodes.begin(), count, sizeof(HostNode), compare);
  return true;
}

bool add_owner(const NodeParams& params, Block<uintptr_t>* owners) {
  const uintptr_t slot = find_handle(handle_of(params));
  const uintptr_t owner = slot == 0 ? 0 : entry_of(slot)->owner;
  for (const uintptr_t one : *owners) {
    if (one == owner) return true;
  }
  uintptr_t* const added = owners->append();
  if (added != nullptr) *added = owner;
  return added != nullptr;
}

bool has_updatable_nodes(CUgraph graph) {
  bool has_uncopied = false;
  return !for_each_kernel(graph, &has_uncopied, [](CUgraph, CUgraphNode node) {
    return !is_device_updatable_node(node);
  });
}

size_t find_host_node(const Block<HostNode>& nodes, CUgraphNode node) {
  size_t low = 0;
  size_t high = nodes.count();
  while (low < high) {
    const size_t middle = (low + high) / 2;
    if (nodes[middle].node == node) return nodes[middle].index;
    if (reinterpret_cast<uintptr_t>(nodes[middle].node) < reinterpret_cast<uintptr_t>(node)) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return SIZE_MAX;
}

}  // namespace fibshim
