// What a launch of a host's executable graph runs: the host's own exec, or one that was made of a rewritten copy of its
// graph; with how often each outcome is in it.
#pragma once

#include "shim/counters/counters.h"
#include "shim/graphs/node_rewrite.h"

namespace fibshim {

// A kernel node of the graph that a host's exec was made from, in the driver's order.
struct KernelNode {
  CUgraphNode kept;   // its copy among the originals; null: there is none
  bool is_certain;    // false: that copy may be another's (for_each_copied_kernel)
  bool is_disabled;   // in the exec
  bool has_no_check;  // what it writes is not known, or too large (shadow_exec.h)
  NodeFacts facts;    // of its copy, and of the host's node
};

struct VariantNode {
  CUgraphNode node;  // in `graph`; null if it was removed, or if another node runs in its place
  CounterIndex counter;
  NodeShape shape;
  uint32_t
      solution;  // that runs, one more than its index in the generation's snapshot; 0: the original does
  uint32_t rewrite;  // of which it is a kernel, one more than its index there; 0: of none
  uint32_t member;   // which one
};

struct Run {
  CounterIndex counter;  // of launches
  uint32_t number;       // nodes that run and count as that
};

struct Variant {
  CUgraphExec exec;
  CUgraph graph;             // rewritten; null: `exec` is the host's own
  uint64_t generation;       // whose solutions it runs
  Block<VariantNode> nodes;  // one for each of the host's kernel nodes
  Block<Run> runs;
  Variant* next;  // of those to be ended
  bool is_buried;
  bool has_rewrites;  // some of its nodes run for several of the host's
  uint32_t
      sample_interval;  // atomic: one of so many launches is to be checked (shadow_exec.h); 0: none
  uint32_t rules;       // the watcher's: those that were in force when that was found
  bool is_sample;       // it runs the originals
  bool was_launched;    // of a sample
  Block<uint32_t> checks;  // in a sample (launch/shadow_launch.h)

  bool is_host() const { return graph == nullptr; }
};

// Makes a variant of so many nodes. Null: no memory.
Variant* make_variant(size_t node_count);
// Ends the variant with its graph, and with its exec unless that is the host's.
void end_variant(Variant* variant);
// Ends the variant's graph alone, after which the variant stands for the host's exec.
void end_variant_graph(Variant* variant);

// Makes the node count as `counter` from now on; kNoCounter: not at all. False: no memory, and it
// is not counted.
bool count_node_as(Variant* variant, size_t index, CounterIndex counter, bool is_disabled);
void switch_node(Variant* variant, size_t index, bool is_disabled);

// The solution of a redirect.
uint32_t solution_number(const PlannedNode& planned);

// How often its launches are to be checked, by the rules in force. Of an earlier generation that stays; if it was not known,
// the process having moved while it was made, each is. Within a read section.
void find_sample_interval(Variant* variant);
inline uint32_t sample_interval_of(const Variant& variant) {
  return __atomic_load_n(&variant.sample_interval, __ATOMIC_RELAXED);
}

// The counter of a node that keeps its original: a planned hit counts as fallback_graph.
inline CounterIndex counter_of_unchanged(CounterIndex counter) {
  const Outcome outcome = outcome_of_counter(counter);
  return outcome == Outcome::hit || outcome == Outcome::absorbed
             ? counter_of(series_of_counter(counter), Outcome::fallback_graph)
             : counter;
}

// Count one launch, and one instantiation.
inline void count_executions(const Variant& variant) {
  for (const Run& run : variant.runs) {
    if (run.number != 0) count_many(counter_of_kind(run.counter, CountKind::node_run), run.number);
  }
}
void count_nodes(const Variant& variant);

// How the host had its exec made.
struct Instantiation {
  unsigned long long flags;
  CUstream upload_stream;  // with CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD
  bool is_per_thread_stream;
};

// Everything needed to make a variant of kept originals.
struct Originals {
  CUgraph graph;
  const Block<KernelNode>& nodes;
  const Block<CUgraphNode>&
      disabled_others;  // nodes that are no kernels and disabled, among the originals
  Instantiation instantiation;
  bool may_be_rearranged;  // the host has set none of its nodes: early_nodes.h, rewrites.h
  bool needs_exec;         // the host's own exec does not run them as they are
};

}  // namespace fibshim
