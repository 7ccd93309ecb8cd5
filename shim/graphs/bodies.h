// The bodies of conditional nodes. They run as they are, as often as the device decides: their kernels are counted apart.
#pragma once

#include "shim/driver/cuda_names.h"

namespace fibshim {

// A node was added: of a conditional one the driver tells the bodies now, and never again.
void remember_bodies(CUgraphNode node, const CUgraphNodeParams& params);

// A graph was instantiated: counts the kernel nodes in bodies of its conditional nodes, at any depth.
void count_body_nodes(CUgraph graph);

}  // namespace fibshim
