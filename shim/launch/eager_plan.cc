#include "shim/launch/eager_plan.h"

#include "shim/base/read_section.h"
#include "shim/counters/counters.h"
#include "shim/launch/decide.h"
#include "shim/launch/launch.h"
#include "shim/launch/learn.h"
#include "shim/launch/served_solutions.h"
#include "shim/launch/recording.h"
#include "shim/registry/decisions.h"
#include "shim/registry/devices.h"
#include "shim/registry/generation.h"
#include "shim/registry/handles.h"

namespace fibshim {
namespace {

constexpr CounterIndex kUntrackedCounter = counter_of(0, Outcome::untracked);

// Returns the handle's record; learns the handle if needed. Null: no pattern fits it, or the driver
// does not know it; `*counter` then counts the launch.
const Record* find_record(const void* handle, CounterIndex* counter) {
  uintptr_t slot = find_handle(handle);
  if (slot == 0 || (slot & kUnmatched) != 0) slot = learn_stranger(handle);
  // Without a generation there are no counters: the shim is off.
  *counter = slot != 0 || has_generation() ? kUntrackedCounter : kNoCounter;
  return slot == 0 || (slot & kUntracked) != 0 ? nullptr : entry_of(slot)->record;
}

Mode mode_of(const Record& record) {
  return record.candidate_count == 0 ? Mode::apply : record.candidates[0].generation->mode;
}

}  // namespace

CounterIndex counter_of_plan(const LaunchPlan& plan) {
  if (plan.action == LaunchAction::redirect) return plan.decision->counter;
  if (plan.candidate == nullptr) return kUntrackedCounter;
  return counter_of(
      plan.decision == nullptr ? unresolved_series(*plan.candidate) : plan.decision->series,
      plan.outcome);
}

CounterIndex plan_uncounted(LaunchRequest* request, LaunchPlan* plan) {
  CounterIndex untracked = kNoCounter;
  const Record* const record = find_record(request->handle, &untracked);
  if (record == nullptr) {
    plan->action = LaunchAction::original;
    plan->outcome = Outcome::untracked;
    plan->record = nullptr;
    plan->arguments = nullptr;
    plan->candidate = nullptr;
    plan->decision = nullptr;
    return untracked;
  }
  plan_launch(*record, mode_of(*record), request, plan,
              [&](Candidate& candidate, int64_t* key) -> const Decision& {
                uint32_t count = candidate.pattern->key.count;
                if (record->kind == HandleKind::kernel && are_devices_told_apart()) {
                  key[count++] = device_key_of_launch(*request);
                }
                const Decision* const found = find_decision(candidate, key, count);
                return found != nullptr
                           ? *found
                           : decide(*record, &candidate, key, count, *request, &plan->uncached);
              });
  return counter_of_plan(*plan);
}

const Record* find_tracked(const void* handle) {
  CounterIndex untracked = kNoCounter;
  return find_record(handle, &untracked);
}

void record_failed_plan(const LaunchPlan& plan) {
  const bool has_failed = plan.outcome == Outcome::error || plan.outcome == Outcome::error_fallback;
  if (has_failed && mode_of(*plan.record) != Mode::observe) {
    record_failure(plan.decision->series, plan.decision->error);
  }
}

void plan_eager(LaunchRequest* request, LaunchPlan* plan) {
  const CounterIndex counter = plan_uncounted(request, plan);
  if (counter == kNoCounter || plan->action == LaunchAction::redirect) return;
  count(counter);
  record_failed_plan(*plan);
}

void refuse_redirect(LaunchPlan* plan) {
  plan->action = LaunchAction::original;
  plan->outcome = Outcome::fallback_refused;
  count(counter_of(plan->decision->series, plan->outcome));
}

void count_kept(const void* handle) {
  const ReadSection section;
  CounterIndex untracked = kNoCounter;
  const Record* const record = find_record(handle, &untracked);
  if (record == nullptr) {
    if (untracked != kNoCounter) count(untracked);
    return;
  }
  record_bare_launch(*record);
  if (record->candidate_count == 0) return count(kUntrackedCounter);
  count(counter_of(unresolved_series(record->candidates[0]), Outcome::fallback_refused));
}

}  // namespace fibshim
