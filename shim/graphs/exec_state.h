// Changes what a host's exec runs. Requires the exec's lock, within a host's call about that exec.
#pragma once

#include "shim/graphs/exec_table.h"

namespace fibshim {

// Returns the originals with the values that the exec has taken over since they were copied. Their
// graph is null if the driver refuses these values; then no variant can be made.
Originals current_originals(Exec* exec);
void drop_originals(Exec* exec);

// Runs `variant` from the next launch on. Returns the previous variant if it is to be ended.
Variant* switch_running(Exec* exec, Variant* variant);
// The same, but ends the previous variant once no launch has to wait for it.
void run_variant(Exec* exec, Variant* variant);
// Call after the running variant has changed: launches are checked at its interval from then on.
void follow_interval(Exec* exec);
// Ends the variant that the watcher has prepared, if any.
void drop_ready_variant(Exec* exec);
// Ends Exec::idle: the host's exec has taken over another graph.
void drop_idle_variant(Exec* exec);
// Ends the sample that waits for its launch, if any.
void drop_shadow(Exec* exec);
// Ends Exec::unreplaced. No launch is checked until there is another.
void drop_unreplaced(Exec* exec);

// Runs the host's own exec from now on, and no swap reaches it. It keeps the replacements that it
// holds itself; if it holds none, what would have been a hit counts as fallback_graph, for `reason`.
void run_host_exec(Exec* exec, GraphReason reason);

// Makes a variant that runs the host's exec and counts each node by `counters`. Null: no memory.
Variant* make_host_variant(const Exec& exec, const Block<CounterIndex>& counters);

}  // namespace fibshim
