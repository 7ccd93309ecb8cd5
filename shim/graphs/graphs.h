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
#ifndef FIBSHIM_SHIM_GRAPHS_GRAPHS_H_
#define FIBSHIM_SHIM_GRAPHS_GRAPHS_H_

#include <atomic>

#include "shim/driver/cuda_names.h"
#include "shim/launch/launch_path.h"

namespace fibshim {

using NodeParams = CUDA_KERNEL_NODE_PARAMS_v2;

// What a node must be made of in the original's place.
struct NodePlan {
  LaunchPlan launch;
  NodeParams params;  // the replacement's; valid while the plan lives
};

// Plans a node, counting what does not lead to a redirect. Returns the launch plan's action.
LaunchAction plan_node(const NodeParams& original, NodePlan* plan);

// The original of a redirected node, with arguments of its own.
struct SavedNode;

// Before such a node is made or set: copies `original`, and lets the replacement take its arguments
// from the copy. The host's may lie in the node itself, whose memory the driver gives up when the node
// is set. Null: no memory.
SavedNode* save_original(const NodeParams& original, NodePlan* plan);

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

// Before a redirected launch while captures are under way: what is to be remembered if its stream
// is capturing. Null: there is no memory for it, and the original must be launched.
SavedNode* save_launch(const LaunchRequest& request, const LaunchPlan& plan);

// After it has succeeded: if its stream is capturing, the node that it became is remembered.
void remember_captured_node(const LaunchRequest& request, SavedNode* saved);

// For the atfork handlers.
void lock_graphs_for_fork();
void unlock_graphs_after_fork(bool is_child);

}  // namespace fibshim

#endif  // FIBSHIM_SHIM_GRAPHS_GRAPHS_H_
