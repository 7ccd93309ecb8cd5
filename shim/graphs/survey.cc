#include "shim/graphs/survey.h"

#include <algorithm>

#include "shim/base/settings_in_force.h"
#include "shim/driver/context_scope.h"
#include "shim/graphs/bodies.h"
#include "shim/launch/eager_plan.h"
#include "shim/launch/recording.h"
#include "shim/launch/rewrite_plan.h"
#include "shim/launch/shadow_rules.h"
#include "shim/registry/generation.h"
#include "shim/registry/handles.h"
#include "shim/registry/modules.h"

namespace fibshim {

void Survey::fail(const PlannedNode& planned) {
  count_many(counter_of_kind(planned.plan.counter, kind()), 1);
  failure = planned.plan.launch.decision->error;
}

// The kernel nodes of a graph and its child graphs, in the driver's order; and all these graphs.
struct Survey::Contents {
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
          if (!kernels.add(node)) return false;
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

  // Lists the kernel nodes in bodies alone, and their graphs. False: as above.
  bool list_bodies(CUgraph graph, bool is_body) {
    Block<CUgraphNode> nodes;
    if (!list_nodes(graph, &nodes)) return false;
    if (is_body) {
      if (!graphs.add(graph)) return false;
    }
    for (const CUgraphNode node : nodes) {
      CUgraphNodeType type;
      CUgraph child = nullptr;
      const CUgraph* bodies = nullptr;
      unsigned body_count = 0;
      if (!find_type(node, &type)) return false;
      if (type == CU_GRAPH_NODE_TYPE_KERNEL && is_body) {
        if (!kernels.add(node)) return false;
      }
      if (type == CU_GRAPH_NODE_TYPE_GRAPH &&
          (!find_child(node, &child) || !list_bodies(child, is_body))) {
        return false;
      }
      if (type == CU_GRAPH_NODE_TYPE_CONDITIONAL && find_bodies(node, &bodies, &body_count)) {
        for (unsigned i = 0; i < body_count; ++i) {
          if (!list_bodies(bodies[i], true)) return false;
        }
      }
    }
    return true;
  }

  // Lists a graph whose nodes `same` has listed already. False: no memory.
  bool list_as_in(const TakenOver& same, CUgraph graph) {
    CUgraph* const added = graphs.add();
    if (added == nullptr || !kernels.reserve(same.kernel_count())) return false;
    *added = graph;
    for (size_t i = 0; i < same.kernel_count(); ++i) *kernels.add() = same.kernel(i);
    return true;
  }
};

namespace {

// Two kernels, by their indexes: the second waits for the whole of the first.
struct PlainEdge {
  size_t from;
  size_t to;
};

class Surveyor {
 public:
  // `updated`: the exec that takes the graph over, which is like the one that it has a copy of; null: none.
  Surveyor(const Survey::Contents& contents, Exec* updated, Survey* survey)
      : contents_(contents), updated_(updated), survey_(*survey) {}

  bool run() {
    survey_.plans_changes = handle_changes();
    const size_t count = contents_.kernels.count();
    if (!is_replaced_.allocate(count) || !waits_.allocate(count)) return false;
    if (updated_ != nullptr) {
      copy_facts();
      may_keep_plans_ = !is_recording() && updated_->taken_over.has_plans(survey_.plans_changes);
    }
    for (size_t i = 0; i < count; ++i) {
      if (!examine_node(contents_.kernels[i], i)) return false;
    }
    survey_.is_written = updated_ != nullptr;
    if (has_waiting_) survey_.is_one_for_one &= !has_waiting_pair();
    return true;
  }

 private:
  // A function in a context, with the answers that are the same for all of its nodes.
  struct Kernel {
    const void* handle;
    CUcontext context;  // NodeParams::ctx
    bool is_tracked;
  };

  // Null: no memory.
  const Kernel* find_kernel(const NodeParams& params) {
    const void* const handle = handle_of(params);
    Kernel& kernel = kernels_[first_place(reinterpret_cast<uintptr_t>(handle)) / kNextPlace %
                              (sizeof kernels_ / sizeof *kernels_)];
    if (kernel.handle == handle && kernel.context == params.ctx && handle != nullptr) {
      return &kernel;
    }
    kernel = {handle, params.ctx, is_tracked_kernel(handle)};
    survey_.has_members |= has_members(handle);
    return add_owner(params, &survey_.owners) ? &kernel : nullptr;
  }

  bool examine_node(CUgraphNode node, size_t index) {
    NodeParams params;
    const Kernel* const kernel = read_kernel(node, &params) ? find_kernel(params) : nullptr;
    if (kernel == nullptr) return false;
    if (kernel->is_tracked && !has_edges_) read_edges();
    bool is_same = false;
    if (updated_ != nullptr && !write(params, index, kernel->is_tracked, &is_same)) return false;
    if (updated_ != nullptr) {
      const bool is_as_kept = is_same && may_keep_plans_ && updated_->taken_over.is_behind();
      survey_.is_changed[index] = !is_as_kept;
    }
    if (!kernel->is_tracked) {
      survey_.counters[index] = has_generation() ? counter_of(0, Outcome::untracked) : kNoCounter;
      return true;
    }
    if (is_same && may_keep_plans_ && keep_plan_before(index)) return true;
    PlannedNode planned;
    plan_copied_node(node, params, &survey_.nodes[index].facts, &planned);
    survey_.counters[index] = planned.plan.counter;
    const LaunchPlan& launch = planned.plan.launch;
    if (launch.record != nullptr && index >= survey_.examined_count) {
      record_failed_plan(launch);
      uint32_t geometry[kGeometryCount];
      read_geometry(params, survey_.nodes[index].facts.attributes.cluster, geometry);
      record_node(geometry, launch);
    }
    if (index >= survey_.examined_count) survey_.examined_count = index + 1;
    if (launch.action == LaunchAction::fail) {
      survey_.fail(planned);
      return false;
    }
    survey_.has_redirects |= planned.is_redirect();
    survey_.has_observed |= launch.outcome == Outcome::observed && launch.candidate != nullptr;
    if (planned.is_redirect()) {
      record_solution(*launch.decision, index);
      // Packed arguments could not be set back as they were.
      survey_.is_one_for_one &= planned.has_plain_shape() && params.extra == nullptr;
    }
    survey_.plans[index] = keep_plan(planned.plan);
    survey_.plans[index].has_shape = !planned.has_plain_shape();
    return true;
  }

  void record_solution(const Decision& decision, size_t index) {
    const Solution& solution = solution_of(decision);
    is_replaced_[index] = true;
    waits_[index] = solution.waits_for_previous != 0;
    has_waiting_ |= waits_[index];
    survey_.is_always_checked |= shadow_interval(*decision.snapshot, solution) == 1;
  }

  // The plan that the same values had in the graph before. False: it is to be planned.
  bool keep_plan_before(size_t index) {
    const KeptPlan& kept = updated_->taken_over.plan(index);
    if (kept.decision == nullptr || is_quarantined(*kept.decision)) return false;
    survey_.plans[index] = kept;
    survey_.counters[index] = counter_of_kept(kept);
    survey_.examined_count = std::max(survey_.examined_count, index + 1);
    if (!kept.is_redirect()) return true;
    survey_.has_redirects = true;
    survey_.is_one_for_one &= !kept.has_shape;
    record_solution(*kept.decision, index);
    return true;
  }

  // Uses the facts of the kept copy: it has the same edges, and an update leaves attributes as they
  // are (driver_facts.md, section 8).
  void copy_facts() {
    has_edges_ = true;
    for (size_t i = 0; i < contents_.kernels.count(); ++i) {
      const NodeFacts& known = updated_->nodes[i].facts;
      survey_.nodes[i].facts = known;
      has_edges_ &= known.has_edges;
    }
  }

  // False: the graph is to be copied.
  bool write(const NodeParams& params, size_t index, bool is_tracked, bool* is_same) {
    if (is_tracked) (void)attributes_of(updated_->nodes[index].kept, &survey_.nodes[index].facts);
    return updated_->taken_over.write_kernel(index, params, is_same);
  }

  // A replacement that waits by itself may begin early behind another (early_nodes.h).
  bool has_waiting_pair() const {
    const auto is_pair = [this](size_t from, size_t to) {
      return from != SIZE_MAX && to != SIZE_MAX && is_replaced_[from] && waits_[to];
    };
    for (const PlainEdge& edge : edges_) {
      if (is_pair(edge.from, edge.to)) return true;
    }
    if (updated_ == nullptr) return false;
    const TakenOver& same = updated_->taken_over;
    for (const TakenOver::Edge& edge : same.edges()) {
      const bool is_one =
          is_plain_edge(edge.data) && is_pair(same.kernel_at(edge.from), same.kernel_at(edge.to));
      if (is_one) return true;
    }
    return false;
  }

  // Reads the edges of the whole graph at once: a node by itself takes several driver calls.
  void read_edges() {
    has_edges_ = true;
    bool is_known = true;
    if (updated_ != nullptr) {
      const TakenOver& same = updated_->taken_over;
      for (const TakenOver::Edge& edge : same.edges()) {
        is_known =
            is_known && add_edge(same.kernel_at(edge.from), same.kernel_at(edge.to), edge.data);
      }
      return set_edges_known(is_known);
    }
    for (const CUgraph graph : contents_.graphs) {
      GraphEdges edges;
      is_known = is_known && edges.read(graph);
      for (size_t i = 0; is_known && i < edges.data.count(); ++i) {
        is_known = add_edge(find_host_node(survey_.host_nodes, edges.from[i]),
                            find_host_node(survey_.host_nodes, edges.to[i]), edges.data[i]);
      }
    }
    set_edges_known(is_known);
  }

  void set_edges_known(bool is_known) {
    for (KernelNode& node : survey_.nodes) {
      node.facts.edges.is_known = is_known;
      node.facts.has_edges = true;
    }
  }

  // False: no memory.
  bool add_edge(size_t from, size_t to, const CUgraphEdgeData& data) {
    if (is_plain_edge(data)) {
      if (updated_ != nullptr || from == SIZE_MAX || to == SIZE_MAX) return true;
      return edges_.add(PlainEdge{from, to});
    }
    const bool is_early = is_early_edge(data);
    if (to != SIZE_MAX) {
      NodeEdges& edges = survey_.nodes[to].facts.edges;
      (is_early ? edges.begins_early : edges.has_other_ports) = true;
    }
    if (from != SIZE_MAX && !is_early) survey_.nodes[from].facts.edges.has_other_ports = true;
    return true;
  }

  const Survey::Contents& contents_;
  Exec* updated_;
  Survey& survey_;
  Block<bool> is_replaced_;
  Block<bool> waits_;         // its replacement, by itself
  Growing<PlainEdge> edges_;  // where no exec takes the graph over
  Kernel kernels_[64] = {};
  bool has_edges_ = false;
  bool has_waiting_ = false;
  bool may_keep_plans_ = false;  // those of the graph that the exec has taken over before
};

}  // namespace

bool Survey::examine(CUgraph graph, Exec* updated) {
  if (updated != nullptr && updated->taken_over.begin(graph, updated->originals, updated->nodes)) {
    Contents contents;
    if (contents.list_as_in(updated->taken_over, graph) && run(contents, updated)) return true;
    if (failure != CUDA_SUCCESS) return false;
    // A node is no kernel where the graph before had one, or its parameters cannot be written. By the attributes of the copy
    // before nothing may be planned then.
    forget();
  }
  Contents contents;
  return contents.list(graph) && run(contents, nullptr);
}

bool Survey::examine_bodies(CUgraph graph) {
  Contents contents;
  is_of_bodies = true;
  if (knows_bodies() && contents.list_bodies(graph, false) && run(contents, nullptr)) return true;
  (void)counters.allocate(0);
  return false;
}

void Survey::forget() {
  (void)owners.allocate(0);
  has_redirects = has_members = has_observed = is_always_checked = is_written = false;
}

void Survey::forget_written() {
  is_written = false;
  for (KernelNode& node : nodes) node.facts.has_attributes = false;
}

bool Survey::run(const Contents& contents, Exec* updated) {
  has_uncopied = contents.has_uncopied;
  // may_be_rewritten() takes no child graphs.
  is_one_for_one = contents.graphs.count() == 1;
  const size_t count = contents.kernels.count();
  if (updated != nullptr && !is_changed.allocate(count)) return false;
  if (count == 0 || !nodes.allocate(count) || !counters.allocate(count) || !plans.allocate(count)) {
    return false;
  }
  // The list is sorted for lookups by handle, which an exec that takes the graph over does not
  // need.
  const bool is_listed = updated == nullptr
                             ? sort_nodes(contents.kernels.begin(), count, &host_nodes)
                             : list_in_order(contents.kernels.begin(), count, &host_nodes);
  if (!is_listed) return false;
  return Surveyor(contents, updated, this).run();
}

bool Survey::has_updatable_nodes() const {
  for (const HostNode& node : host_nodes) {
    if (is_device_updatable_node(node.node)) return true;
  }
  return false;
}

bool add_owner(const NodeParams& params, Block<uintptr_t>* owners) {
  const uintptr_t slot = find_handle(handle_of(params));
  const HandleEntry* const entry = slot == 0 ? nullptr : entry_of(slot);
  CUcontext context = params.ctx;
  if (params.kern == nullptr) {
    context = entry == nullptr ? nullptr : entry->context;
  } else if (context == nullptr) {
    context = current_context();
  }
  uintptr_t owner = entry == nullptr ? 0 : entry->owner;
  if (const uintptr_t library = library_of_module(owner)) owner = library;
  return add_owner(owner, owners) &&
         add_owner(context == nullptr ? kUnknownContext : reinterpret_cast<uintptr_t>(context),
                   owners);
}

bool add_owner(uintptr_t owner, Block<uintptr_t>* owners) {
  for (const uintptr_t one : *owners) {
    if (one == owner) return true;
  }
  uintptr_t* const added = owners->append();
  if (added != nullptr) *added = owner;
  return added != nullptr;
}

}  // namespace fibshim
