// Sets replacements in the host's own nodes for the duration of one driver call. The exec that the
// call makes or changes then holds them, and no second exec is needed.
#pragma once

#include "shim/graphs/survey.h"

namespace fibshim {

// Sets the nodes of a graph whose replacement differs only in its parameters, and sets them back.
// The other nodes keep their originals and count as fallback_graph.
class NodeSwap {
 public:
  NodeSwap() = default;
  ~NodeSwap() { (void)put_back(); }
  NodeSwap(const NodeSwap&) = delete;
  NodeSwap& operator=(const NodeSwap&) = delete;

  // `survey`: of the graph; gets the outcome of nodes that are not replaced. `written`: holds the
  // nodes' parameters; null: they are read from the nodes. Requires the survey's read section.
  void replace(Survey* survey, const TakenOver* written);
  // Returns false if no node was replaced.
  bool put_back();

 private:
  struct Kept;
  // Return the solution, as in VariantNode, or 0 if the original stays.
  uint32_t replace_node(const HostNode& host, Survey* survey);
  uint32_t replace_written(const HostNode& host, Survey* survey);
  Kept* kept_ = nullptr;
  Growing<HostNode> replaced_;  // nodes whose original parameters are in `written_`
  const TakenOver* written_ = nullptr;
};

// Plans a node for parameters that the host sets in an exec. Requires a read section.
void plan_in_exec(CUgraphNode node, const NodeParams& params, NodeFacts* facts, PlannedNode* out);

}  // namespace fibshim
