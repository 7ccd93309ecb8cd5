#include "shim/launch/shadow_rules.h"

#include <atomic>
#include <fnmatch.h>
#include <string.h>

#include "shim/base/mutex.h"
#include "shim/base/settings_in_force.h"
#include "shim/plan/plan.h"
#include "shim/registry/decisions.h"

namespace fibshim {
namespace {

constexpr uint32_t kMaxRules = 32;

struct Rule {
  uint32_t interval;
  char glob[kMaxNameLength];
};

Mutex g_lock;
Rule g_rules[kMaxRules];  // newest first
std::atomic<uint32_t> g_rule_count{0};
std::atomic<uint32_t> g_number{0};
std::atomic<uint32_t> g_at_least{kShadowUnset};
std::atomic<bool> g_is_wanted{false};

uint32_t interval_of_decision(const Decision& decision) {
  return shadow_interval(*decision.snapshot, solution_of(decision));
}

}  // namespace

uint32_t shadow_interval(const Snapshot& snapshot, const Solution& solution) {
  uint32_t interval = shadow_interval_of(solution.shadow_interval);
  if (g_rule_count.load(std::memory_order_acquire) != 0) {
    MutexGuard guard(g_lock);
    const char* const definition = snapshot.text(solution.definition);
    for (uint32_t i = 0; i < g_rule_count; ++i) {
      if (fnmatch(g_rules[i].glob, definition, 0) != 0) continue;
      interval = g_rules[i].interval;
      break;
    }
  }
  const uint32_t at_least = g_at_least.load(std::memory_order_acquire);
  if (at_least != kShadowUnset && (interval == 0 || at_least < interval)) interval = at_least;
  if (interval != 0) g_is_wanted.store(true, std::memory_order_relaxed);
  return interval;
}

bool add_shadow_rule(const char* glob, uint32_t interval) {
  {
    MutexGuard guard(g_lock);
    if (strlen(glob) >= sizeof g_rules[0].glob) return false;
    if (strcmp(glob, "*") == 0) {
      g_rule_count = 0;
      g_at_least = kShadowUnset;
    }
    uint32_t at = 0;
    while (at < g_rule_count && strcmp(g_rules[at].glob, glob) != 0) ++at;
    if (at == kMaxRules) return false;
    memmove(&g_rules[1], &g_rules[0], at * sizeof g_rules[0]);
    if (at == g_rule_count) ++g_rule_count;
    strcpy(g_rules[0].glob, glob);
    g_rules[0].interval = interval;
  }
  apply_shadow_rules();
  return true;
}

void check_at_least(uint32_t interval) {
  g_at_least.store(interval, std::memory_order_release);
  apply_shadow_rules();
}

void begin_sampling(const Snapshot& snapshot, const Solution& solution, Decision* decision) {
  const uint32_t interval = shadow_interval(snapshot, solution);
  if (interval != 0) sample_decision(decision, interval);
}

void apply_shadow_rules() {
  g_number.fetch_add(1);
  sample_decisions(interval_of_decision);
}

uint32_t shadow_rules_number() { return g_number.load(); }

bool is_sampled(const Decision& decision) {
  if (__atomic_load_n(&decision.sample_in, __ATOMIC_RELAXED) == 0 || skip_sample(decision)) {
    return false;
  }
  uint32_t interval = interval_of_decision(decision);
  if (interval == 0) return false;
  // Draw again if the rate was changed meanwhile: the new rate must not be overwritten.
  for (uint32_t drawn_of = 0; interval != 0 && drawn_of != interval;) {
    __atomic_store_n(&const_cast<Decision&>(decision).sample_in, draw_sample(interval),
                     __ATOMIC_RELAXED);
    drawn_of = interval;
    interval = interval_of_decision(decision);
  }
  return true;
}

bool wants_shadow() { return g_is_wanted.load(std::memory_order_relaxed); }

void lock_shadow_rules_for_fork() { g_lock.lock(); }
void unlock_shadow_rules_after_fork(bool is_child) { g_lock.unlock_after_fork(is_child); }

}  // namespace fibshim
