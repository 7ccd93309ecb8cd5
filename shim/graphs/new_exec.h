// Instantiation of an executable graph, and its update from another graph (cuGraphExecUpdate).
//
// The host's own call is made with its own arguments. If only parameters of nodes change, these are
// set in the graph before the call and set back after it. Otherwise the host's exec is made from
// its unchanged graph, and an exec of a rewritten copy is made, which runs in its place. If
// anything fails on the way, the host's exec runs.
#pragma once

#include "shim/graphs/node_swap.h"

namespace fibshim {

// The host's graph, from before the host's call until the driver has returned.
class HostGraph {
 public:
  explicit HostGraph(CUgraph graph) : graph_(graph) {}

  // Plans the graph and replaces what can be replaced in place. `updated`: the exec that takes it
  // over; null: a new exec is made from it.
  void prepare(const Instantiation& instantiation, Exec* updated);
  // Puts the graph's own kernels back; then is_in_place() is false. Returns true if it held
  // replacements.
  bool undo_replacements();

  // The same of the bodies of its conditional nodes alone.
  void prepare_bodies(const Instantiation& instantiation);
  // Call after it was instantiated.
  void count_body_nodes() const;

  CUgraph get() const { return graph_; }
  Survey& survey() { return survey_; }
  const Survey& survey() const { return survey_; }
  bool is_known() const { return is_known_; }  // the survey is complete
  // Not CUDA_SUCCESS: the host gets this, and its call is not made.
  CUresult failure() const {
    return survey_.failure == CUDA_SUCCESS ? bodies_.failure : survey_.failure;
  }
  // True if the exec that is made from it, or takes it over, holds replacements or could.
  bool is_in_place() const { return is_in_place_; }
  // True if no solution serves it now, but one of another folder may.
  bool is_kept() const { return is_kept_; }
  // Keeps a copy of the graph for swaps, in the exec that was made from it.
  void keep(Exec* exec);
  // The same for an exec that takes it over, whose copy may be reused.
  void keep_update(Exec* exec);

  // After the driver has answered.
  void put_back() {
    (void)swap_.put_back();
    (void)swap_of_bodies_.put_back();
  }

 private:
  CUgraph graph_;
  bool is_known_ = false;
  bool is_in_place_ = false;
  bool is_kept_ = false;
  uint64_t generation_ = 0;  // number of the generation by which it was planned
  Survey survey_;
  NodeSwap swap_;
  Survey bodies_;
  NodeSwap swap_of_bodies_;
};

class NewExec {
 public:
  NewExec(CUgraph graph, const Instantiation& instantiation);

  // Not CUDA_SUCCESS: the host gets this, and its call is not made.
  CUresult failure() const { return graph_.failure(); }
  // Call after the driver refused. True: replacements may be the reason; make the call once more.
  bool undo_replacements() { return graph_.undo_replacements(); }
  // Returns `result`, the driver's. `handle` may be null, and is read only after success.
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

  CUresult failure() const { return graph_.failure(); }
  bool undo_replacements() { return graph_.undo_replacements(); }
  CUresult finish(CUresult result);

 private:
  Exec* exec_;
  HostGraph graph_;
};

// Call after the host's own exec was destroyed. `exec`: what remove_exec() returned before; null:
// unknown.
CUresult finish_end(CUresult result, Exec* exec);

}  // namespace fibshim
