#include "shim/graphs/graph_swap.h"

#include "shim/base/read_section.h"
#include "shim/driver/context_scope.h"
#include "shim/graphs/exec_state.h"
#include "shim/graphs/make_variant.h"
#include "shim/launch/served_solutions.h"
#include "shim/registry/generation.h"

namespace fibshim {
namespace {

bool may_be_made(const Exec& exec) { return exec.originals != nullptr && !exec.is_fixed; }

// Whether a solution that runs in it is to be left alone, and was not when it was made.
bool has_quarantined(Exec* exec) {
  const uint32_t count = quarantine_count();
  if (exec->quarantines == count) return false;
  exec->quarantines = count;
  // What a launch takes over runs then, and what ran may be ended by nobody but this thread.
  const Variant* const running = exec->running.load(std::memory_order_acquire);
  for (const VariantNode& node : running->nodes) {
    if (node.solution != 0 && is_series_quarantined(series_of_counter(node.counter))) return true;
  }
  return false;
}

// Holding its lock. False: it keeps what it runs.
bool prepare(Exec* exec) {
  const ContextScope scope(exec->context);
  if (!scope.is_current()) return false;
  const RelaxedCapture relaxed;
  const Originals originals = originals_of(*exec);
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
    if (generation == nullptr || !may_be_made(*exec)) continue;
    if (exec->tried != generation->number) {
      exec->tried = generation->number;
      exec->quarantines = quarantine_count();
      ++(prepare(exec) ? out.moved : out.kept);
    } else if (has_quarantined(exec)) {
      (void)prepare(exec);
    }
  }
  return out;
}

}  // namespace fibshim
