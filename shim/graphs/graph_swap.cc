#include "shim/graphs/graph_swap.h"

#include "shim/base/read_section.h"
#include "shim/driver/context_scope.h"
#include "shim/graphs/exec_state.h"
#include "shim/graphs/make_variant.h"
#include "shim/graphs/shadow_exec.h"
#include "shim/launch/served_solutions.h"
#include "shim/registry/generation.h"

namespace fibshim {
namespace {

bool can_make_variant(const Exec& exec) {
  return exec.originals != nullptr && !exec.is_frozen && exec.ending == 0;
}

// Requires the exec's lock. True if its next launch would run a solution for whose series
// `is(series)`.
template <class Is>
bool runs_solution(const Exec& exec, const Is& is) {
  const Variant* variant = exec.ready.load(std::memory_order_acquire);
  if (variant == nullptr) variant = exec.running.load(std::memory_order_acquire);
  if (variant == nullptr) return false;  // the host has ended it
  for (const Run& run : variant->runs) {
    if (run.number != 0 && outcome_of_counter(run.counter) == Outcome::hit &&
        is(series_of_counter(run.counter))) {
      return true;
    }
  }
  return false;
}

// Requires the exec's lock. False: the exec runs as before.
bool prepare(Exec* exec) {
  const ContextScope scope(exec->context);
  if (!scope.is_current()) return false;
  const RelaxedCapture relaxed;
  const Originals originals = current_originals(exec);
  Variant* variant = nullptr;
  switch (make_rewritten(originals, &variant)) {
    case Made::failed: return false;
    case Made::unchanged: variant->exec = exec->host; break;
    case Made::rewritten:
      if (!instantiate_variant(originals, variant)) {
        end_variant(variant);
        return false;
      }
      upload_variant(*variant);
      break;
  }
  drop_shadow(exec);
  for (KernelNode& node : exec->nodes) node.has_no_check = false;
  // Do this before a launch can run the variant.
  if (keep_unreplaced(exec, *variant)) upload_variant(*exec->unreplaced.load());
  end_variant(exec->ready.exchange(variant, std::memory_order_acq_rel));
  exec->asks.fetch_or(kHasReady, std::memory_order_release);
  return true;
}

}  // namespace

MovedGraphs prepare_graphs() {
  MovedGraphs out = {};
  PinnedExecs execs;
  for (size_t i = 0; i < execs.count(); ++i) {
    Exec* const exec = execs[i];
    MutexGuard guard(exec->lock);
    const ReadSection section;
    const Generation* const generation = current_generation();
    const uint32_t quarantines = quarantine_count();
    if (generation == nullptr) continue;
    const bool can_move = can_make_variant(*exec);
    if (exec->tried != generation->number) {
      exec->tried = generation->number;
      if (can_move && prepare(exec)) {
        ++out.moved;
      } else if (can_move || runs_solution(*exec, [](uint32_t) { return true; })) {
        ++out.kept;
      }
    } else if (can_move && exec->tried_quarantines != quarantines &&
               runs_solution(*exec, is_series_quarantined)) {
      (void)prepare(exec);
    }
    exec->tried_quarantines = quarantines;
  }
  return out;
}

}  // namespace fibshim
