// Changes what a host's exec runs. Holding the exec's lock, in a call of the host's about that exec.
#pragma once

#include "shim/graphs/exec_table.h"

namespace fibshim {

// The originals, with what the exec has taken over since they were copied. Their graph is null where the driver refuses that: then
// nothing can be made of them.
Originals current_originals(Exec* exec);
void drop_originals(Exec* exec);

// From the next launch on. Returns what ran before, if that is to be ended.
Variant* switch_running(Exec* exec, Variant* variant);
// The same. What ran before is ended once no launch waits for it. Holding the lock.
void run_variant(Exec* exec, Variant* variant);
// Call after the running variant changed: its launches are checked at its interval from then on.
void follow_interval(Exec* exec);
// Ends the variant that the watcher has made ready, if there is one.
void drop_ready_variant(Exec* exec);
// Ends Exec::idle: the host's exec has taken over another graph.
void drop_idle_variant(Exec* exec);
// Ends the sample that waits for its launch.
void drop_shadow(Exec* exec);
// Ends Exec::unreplaced. No launch is checked until there is another.
void drop_unreplaced(Exec* exec);

// The host's own exec, from now on, and no swap reaches it: it keeps the replacements that it holds itself; otherwise what
// would have been a hit counts as fallback_graph. `reason` goes to the log.
void run_host_exec(Exec* exec, const char* reason);

// A variant that runs the host's exec and counts each node as `counters` says. Null: no memory.
Variant* make_host_variant(const Exec& exec, const Block<CounterIndex>& counters);

}  // namespace fibshim
