#include "shim/graphs/bodies.h"

#include "shim/base/hash_map.h"
#include "shim/base/mutex.h"
#include "shim/graphs/graph_nodes.h"

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

bool knows_bodies() {
  MutexGuard guard(g_lock);
  return g_bodies.count() != 0;
}

bool find_bodies(CUgraphNode node, const CUgraph** graphs, unsigned* count) {
  MutexGuard guard(g_lock);
  const Bodies* const found = g_bodies.get(reinterpret_cast<uintptr_t>(node));
  if (found == nullptr) return false;
  *graphs = found->graphs;
  *count = found->count;
  return true;
}

void lock_bodies_for_fork() { g_lock.lock(); }

void unlock_bodies_after_fork(bool is_child) { g_lock.unlock_after_fork(is_child); }

}  // namespace fibshim
