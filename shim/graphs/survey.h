// What a host's graph holds: its kernel nodes, and what would become of each.
#pragma once

#include "shim/graphs/exec_table.h"

namespace fibshim {

struct Survey {
  Block<KernelNode> nodes;
  Block<HostNode> host_nodes;
  Block<CounterIndex> counters;  // of each node, if it can be replaced
  Block<uint32_t> solutions;  // of those that are replaced in place (VariantNode); empty: none is
  Block<KeptPlan> plans;  // of nodes that keep their original, or of which parameters alone change
  uint64_t plans_changes = 0;  // handle_changes() before
  Block<uintptr_t> owners;
  bool has_redirects = false;
  bool has_members = false;        // kernels of rewrites
  bool has_observed = false;       // would be redirected, but for the mode
  bool has_uncopied = false;       // cuGraphClone refuses it
  bool is_always_checked = false;  // each launch is to run the originals (FIBSHIM_SHADOW=1/1)
  bool is_one_for_one = true;  // what is replaced differs from the original in its parameters alone
  CUresult failure =
      CUDA_SUCCESS;  // what the host's call is to return: a solution that cannot load

  // The updated exec needs no copy of the graph (taken_over.h).
  bool is_written = false;
  // Call when it needs one after all: the attributes that were read from the kept copy do not apply
  // to it.
  void forget_written();

  size_t examined_count = 0;  // nodes that were recorded: a second run does not record them again

  // Examines every kernel node, and counts failures. False: the driver refuses to describe the
  // graph, or memory is short; then the graph stays as it is. `updated`: the exec that takes the
  // graph over, if its copy may be used; else null. Within a read section.
  bool examine(CUgraph graph, Exec* updated);
  // No kernel of it may be replaced: the device itself changes its nodes.
  bool has_updatable_nodes() const;

  struct Contents;

 private:
  bool run(const Contents& contents, Exec* updated);
  void forget();
};

// Adds what a node's kernel dies with. False: no memory.
bool add_owner(const NodeParams& params, Block<uintptr_t>* owners);
bool add_owner(uintptr_t owner, Block<uintptr_t>* owners);

}  // namespace fibshim
