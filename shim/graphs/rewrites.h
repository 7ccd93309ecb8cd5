// Rewrite patterns: several kernel nodes of a copied graph become one, where what is known of the graph proves that
// nobody can tell the difference (plan/rewrite_rules.h); anything doubtful stays as it is, and is counted.
//
// Within a read section. Reads parameters of the originals, whose nodes stay, and changes the copy.
#pragma once

#include "shim/graphs/early_nodes.h"
#include "shim/graphs/variant.h"
#include "shim/launch/rewrite_plan.h"

namespace fibshim {

// A kernel node of the copy, by its index among the originals'.
struct CopiedKernel {
  CUgraph graph;
  CUgraphNode node;
  bool is_certain;       // it lies in the graph itself, not in a child graph
  bool is_taken;         // a rewrite has it
  CounterIndex refused;  // counts as this if nothing else knows it; kNoCounter: as ever
};

enum class Absorbed : uint8_t {
  none,
  some,
  failed,  // the copy is half changed, and of no more use
};

// Whether some kernels of a graph without child graphs may become one. `nodes`: its own in the place of copies.
bool may_be_rewritten(CUgraph graph, const Block<KernelNode>& nodes);

// `rewritten`: gets what runs, by index. Counts, in `variant`, the nodes that it has rewritten.
Absorbed absorb_kernels(const Originals& originals, CUgraph copy,
                        const Block<CopiedKernel>& kernels, Variant* variant,
                        const Block<RewrittenNode>& rewritten);

// The launch of an instance in `variant`, of the generation in force, which runs in the node of the kernel `first`.
// `kernels`: gets all of them, in the rewrite's order. False: it is none, or it cannot be read.
bool read_instance(const Originals& originals, const Variant& variant, size_t first,
                   uint32_t (&kernels)[kMaxRewriteKernels], RewriteCall* call);

}  // namespace fibshim
