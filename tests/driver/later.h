// Launches of executable graphs that run later than they were made (SIMCUDA_LATER).
#pragma once

#include "tests/driver/graph.h"

namespace simcuda {

bool runs_later();

// Called before every call: runs all waiting launches if the call may see what they do.
void run_before(Api api);
// Runs the stream's waiting launches and those that they wait for.
void run_stream(const Stream& stream);

// Queues a launch of `exec` or, without `graph`, an upload, after what waits in the stream and
// after earlier launches of `exec`. Must be called without locks.
void put_off(GraphExec* exec, Graph* graph, const Origin& origin, Stream* stream, CUstream handle);

// Returns the nodes of a graph in an order that its edges permit; runs one of them (graph.cc).
std::vector<Node*> order_of(const Graph& graph);
CUresult run_node(const Node& node, const Origin& origin, const Stream& stream, CUstream handle);

}  // namespace simcuda
