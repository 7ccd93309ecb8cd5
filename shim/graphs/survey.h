// Examines a host's graph: its kernel nodes, and the plan of each.
#pragma once

#include "shim/graphs/exec_table.h"

namespace fibshim {

struct Survey {
  Block<KernelNode> nodes;
  Block<HostNode> host_nodes;
  Block<CounterIndex> counters;  // of each node, as planned
  Block<uint32_t> solutions;     // of nodes replaced in place, as in VariantNode; empty: none is
  Block<KeptPlan> plans;         // of each node, if the plan can be kept
  uint64_t plans_changes = 0;    // handle_changes() before the plans were made
  Block<uintptr_t> owners;
  bool has_redirects = false;
  bool has_members = false;        // kernels of rewrites
  bool has_observed = false;       // redirects that the mode prevents
  bool has_uncopied = false;       // nodes that cuGraphClone refuses
  bool is_always_checked = false;  // each launch is to run the originals (FIBSHIM_SHADOW=1/1)
  bool is_one_for_one = true;      // every replacement differs from its original only in parameters
  CUresult failure =
      CUDA_SUCCESS;  // what the host's call must return, if a solution cannot be loaded

  // The updated exec needs no copy of the graph (taken_over.h).
  bool is_written = false;
  // Then, for each node: it may have other values than the kept originals.
  Block<bool> is_changed;
  // Call if the exec needs a copy after all. Attributes that were read from the kept copy do not
  // apply to the new one.
  void forget_written();

  // Its nodes lie in bodies of conditional nodes: nobody knows how often they run.
  bool is_of_bodies = false;
  CountKind kind() const { return is_of_bodies ? CountKind::body_node : CountKind::node; }

  size_t examined_count = 0;  // nodes recorded already, which a second run does not record again

  // Examines every kernel node and counts failures. Returns false if the driver refuses to describe
  // the graph or there is no memory; then the graph is not changed. `updated`: the exec that takes
  // the graph over if its copy may be used, else null. Requires a read section.
  bool examine(CUgraph graph, Exec* updated);
  // The same for the kernel nodes in bodies of its conditional nodes, at any depth. Returns false also if there are none.
  bool examine_bodies(CUgraph graph);
  // A plan makes the host's call fail.
  void fail(const PlannedNode& planned);
  // True if the device itself may change nodes: then no kernel of the graph may be replaced.
  bool has_updatable_nodes() const;

  struct Contents;

 private:
  bool run(const Contents& contents, Exec* updated);
  void forget();
};

// Adds the module or library, and the context, that a node's kernel dies with. False: no memory.
bool add_owner(const NodeParams& params, Block<uintptr_t>* owners);
bool add_owner(uintptr_t owner, Block<uintptr_t>* owners);

}  // namespace fibshim
