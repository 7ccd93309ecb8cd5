// The bodies of conditional nodes: graphs that run as often as the device decides. The driver names them once, when their
// node is added.
#pragma once

#include "shim/driver/cuda_names.h"

namespace fibshim {

// Call after a node was added. The driver reports the bodies of a conditional node only then.
void remember_bodies(CUgraphNode node, const CUgraphNodeParams& params);

// Whether the process has added any conditional node.
bool knows_bodies();

// The bodies of a conditional node, which are the driver's. False: they are not known.
bool find_bodies(CUgraphNode node, const CUgraph** graphs, unsigned* count);

// For the atfork handlers. Call before lock_graphs_for_fork().
void lock_bodies_for_fork();
void unlock_bodies_after_fork(bool is_child);

}  // namespace fibshim
