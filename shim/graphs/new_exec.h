// An executable graph is instantiated, or takes over another graph (cuGraphExecUpdate).
//
// The host's own call is made with its own arguments. Where only parameters of nodes change, these are set in the graph
// before it and set back after it. Else its exec is the host's graph as it is, and stays so; beside it an exec of a
// rewritten copy is made, which runs in its place. Whatever fails on the way there leaves the host's.
#pragma once

#include "shim/graphs/node_swap.h"

namespace fibshim {

// The host's graph, from before the host's call until the driver has answered.
class HostGraph {
 public:
  explicit HostGraph(CUgraph graph) : graph_(graph) {}

  // Finds out what would become of it, and replaces what can be in place. `updated`: the exec that takes it over; null: one
  // is made of it.
  void prepare(const Instantiation& instantiation, Exec* updated);
  // Puts its own kernels back, after which is_in_place() is false. Returns true if it held
  // replacements.
  bool undo_replacements();

  CUgraph get() const { return graph_; }
  Survey& survey() { return survey_; }
  const Survey& survey() const { return survey_; }
  bool is_known() const { return is_known_; }  // the survey is whole
  // The exec that is made of it, or takes it over, holds replacements, or could.
  bool is_in_place() const { return is_in_place_; }
  // No solution is for it, but one of another folder may be.
  bool is_kept() const { return is_kept_; }
  // Keeps copies of what an exec was made of, for swaps.
  void keep(Exec* exec);
  // The same of an exec that takes it over, which may have a copy that will do.
  void keep_update(Exec* exec);

  // After the driver has answered.
  void put_back() { (void)swap_.put_back(); }

 private:
  CUgraph graph_;
  bool is_known_ = false;
  bool is_in_place_ = false;
  bool is_kept_ = false;
  uint64_t generation_ = 0;  // whose solutions it holds
  Survey survey_;
  NodeSwap swap_;
};

class NewExec {
 public:
  NewExec(CUgraph graph, const Instantiation& instantiation);

  // Not CUDA_SUCCESS: the host gets this, and its call is not made.
  CUresult failure() const { return graph_.survey().failure; }
  // Call after the driver refused. True: replacements may be the reason; make the call once more.
  bool undo_replacements() { return graph_.undo_replacements(); }
  // Returns `result`, which is the driver's. `handle` is read only after success, and may be null.
  CUresult finish(CUresult result, const CUgraphExec* handle);

 private:
  HostGraph graph_;
  Instantiation instantiation_;
  bool is_on_ = false;
};

class ExecUpdate {
 public:
  ExecUpdate(CUgraphExec handle, CUgraph graph);
  ~ExecUpdate();
  ExecUpdate(const ExecUpdate&) = delete;
  ExecUpdate& operator=(const ExecUpdate&) = delete;

  CUresult failure() const { return graph_.survey().failure; }
  bool undo_replacements() { return graph_.undo_replacements(); }
  CUresult finish(CUresult result);

 private:
  Exec* exec_;
  HostGraph graph_;
};

// After the host's own exec has ended. `exec`: what remove_exec() gave before; null: not known.
CUresult finish_end(CUresult result, Exec* exec);

}  // namespace fibshim
