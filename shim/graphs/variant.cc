#include "shim/graphs/variant.h"

#include <utility>

#include "shim/base/settings_in_force.h"
#include "shim/driver/driver.h"
#include "shim/graphs/graph_edges.h"
#include "shim/launch/eager_plan.h"
#include "shim/launch/shadow_launch.h"
#include "shim/launch/shadow_rules.h"
#include "shim/registry/generation.h"

namespace fibshim {
namespace {

constexpr uint64_t kExecBytesPerNode = 3 << 10;  // measured on an H200 (tests/bench/RESULTS.md)
std::atomic<uint64_t> g_sample_bytes;            // of all variants that serve shadow checks

// The pool aligns blocks less than decisions are.
constexpr size_t kDecisionBytes = sizeof(KnownDecision) + alignof(KnownDecision);

Run* find_run(const Variant& variant, CounterIndex counter) {
  for (Run& run : variant.runs) {
    if (run.counter == counter) return &run;
  }
  return nullptr;
}

Run* find_unused_run(const Variant& variant) {
  for (Run& run : variant.runs) {
    if (run.number == 0) return &run;
  }
  return nullptr;
}

// Adds `by`, which may be negative, to the number of nodes that a launch counts as `counter`.
// False: no memory.
bool change_run(Variant* variant, CounterIndex counter, int by) {
  if (counter == kNoCounter) return true;
  Run* run = find_run(*variant, counter);
  if (run == nullptr) {
    run = find_unused_run(*variant);
    if (run == nullptr) run = variant->runs.append();
    if (run == nullptr) return false;
    *run = {counter, 0};
  }
  run->number += static_cast<uint32_t>(by);
  return true;
}

void end_graph(CUgraph graph) {
  const auto destroy = FIBSHIM_REAL(cuGraphDestroy);
  if (graph != nullptr && destroy != nullptr) (void)destroy(graph);
}

}  // namespace

Merges::~Merges() {
  for (void* const block : decisions) g_graph_pool.release(block, kDecisionBytes);
}

KnownDecision* Merges::decision_of(const Rewrite& rewrite) {
  const auto align = [](void* block) {
    const auto at = reinterpret_cast<uintptr_t>(block) + alignof(KnownDecision) - 1;
    return reinterpret_cast<KnownDecision*>(at / alignof(KnownDecision) * alignof(KnownDecision));
  };
  for (void* const block : decisions) {
    KnownDecision* const known = align(block);
    if (known->rewrite == &rewrite || known->rewrite == nullptr) return known;
  }
  void* const block = g_graph_pool.allocate(kDecisionBytes);
  void** const added = block == nullptr ? nullptr : decisions.add();
  if (added == nullptr) {
    g_graph_pool.release(block, kDecisionBytes);
    return nullptr;
  }
  *added = block;
  return align(block);
}

void Merges::swap(Merges& other) {
  all.swap(other.all);
  ranges.swap(other.ranges);
  decisions.swap(other.decisions);
  dead.swap(other.dead);
  std::swap(may_stay, other.may_stay);
}

Variant* make_variant(size_t node_count) {
  auto* const variant = static_cast<Variant*>(g_graph_pool.allocate(sizeof(Variant)));
  if (variant == nullptr) return nullptr;
  if (!variant->nodes.allocate(node_count)) {
    g_graph_pool.release(variant, sizeof *variant);
    return nullptr;
  }
  for (VariantNode& node : variant->nodes) node.counter = kNoCounter;
  return variant;
}

bool reserve_sample_room(Variant* variant) {
  const uint64_t bytes = variant->nodes.count() * kExecBytesPerNode;
  if (g_sample_bytes.fetch_add(bytes, std::memory_order_relaxed) + bytes > shadow_memory()) {
    g_sample_bytes.fetch_sub(bytes, std::memory_order_relaxed);
    return false;
  }
  variant->reserved_bytes = bytes;
  return true;
}

void end_variant(Variant* variant) {
  if (variant == nullptr) return;
  g_sample_bytes.fetch_sub(variant->reserved_bytes, std::memory_order_relaxed);
  const auto destroy = FIBSHIM_REAL(cuGraphExecDestroy);
  if (!variant->is_host()) {
    if (variant->exec != nullptr && destroy != nullptr) (void)destroy(variant->exec);
    end_graph(variant->graph);
  }
  for (Workspace* const workspace : variant->workspaces) release_workspace(workspace);
  for (const uint32_t check : variant->checks) end_check_in_graph(check, variant->was_launched);
  variant->~Variant();
  g_graph_pool.release(variant, sizeof *variant);
}

void end_variant_graph(Variant* variant) {
  end_graph(variant->graph);
  variant->graph = nullptr;
}

namespace {

// Returns VariantNode::workspace of one that another node has, or 0.
uint32_t find_shared(Variant* variant, const LaunchPlan& launch) {
  for (size_t i = 0; i < variant->workspaces.count(); ++i) {
    if (!suits(*variant->workspaces[i], launch)) continue;
    if (variant->order == Order::unknown) {
      variant->order = is_chain(variant->graph) ? Order::chain : Order::other;
    }
    return variant->order == Order::chain ? static_cast<uint32_t>(i + 1) : 0;
  }
  return 0;
}

}  // namespace

bool give_workspace(Variant* variant, size_t index, bool may_share, CUcontext context,
                    LaunchPlan* launch) {
  if (launch->workspace_bytes == 0) return true;
  VariantNode& node = variant->nodes[index];
  if (node.workspace == 0 || !suits(*variant->workspaces[node.workspace - 1], *launch)) {
    node.workspace = may_share ? find_shared(variant, *launch) : 0;
  }
  if (node.workspace == 0) {
    Workspace** const added = variant->workspaces.add();
    if (added == nullptr) return false;
    *added = make_workspace(context, *launch);
    if (*added == nullptr) {
      variant->workspaces.shorten(variant->workspaces.count() - 1);
      return false;
    }
    node.workspace = static_cast<uint32_t>(variant->workspaces.count());
  }
  put_workspace(variant->workspaces[node.workspace - 1]->address, launch);
  return true;
}

bool count_node_as(Variant* variant, size_t index, CounterIndex counter, bool is_disabled) {
  if (index >= variant->nodes.count()) return false;  // there was no memory for its nodes
  VariantNode& node = variant->nodes[index];
  if (!is_disabled) (void)change_run(variant, node.counter, -1);
  const bool is_fine = is_disabled || change_run(variant, counter, 1);
  node.counter = is_fine ? counter : kNoCounter;
  return is_fine;
}

void switch_node(Variant* variant, size_t index, bool is_disabled) {
  if (index >= variant->nodes.count()) return;  // there was no memory for its nodes
  VariantNode& node = variant->nodes[index];
  if (!change_run(variant, node.counter, is_disabled ? -1 : 1)) node.counter = kNoCounter;
}

uint32_t solution_number(const PlannedNode& planned) {
  return planned.is_redirect() ? planned.plan.launch.decision->binding->solution + 1 : 0;
}

void find_sample_interval(Variant* variant) {
  const Generation& generation = *current_generation();
  const bool is_known = variant->generation == generation.number;
  if (!is_known && (sample_interval_of(*variant) != 0 || !wants_shadow())) return;
  variant->rules = shadow_rules_number();
  const Snapshot& snapshot = *generation.snapshot;
  uint32_t interval = 0;
  uint32_t last = 0;
  for (const VariantNode& node : variant->nodes) {
    if (node.solution == 0 || node.solution == last) continue;
    if (!is_known) {
      interval = 1;
      break;
    }
    last = node.solution;
    const uint32_t own = shadow_interval(snapshot, snapshot.begin(snapshot.solutions)[last - 1]);
    if (own != 0 && (interval == 0 || own < interval)) interval = own;
  }
  __atomic_store_n(&variant->sample_interval, interval, __ATOMIC_RELAXED);
}

void count_nodes(const Variant& variant) {
  for (const Run& run : variant.runs) {
    if (run.number != 0) count_many(counter_of_kind(run.counter, CountKind::node), run.number);
  }
}

}  // namespace fibshim
