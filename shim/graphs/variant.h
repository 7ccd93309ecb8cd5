// A variant is what a launch of a host's executable graph runs: the host's own exec, or an exec of
// a rewritten copy of its graph. It knows how often each outcome occurs in it.
#pragma once

#include "shim/counters/counters.h"
#include "shim/graphs/address_index.h"
#include "shim/graphs/node_rewrite.h"
#include "shim/launch/rewrite_plan.h"
#include "shim/launch/workspace.h"

namespace fibshim {

// A kernel node of the graph that a host's exec was made from, in the driver's order.
struct KernelNode {
  CUgraphNode kept;   // its copy among the originals; null: there is none
  bool is_certain;    // false: the copy may be another node's (for_each_copied_kernel)
  bool is_disabled;   // in the exec
  bool has_no_check;  // it cannot be checked, e.g. as it is unknown what it writes (shadow_exec.h)
  NodeFacts facts;    // of its copy, and of the host's node
};

struct VariantNode {
  CUgraphNode node;  // in `graph`; null if it was removed, or if another node runs in its place
  CounterIndex counter;
  NodeShape shape;
  uint32_t
      solution;  // 1 + the index of the solution that runs, in its snapshot; 0: the original runs
  uint32_t
      merge;      // 1 + the index in Merges::all of the kernels that it is one launch with; 0: none
  bool is_bound;  // other parameters of this kernel may let other rewrites fit than those of now
  uint32_t workspace;  // 1 + its index in Variant::workspaces; 0: none
};

// Whether the nodes of a graph run one after the other.
enum class Order : uint8_t { unknown, chain, other };

// Kernels that run as one.
struct Merge {
  uint32_t rewrite;                      // its index in the snapshot
  uint32_t kernels[kMaxRewriteKernels];  // by their indexes, in the rewrite's order
  uint32_t first_range;                  // of what they read and write
  uint32_t range_count;
};

// What runs as one in a variant, and what that was proved by.
struct Merges {
  Growing<Merge> all;
  Growing<BufferRange> ranges;
  AddressRanges dead;        // every buffer that some rewrite declares dead
  Growing<void*> decisions;  // blocks that hold one each, for changes
  // Known to be all: other parameters of kernels that are not bound, outside dead buffers and with
  // the same ranges, let the same kernels become one.
  bool may_stay = false;

  Merges() = default;
  ~Merges();
  Merges(const Merges&) = delete;
  Merges& operator=(const Merges&) = delete;
  void swap(Merges& other);
  // Returns the decision for launches of a rewrite, or an empty one. Null: no memory.
  KnownDecision* decision_of(const Rewrite& rewrite);
};

struct Run {
  CounterIndex counter;  // of launches
  uint32_t number;       // nodes that run and are counted there
};

struct Variant {
  CUgraphExec exec;
  CUgraph graph;             // rewritten; null: `exec` is the host's own
  uint64_t generation;       // number of the generation whose solutions it runs
  Block<VariantNode> nodes;  // one for each of the host's kernel nodes
  Block<Run> runs;
  Variant* next;  // in the list of variants to be ended
  bool is_buried;
  bool has_rewrites;  // some of its nodes run for several of the host's
  Merges merges;
  Growing<Workspace*> workspaces;
  Order order;  // where nodes may share workspaces
  uint32_t
      sample_interval;      // atomic: one of this many launches is checked (shadow_exec.h); 0: none
  uint32_t rules;           // number of the shadow rules from which sample_interval was found
  bool is_sample;           // it runs the originals
  bool was_launched;        // of a sample
  Block<uint32_t> checks;   // in a sample (launch/shadow_launch.h)
  uint64_t reserved_bytes;  // by reserve_sample_room()

  bool is_host() const { return graph == nullptr; }
};

// Makes a variant of `node_count` nodes. Null: no memory.
Variant* make_variant(size_t node_count);
// Reserves GPU memory for the exec of a variant that serves shadow checks: all of them together get
// as much as FIBSHIM_SHADOW_MEMORY. Returns false if too little is left; end_variant() releases it.
bool reserve_sample_room(Variant* variant);
// Frees the variant and its graph, and its exec unless that is the host's.
void end_variant(Variant* variant);
// Destroys only the variant's graph, after which the variant stands for the host's exec.
void end_variant_graph(Variant* variant);

// Completes the plan of a node's replacement by a workspace, if it needs one. `may_share`: the node
// lies in the variant's graph itself. `context`: of the kernel; null: the current one. Returns false
// if none can be had.
bool give_workspace(Variant* variant, size_t index, bool may_share, CUcontext context,
                    LaunchPlan* launch);
inline CUcontext context_of(const NodeParams& original, const LaunchPlan& plan) {
  return original.ctx != nullptr ? original.ctx : plan.record->context;
}
inline bool give_workspace(Variant* variant, size_t index, bool may_share, PlannedNode* planned) {
  NodePlan& plan = planned->plan;
  return !planned->is_redirect() ||
         give_workspace(variant, index, may_share, context_of(plan.params, plan.launch),
                        &plan.launch);
}

// Counts the node as `counter` from now on; kNoCounter: not at all. Returns false if there is no
// memory; the node is not counted then.
bool count_node_as(Variant* variant, size_t index, CounterIndex counter, bool is_disabled);
void switch_node(Variant* variant, size_t index, bool is_disabled);

// Returns VariantNode::solution of a planned node.
uint32_t solution_number(const PlannedNode& planned);

// Finds how often the variant's launches are to be checked, by the rules in force. A variant of an
// earlier generation keeps its interval. If it has none, since the process has moved while it was
// made, each launch is checked. Requires a read section.
void find_sample_interval(Variant* variant);
inline uint32_t sample_interval_of(const Variant& variant) {
  return __atomic_load_n(&variant.sample_interval, __ATOMIC_RELAXED);
}

// Returns the counter of a node that keeps its original: a planned hit counts as fallback_graph.
inline CounterIndex counter_of_unchanged(CounterIndex counter) {
  const Outcome outcome = outcome_of_counter(counter);
  return outcome == Outcome::hit || outcome == Outcome::absorbed
             ? counter_of(series_of_counter(counter), Outcome::fallback_graph)
             : counter;
}

// The same, and counts why. Not called by launches.
inline CounterIndex keep_original(CounterIndex counter, GraphReason reason) {
  const CounterIndex unchanged = counter_of_unchanged(counter);
  if (unchanged != counter) count_many(counter_of_kept_node(counter, reason), 1);
  return unchanged;
}

// Count one launch, or one instantiation.
inline void count_executions(const Variant& variant) {
  for (const Run& run : variant.runs) {
    if (run.number != 0) count_many(counter_of_kind(run.counter, CountKind::node_run), run.number);
  }
}
void count_nodes(const Variant& variant);

// How the host instantiated its exec.
struct Instantiation {
  unsigned long long flags;
  CUstream upload_stream;  // with CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD
  bool is_per_thread_stream;
};

// Everything needed to make a variant from the kept originals.
struct Originals {
  CUgraph graph;
  const Block<KernelNode>& nodes;
  const Block<CUgraphNode>& disabled_others;  // disabled nodes other than kernels, in `graph`
  Instantiation instantiation;
  bool may_be_rearranged;  // the host has set none of its nodes: early_nodes.h, rewrites.h
  bool needs_exec;         // the host's own exec holds replacements
};

}  // namespace fibshim
