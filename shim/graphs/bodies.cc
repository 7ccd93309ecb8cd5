#include "shim/graphs/bodies.h"

#include "shim/base/hash_map.h"
#include "shim/base/mutex.h"
#include "shim/base/read_section.h"
#include "shim/graphs/node_rewrite.h"
#include "shim/launch/eager_plan.h"

namespace fibshim {
namespace {

// The bodies of a conditional node. A later node with the same handle replaces the entry.
struct Bodies {
  uint64_t key;
  Bodies* next;
  const CUgraph* graphs;  // the driver's, as long as there is the node
  unsigned count;
};

constinit Mutex g_lock;
constinit HashMap<Bodies> g_bodies{&g_graph_pool};

bool find_bodies(CUgraphNode node, const CUgraph** graphs, unsigned* count) {
  MutexGuard guard(g_lock);
  const Bodies* const found = g_bodies.get(reinterpret_cast<uintptr_t>(node));
  if (found == nullptr) return false;
  *graphs = found->graphs;
  *count = found->count;
  return true;
}

void count_body_node(CUgraphNode node) {
  NodeParams params;
  PlannedNode planned;
  if (!read_kernel(node, &params)) return;
  NodeFacts facts = {};
  plan_copied_node(node, params, &facts, &planned);
  CounterIndex counter = planned.plan.counter;
  if (counter == kNoCounter) return;
  if (planned.is_redirect() || planned.plan.launch.action == LaunchAction::fail) {
    counter = counter_of(series_of_counter(counter), Outcome::fallback_graph);
  }
  count_many(counter_of_kind(counter, CountKind::body_node), 1);
}

void count_in(CUgraph graph, bool is_body) {
  Block<CUgraphNode> nodes;
  if (!list_nodes(graph, &nodes)) return;
  for (const CUgraphNode node : nodes) {
    CUgraphNodeType type;
    CUgraph child = nullptr;
    const CUgraph* bodies = nullptr;
    unsigned body_count = 0;
    if (!find_type(node, &type)) return;
    if (type == CU_GRAPH_NODE_TYPE_KERNEL && is_body) count_body_node(node);
    if (type == CU_GRAPH_NODE_TYPE_GRAPH && find_child(node, &child)) count_in(child, is_body);
    if (type == CU_GRAPH_NODE_TYPE_CONDITIONAL && find_bodies(node, &bodies, &body_count)) {
      for (unsigned i = 0; i < body_count; ++i) count_in(bodies[i], true);
    }
  }
}

}  // namespace

void remember_bodies(CUgraphNode node, const CUgraphNodeParams& params) {
  if (params.type != CU_GRAPH_NODE_TYPE_CONDITIONAL) return;
  MutexGuard guard(g_lock);
  const auto key = static_cast<uint64_t>(reinterpret_cast<uintptr_t>(node));
  Bodies* bodies = g_bodies.get(key);
  if (bodies == nullptr) {
    bodies = static_cast<Bodies*>(g_graph_pool.allocate(sizeof(Bodies)));
    if (bodies == nullptr) return;
    bodies->key = key;
    if (!g_bodies.insert(bodies)) return g_graph_pool.release(bodies, sizeof *bodies);
  }
  bodies->graphs = params.conditional.phGraph_out;
  bodies->count = params.conditional.size;
}

void count_body_nodes(CUgraph graph) {
  {
    MutexGuard guard(g_lock);
    if (g_bodies.count() == 0) return;
  }
  const ReadSection section;
  count_in(graph, false);
}

}  // namespace fibshim
