#include "shim/graphs/survey.h"

#include <stdlib.h>

#include "shim/base/read_section.h"
#include "shim/launch/eager_plan.h"
#include "shim/launch/recording.h"
#include "shim/launch/rewrite_plan.h"
#include "shim/launch/shadow_rules.h"
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

// The kernel nodes of a graph and its child graphs, in the driver's order; and all these graphs.
struct Contents {
  Growing<CUgraphNode> kernels;
  Growing<CUgraph> graphs;
  bool has_uncopied = false;

  // False: the driver does not tell, or there is no memory.
  bool list(CUgraph graph) {
    Block<CUgraphNode> nodes;
    CUgraph* const added = graphs.add();
    if (added == nullptr || !list_nodes(graph, &nodes)) return false;
    *added = graph;
    for (const CUgraphNode node : nodes) {
      CUgraphNodeType type;
      CUgraph child = nullptr;
      if (!find_type(node, &type)) return false;
      switch (type) {
        case CU_GRAPH_NODE_TYPE_KERNEL: {
          CUgraphNode* const kernel = kernels.add();
          if (kernel == nullptr) return false;
          *kernel = node;
          break;
        }
        case CU_GRAPH_NODE_TYPE_GRAPH:
          if (!find_child(node, &child) || !list(child)) return false;
          break;
        case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
        case CU_GRAPH_NODE_TYPE_MEM_FREE:
        case CU_GRAPH_NODE_TYPE_CONDITIONAL: has_uncopied = true; break;
        default: break;
      }
    }
    return true;
  }
};

// Two kernels, by their indexes: the second waits for the whole of the first.
struct PlainEdge {
  size_t from;
  size_t to;
};

class Surveyor {
 public:
  Surveyor(const Contents& contents, Survey* survey) : contents_(contents), survey_(*survey) {}

  bool run() {
    if (!waits_.allocate(contents_.kernels.count())) return false;
    for (size_t i = 0; i < contents_.kernels.count(); ++i) {
      if (!look_at(contents_.kernels[i], i)) return false;
    }
    // A replacement that waits by itself may begin early behind another (early_nodes.h).
    for (const PlainEdge& edge : edges_) {
      if (waits_[edge.from] && waits_[edge.to]) survey_.is_one_for_one = false;
    }
    return true;
  }

 private:
  bool look_at(CUgraphNode node, size_t index) {
    NodeParams params;
    if (!read_kernel(node, &params)) return false;
    if (!has_edges_ && is_tracked_kernel(handle_of(params))) read_edges();
    PlannedNode planned;
    plan_copied_node(node, params, &survey_.nodes[index].facts, &planned);
    survey_.counters[index] = planned.plan.counter;
    const LaunchPlan& launch = planned.plan.launch;
    if (launch.record != nullptr) {
      record_failed_plan(launch);
      record_node(params, launch);
    }
    if (launch.action == LaunchAction::fail) {
      fail_survey(planned, &survey_);
      return false;
    }
    survey_.has_members |= has_members(handle_of(params));
    survey_.has_redirects |= planned.is_redirect();
    survey_.has_observed |= launch.outcome == Outcome::observed && launch.candidate != nullptr;
    if (planned.is_redirect()) {
      const Solution& solution = solution_of(planned.plan);
      waits_[index] = solution.waits_for_previous != 0;
      survey_.is_always_checked |= shadow_interval(*launch.decision->snapshot, solution) == 1;
      // Packed arguments could not be set back as they were.
      survey_.is_one_for_one &= planned.has_plain_shape() && params.extra == nullptr;
    }
    return add_owner(params, &survey_.owners);
  }

  // Of all nodes at once: each by itself is several driver calls.
  void read_edges() {
    has_edges_ = true;
    bool is_known = true;
    for (const CUgraph graph : contents_.graphs) {
      GraphEdges edges;
      is_known = is_known && edges.read(graph);
      for (size_t i = 0; is_known && i < edges.data.count(); ++i) {
        is_known = add_edge(find_host_node(survey_.host_nodes, edges.from[i]),
                            find_host_node(survey_.host_nodes, edges.to[i]), edges.data[i]);
      }
    }
    for (KernelNode& node : survey_.nodes) {
      node.facts.edges.is_known = is_known;
      node.facts.has_edges = true;
    }
  }

  // False: no memory.
  bool add_edge(size_t from, size_t to, const CUgraphEdgeData& data) {
    if (is_plain_edge(data)) {
      if (from == SIZE_MAX || to == SIZE_MAX) return true;
      PlainEdge* const added = edges_.add();
      if (added != nullptr) *added = {from, to};
      return added != nullptr;
    }
    const bool is_early = is_early_edge(data);
    if (to != SIZE_MAX) {
      NodeEdges& edges = survey_.nodes[to].facts.edges;
      (is_early ? edges.begins_early : edges.has_other_ports) = true;
    }
    if (from != SIZE_MAX && !is_early) survey_.nodes[from].facts.edges.has_other_ports = true;
    return true;
  }

  const Contents& contents_;
  Survey& survey_;
  Block<bool> waits_;  // its replacement, by itself
  Growing<PlainEdge> edges_;
  bool has_edges_ = false;
};

}  // namespace

bool Survey::take(CUgraph graph) {
  Contents contents;
  if (!contents.list(graph)) return false;
  has_uncopied = contents.has_uncopied;
  // may_be_rewritten() takes no child graphs.
  is_one_for_one = contents.graphs.count() == 1;
  const size_t count = contents.kernels.count();
  if (count == 0 || !nodes.allocate(count) || !host_nodes.allocate(count) ||
      !counters.allocate(count)) {
    return false;
  }
  for (size_t i = 0; i < count; ++i) {
    host_nodes[i] = {contents.kernels[i], static_cast<uint32_t>(i)};
  }
  qsort(host_nodes.begin(), count, sizeof(HostNode), compare);
  const ReadSection section;
  return Surveyor(contents, this).run();
}

bool Survey::has_updatable_nodes() const {
  for (const HostNode& node : host_nodes) {
    if (is_device_updatable_node(node.node)) return true;
  }
  return false;
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
