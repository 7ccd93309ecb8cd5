// The bodies of conditional nodes. They run unchanged, as often as the device decides, so their
// kernels are counted separately.
#pragma once

#include "shim/driver/cuda_names.h"

namespace fibshim {

// Call after a node was added. The driver reports the bodies of a conditional node only then.
void remember_bodies(CUgraphNode node, const CUgraphNodeParams& params);

// Counts the kernel nodes in the bodies of a graph's conditional nodes, at any depth. Call after
// the graph was instantiated.
void count_body_nodes(CUgraph graph);

}  // namespace fibshim
