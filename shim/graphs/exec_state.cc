#include "shim/graphs/exec_state.h"

#include "shim/base/log.h"
#include "shim/driver/driver.h"
#include "shim/launch/eager_plan.h"
#include "shim/registry/decisions.h"

namespace fibshim {

Originals current_originals(Exec* exec) {
  // If its kernels may have died, the values cannot be set.
  const bool is_current =
      !exec->taken_over.is_behind() || (!exec->is_frozen && exec->taken_over.bring_up_to_date());
  if (!is_current) {
    log_message(LogLevel::info, "the copy of a graph cannot be given what its exec has taken over");
  }
  return {is_current ? exec->originals : nullptr,
          exec->nodes,
          exec->disabled_others,
          exec->instantiation,
          !exec->has_set_nodes,
          exec->is_in_place};
}

void drop_originals(Exec* exec) {
  const auto destroy = FIBSHIM_REAL(cuGraphDestroy);
  if (exec->originals != nullptr && destroy != nullptr) (void)destroy(exec->originals);
  exec->originals = nullptr;
  exec->taken_over.forget();
  (void)exec->children.allocate(0);
  for (KernelNode& node : exec->nodes) node.kept = nullptr;
}

Variant* switch_running(Exec* exec, Variant* variant) {
  Variant* const before = exec->running.exchange(variant, std::memory_order_acq_rel);
  follow_interval(exec);
  if (exec->is_in_place && before->is_host() && !variant->is_host()) {
    exec->idle = before;
    return nullptr;
  }
  // The variant that was launched last is ended later, after a launch of the next one has waited
  // for it.
  return before == exec->last.variant ? nullptr : before;
}

void run_variant(Exec* exec, Variant* variant) { end_variant(switch_running(exec, variant)); }

namespace {

// True if launches that are to be checked can run the originals. Also true if none are kept; then
// they are counted as not checked.
bool can_run_originals(const Exec& exec) {
  return !exec.is_in_place || exec.originals == nullptr ||
         exec.unreplaced.load(std::memory_order_relaxed) != nullptr;
}

}  // namespace

// The watcher and a launch may call this concurrently. The second one sees both changes.
void follow_interval(Exec* exec) {
  const uint32_t interval = sample_interval_of(*exec->running.load(std::memory_order_relaxed));
  if (interval != 0 && can_run_originals(*exec)) {
    const uint32_t left = exec->sample_in.load(std::memory_order_relaxed);
    if (left == 0 || left > 2 * interval - 1) {
      exec->sample_in.store(draw_sample(interval), std::memory_order_relaxed);
    }
    exec->asks.fetch_or(kIsSampled, std::memory_order_relaxed);
  } else if ((exec->asks.load(std::memory_order_relaxed) & kIsSampled) != 0) {
    exec->asks.fetch_and(~kIsSampled, std::memory_order_relaxed);
  }
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (sample_interval_of(*exec->running.load(std::memory_order_relaxed)) != interval) {
    follow_interval(exec);
  }
}

void drop_ready_variant(Exec* exec) { end_variant(exec->ready.exchange(nullptr)); }

void drop_idle_variant(Exec* exec) {
  if (exec->idle != exec->last.variant) end_variant(exec->idle);
  exec->idle = nullptr;
}

void drop_shadow(Exec* exec) {
  if (exec->shadow.load(std::memory_order_relaxed) != nullptr) {
    end_variant(exec->shadow.exchange(nullptr));
  }
}

void drop_unreplaced(Exec* exec) {
  Variant* const unreplaced = exec->unreplaced.exchange(nullptr, std::memory_order_acq_rel);
  if (unreplaced == nullptr) return;
  follow_interval(exec);
  // The variant that was launched last is ended later, after a launch of the next one has waited
  // for it.
  if (unreplaced != exec->last.variant) end_variant(unreplaced);
}

Variant* make_host_variant(const Exec& exec, const Block<CounterIndex>& counters) {
  Variant* const variant = make_variant(exec.nodes.count());
  if (variant == nullptr) return nullptr;
  variant->exec = exec.host;
  for (size_t i = 0; i < exec.nodes.count(); ++i) {
    (void)count_node_as(variant, i, counters[i], exec.nodes[i].is_disabled);
  }
  return variant;
}

void run_host_exec(Exec* exec, GraphReason reason) {
  log_message(LogLevel::info, "a graph runs as it is from now on: %s", meaning_of(reason));
  drop_ready_variant(exec);
  drop_shadow(exec);
  drop_unreplaced(exec);
  drop_originals(exec);
  if (Variant* const idle = exec->idle) {
    exec->idle = nullptr;
    return run_variant(exec, idle);
  }
  if (exec->is_in_place) return follow_interval(exec);
  const Variant* const running = exec->running.load(std::memory_order_relaxed);
  Block<CounterIndex> counters;
  Variant* variant = nullptr;
  if (running->nodes.count() == exec->nodes.count() && counters.allocate(exec->nodes.count())) {
    for (size_t i = 0; i < counters.count(); ++i) {
      const CounterIndex counter = running->nodes[i].counter;
      counters[i] = counter == kNoCounter ? kNoCounter : keep_original(counter, reason);
    }
    variant = make_host_variant(*exec, counters);
  }
  // If there is no memory, use an empty variant, which needs the least: the exec runs, and its
  // nodes are not counted.
  if (variant == nullptr) variant = make_variant(0);
  if (variant == nullptr) return;
  variant->exec = exec->host;
  run_variant(exec, variant);
}

}  // namespace fibshim
