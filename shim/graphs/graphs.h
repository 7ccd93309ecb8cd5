// Kernel nodes of CUDA graphs: redirected when they are made or set, given back as the host made
// them.
//
// A host may read a node's parameters, change one and set them again, and expects the kernel and
// the parameter order that it put in. So for every redirected node the original's parameters are
// kept, whether the node was added explicitly or came out of a stream capture, and reading the node
// gives those. Replays know nothing of this and cost nothing more.
//
// Slow path throughout: building graphs is not launching. Any thread; one mutex, never held across
// a driver call.
#pragma once

#include "shim/plan/plan.h"

namespace fibshim {

using NodeParams = CUDA_KERNEL_NODE_PARAMS_v2;

// The original of a redirected node, with arguments of its own.
struct SavedNode;

// Before such a node is made: a copy of `original`. Null: no memory.
SavedNode* save_node(const NodeParams& original, const LaunchPlan& plan);

// Afterwards: keeps it for reading, or gives it up. It may be null.
void remember_node(CUgraphNode node, SavedNode* saved);
void release_saved(SavedNode* saved);

// The original's parameters, in the copy: what the host gave may lie in the node that has been set
// since.
const NodeParams& saved_params(const SavedNode& saved);

// The parameters that the host gave, when `current`, which the driver reads from the node, is what
// we put there; false for every other node. The pointers stay valid until the node is set or
// destroyed.
bool find_original_params(CUgraphNode node, const NodeParams& current, NodeParams* original);

// The host gives a redirected node's original a cluster: kept for when the original comes back.
// False: not redirected.
bool keep_original_cluster(CUgraphNode node, const uint32_t (&cluster)[3]);

// True when the node has a cluster that is the replacement's, `replaced`; `original` is what to give
// it before another kernel takes its place.
bool find_replaced_cluster(CUgraphNode node, uint32_t (&original)[3], uint32_t (&replaced)[3]);

// True when the node runs a replacement that was remembered.
bool is_redirected_node(CUgraphNode node);

// After a graph was copied, by a clone or into a child graph node: what was kept of its nodes is kept
// of the copy's, too.
void remember_copy(CUgraph graph, CUgraph copy);
void remember_child_copy(CUgraph graph, CUgraphNode child_node);

// Whatever was kept of a node, or of all nodes of a graph that is about to be destroyed, those of
// child graphs among them.
void forget_node(CUgraphNode node);
void forget_graph(CUgraph graph);

// For the atfork handlers.
void lock_graphs_for_fork();
void unlock_graphs_after_fork(bool is_child);

}  // namespace fibshim
