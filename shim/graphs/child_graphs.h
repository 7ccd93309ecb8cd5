// Child graphs that a host sets in an exec, followed in the originals. Requires the exec's lock.
#pragma once

#include "shim/graphs/exec_table.h"

namespace fibshim {

// Gives the copy of `node`, a child graph of the graph that the exec was made from, a copy of
// `child`, whose nodes are those of the child graph before, in their order (the driver has compared
// them). False: it cannot be done, and the originals are unusable.
bool replace_child(Exec* exec, CUgraphNode node, CUgraph child);

}  // namespace fibshim
