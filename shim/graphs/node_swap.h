// Replacements in the host's own nodes, for as long as one call of the driver lasts: the exec that the call makes, or
// changes, has them then, and there need not be another.
#pragma once

#include "shim/graphs/survey.h"

namespace fibshim {

// Sets the nodes of a graph that can be replaced by their parameters alone, and back. The rest keeps its original, and
// counts as fallback_graph.
class NodeSwap {
 public:
  NodeSwap() = default;
  ~NodeSwap() { (void)put_back(); }
  NodeSwap(const NodeSwap&) = delete;
  NodeSwap& operator=(const NodeSwap&) = delete;

  // `survey`: of the graph; what is not replaced is changed in it. `written`: holds the nodes' parameters; null: they are read.
  // Within the survey's read section.
  void replace(Survey* survey, const TakenOver* written);
  // False: there was nothing.
  bool put_back();

 private:
  struct Kept;
  // Return the solution (VariantNode); 0: the original stays.
  uint32_t replace_node(const HostNode& host, Survey* survey);
  uint32_t replace_written(const HostNode& host, Survey* survey);
  Kept* kept_ = nullptr;
  Growing<HostNode> replaced_;  // whose parameters are written
  const TakenOver* written_ = nullptr;
};

// Plans a node for parameters that the host sets in an exec. Within a read section.
void plan_in_exec(CUgraphNode node, const NodeParams& params, NodeFacts* facts, PlannedNode* out);

}  // namespace fibshim
