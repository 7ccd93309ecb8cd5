// Rewrite patterns: several kernel nodes of a copied graph become one if the graph proves that this
// makes no visible difference (plan/rewrite_rules.h). In doubt they are left unchanged, and
// counted.
//
// Requires a read section. Reads parameters of the originals, whose nodes are not changed, and
// changes the copy.
#pragma once

#include "shim/graphs/early_nodes.h"
#include "shim/graphs/variant.h"
#include "shim/launch/rewrite_plan.h"

namespace fibshim {

// A kernel node of the copy. Listed by its index among the originals' kernels.
struct CopiedKernel {
  CUgraph graph;
  CUgraphNode node;
  bool is_certain;       // it is in the graph itself, not in a child graph
  bool is_taken;         // it belongs to a rewrite
  CounterIndex refused;  // its counter if no pattern fits it by itself; kNoCounter: as planned
};

enum class Absorbed : uint8_t {
  none,
  some,
  failed,  // the copy is partly changed and unusable
};

// True if some kernels of a graph without child graphs may become one. `nodes`: the graph's own
// kernel nodes, which also stand for their copies.
bool may_be_rewritten(CUgraph graph, const Block<KernelNode>& nodes);

// Applies rewrites to the copy. `rewritten`: gets the nodes that run, by index. Counts the nodes
// that it has rewritten in `variant`.
Absorbed absorb_kernels(const Originals& originals, CUgraph copy,
                        const Block<CopiedKernel>& kernels, Variant* variant,
                        const Block<RewrittenNode>& rewritten);

}  // namespace fibshim
