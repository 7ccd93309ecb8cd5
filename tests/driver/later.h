// Launches of executable graphs that have been made and have not run (SIMCUDA_LATER).
#pragma once

#include "tests/driver/graph.h"

namespace simcuda {

bool runs_later();

// What comes before a call that sees what launches have done: all of them run.
void run_before(Api api);
// What is in the stream, and what that waits for, runs.
void run_stream(const Stream& stream);

// A launch or, without `graph`, an upload of `exec` into a stream, behind what is in that and behind what `exec` is in.
// Holding no lock.
void put_off(GraphExec* exec, Graph* graph, const Origin& origin, Stream* stream, CUstream handle);

// The nodes of a graph in an order that its edges permit; and one of them runs (graph.cc).
std::vector<Node*> order_of(const Graph& graph);
CUresult run_node(const Node& node, const Origin& origin, const Stream& stream, CUstream handle);

}  // namespace simcuda
