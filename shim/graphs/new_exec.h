// An executable graph is instantiated, or takes over another graph (cuGraphExecUpdate).
//
// The host's own call is made with its own arguments: its exec is the host's graph as it is, and stays so. Beside it an
// exec of a rewritten copy is made, which runs in its place. Whatever fails on the way there leaves the host's.
#pragma once

#include "shim/graphs/node_swap.h"

namespace fibshim {

// From before the host's call until the driver has answered.
class NewExec {
 public:
  NewExec(CUgraph graph, const Instantiation& instantiation);

  // Not CUDA_SUCCESS: the host gets this, and its call is not made.
  CUresult failure() const { return survey_.failure; }

  // Returns `result`, which is the driver's. `handle` is read only after success, and may be null.
  CUresult finish(CUresult result, const CUgraphExec* handle);

 private:
  CUgraph graph_;
  Instantiation instantiation_;
  bool is_on_ = false;
  bool is_known_ = false;  // the survey is whole
  Survey survey_;
  NodeSwap swap_;
};

class ExecUpdate {
 public:
  ExecUpdate(CUgraphExec handle, CUgraph graph);
  ~ExecUpdate();
  ExecUpdate(const ExecUpdate&) = delete;
  ExecUpdate& operator=(const ExecUpdate&) = delete;

  CUresult failure() const { return survey_.failure; }
  CUresult finish(CUresult result);

 private:
  Exec* exec_;
  CUgraph graph_;
  bool is_known_ = false;
  Survey survey_;
  NodeSwap swap_;
};

// After the host's own exec has ended. `exec`: what take_exec() gave before; null: not known.
CUresult finish_end(CUresult result, Exec* exec);

}  // namespace fibshim
