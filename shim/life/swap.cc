#include "shim/life/swap.h"

#include <atomic>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "shim/base/log.h"
#include "shim/base/settings_in_force.h"
#include "shim/counters/counters_file.h"
#include "shim/graphs/exec_table.h"
#include "shim/graphs/shadow_exec.h"
#include "shim/launch/served_solutions.h"
#include "shim/launch/shadow_launch.h"
#include "shim/launch/shadow_rules.h"
#include "shim/launch/workspace.h"
#include "shim/life/job_quarantine.h"
#include "shim/life/libraries.h"
#include "shim/life/move.h"
#include "shim/life/requests.h"
#include "shim/life/watch.h"
#include "shim/registry/handle_swap.h"

namespace fibshim {
namespace {

constexpr uint64_t kResolveMs = 500;  // interval at which FIBSHIM_CONFIG is resolved
constexpr uint64_t kRetryMs = 1000;   // until a refused folder is tried again; doubled each time
constexpr uint64_t kSoonMs = 20;      // interval while waiting for a decision or a grace period
constexpr uint64_t kLongestExitWaitMs = 1000;
// Large, since the driver may compile PTX on this stack. Only touched pages use memory.
constexpr size_t kStackBytes = size_t{4} << 20;

std::atomic<bool> g_has_watcher{false};
// 1 while the watcher is in the loader or the driver, which must not be torn down meanwhile.
uint32_t g_is_busy = 0;
std::atomic<bool> g_is_exiting{false};

// Call before work that the end of the process must not interrupt. False: the process is ending.
bool enter_busy() {
  __atomic_store_n(&g_is_busy, 1, __ATOMIC_SEQ_CST);
  if (!g_is_exiting.load()) return true;
  __atomic_store_n(&g_is_busy, 0, __ATOMIC_SEQ_CST);
  wake_all(&g_is_busy);
  return false;
}

void leave_busy() {
  __atomic_store_n(&g_is_busy, 0, __ATOMIC_SEQ_CST);
  if (g_is_exiting.load()) wake_all(&g_is_busy);
}

void wait_for_watcher_at_exit() {
  g_is_exiting.store(true);
  const uint64_t begun = monotonic_ms();
  while (__atomic_load_n(&g_is_busy, __ATOMIC_SEQ_CST) != 0 &&
         monotonic_ms() - begun < kLongestExitWaitMs) {
    wait_on(&g_is_busy, 1, 50);
  }
  (void)work_on_shadow(false);  // reports the results that have come by now
}

// Moves to the folder of FIBSHIM_CONFIG if that has changed, or is to be tried again.
void follow_link() {
  Watch& watch = g_watch;
  watch.resolved_ms = monotonic_ms();
  const FolderIdentity identity = identify_folder(config_path());
  // A link that is being replaced is missing for a moment.
  if (!identity.is_there) return;
  const bool is_same = identity == watch.seen;
  const bool is_retried = watch.retry_at_ms != 0 && watch.resolved_ms >= watch.retry_at_ms;
  if (is_same && !is_retried) return;
  {
    MutexGuard guard(watch.lock);
    watch.seen = identity;
    // Off stays off, and `fibshim swap --on` moves to this folder.
    if (watch.is_off) copy_text(watch.wanted, config_path());
  }
  watch.retry_at_ms = 0;
  if (watch.is_off) return;
  if (!is_same) watch.refusals = 0;
  char message[kControlTextBytes];
  if (move_to(false, config_path(), Faults::refused, message)) return;
  // The folder may be incomplete, or a resource was short for a moment.
  watch.retry_at_ms = monotonic_ms() + (kRetryMs << (watch.refusals < 6 ? watch.refusals : 6));
  ++watch.refusals;
  if (!is_same || strcmp(message, watch.refusal) != 0) record_refusal(message);
}

void update_totals() {
  const ImageTotals totals = image_totals(g_watch.number);
  if (memcmp(&totals, &g_watch.totals, sizeof totals) == 0) return;
  g_watch.totals = totals;
  write_status();
}

// Does the watcher's work for shadow checks. True: there is more to do soon.
bool watch_shadow() {
  static bool has_failed = false;
  if (!has_shadow() && wants_shadow() && !has_failed) {
    Message message;
    const ShadowApi* const shadow = load_shadow_library(message);
    has_failed = shadow == nullptr;
    if (has_failed) {
      log_message(LogLevel::warn, "FIBSHIM_SHADOW: %s; no launch is checked", message);
    } else {
      start_shadow(*shadow);
    }
  }
  return work_on_shadow(true);
}

// Returns the control block, or null: a forked child has none before it has counted.
ControlBlock* find_control() {
  ControlBlock* const control = own_control();
  if (control != g_watch.control) {
    g_watch.control = control;
    g_watch.seen_ask = 0;
    write_status();
  }
  return control;
}

// Does everything that is due. False: the process is about to end.
bool do_due_work(uint32_t* ask, bool* has_more) {
  Watch& watch = g_watch;
  const ControlBlock* const control = find_control();
  *ask = control == nullptr ? 0 : __atomic_load_n(&control->ask, __ATOMIC_ACQUIRE);
  if (!enter_busy()) return false;
  if (*ask != watch.seen_ask) serve_request(*ask);
  if (watch.prepared.exists) {
    follow_decision();
  } else if (monotonic_ms() - watch.resolved_ms >= kResolveMs) {
    follow_link();
    update_totals();
    watch_graphs();
  }
  follow_job_quarantines();
  static uint32_t quarantines = 0;
  if (quarantines != quarantine_count()) {
    quarantines = quarantine_count();
    watch_graphs();
  }
  const bool has_checks = watch_shadow() | prepare_shadows();
  end_buried_variants();
  while (Generation* ended = remove_ended_generation(has_more)) {
    end_workspaces_of_generation(ended->number);
    end_generation(ended);
  }
  free_released_workspaces();
  *has_more = *has_more || has_checks;
  leave_busy();
  return true;
}

void* run_watcher(void*) {
  static uint32_t never = 0;
  uint32_t ask = 0;
  bool has_more = false;
  while (do_due_work(&ask, &has_more)) {
    const ControlBlock* const control = g_watch.control;
    const bool is_soon = has_more || g_watch.prepared.exists;
    wait_on(control == nullptr ? &never : &control->ask, control == nullptr ? 0 : ask,
            is_soon ? kSoonMs : kResolveMs);
  }
  return nullptr;
}

bool start_thread() {
  pthread_attr_t attributes;
  if (pthread_attr_init(&attributes) != 0) return false;
  (void)pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  (void)pthread_attr_setstacksize(&attributes, kStackBytes);
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  pthread_t thread;
  const int failure = pthread_create(&thread, &attributes, run_watcher, nullptr);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  pthread_attr_destroy(&attributes);
  if (failure == 0) {
    (void)pthread_setname_np(thread, "fibshim");
  } else {
    log_message(LogLevel::info, "no thread for swaps: %s", strerror(failure));
  }
  return failure == 0;
}

}  // namespace

void begin_watching(const Generation& first, const FolderIdentity& identity, const char* refusal) {
  Watch& watch = g_watch;
  const Snapshot& snapshot = *first.snapshot;
  MutexGuard guard(watch.lock);
  watch.number = first.number;
  watch.seen = identity;
  copy_text(watch.wanted, config_path());
  copy_text(watch.refusal, refusal);
  if (refusal[0] != 0) {
    watch.refused_count = 1;
    watch.retry_at_ms = monotonic_ms() + kRetryMs;
  }
  if (is_no_folder(snapshot)) return;
  forget_seen_unless(snapshot);
  copy_text(watch.folder, snapshot.text(snapshot.root));
  memcpy(watch.digest, snapshot.digest, sizeof watch.digest);
}

void ensure_watcher() {
  if (__builtin_expect(g_has_watcher.load(std::memory_order_relaxed), 1) || !has_generation() ||
      g_has_watcher.exchange(true)) {
    return;
  }
  const int saved_errno = errno;
  static std::atomic<bool> has_exit_handler{false};
  // Registered after the driver's exit handler, so that this one runs before it.
  if (!has_exit_handler.exchange(true)) (void)atexit(wait_for_watcher_at_exit);
  // Done before the host continues, so that the process can be seen and moved from now on.
  (void)find_control();
  if (!start_thread()) {
    if (g_watch.control != nullptr)
      __atomic_store_n(&g_watch.control->status.has_watcher, 0, __ATOMIC_RELAXED);
    g_has_watcher.store(false);
  }
  errno = saved_errno;
}

void lock_swap_for_fork() { g_watch.lock.lock(); }

void unlock_swap_after_fork(bool is_child) {
  Watch& watch = g_watch;
  if (is_child) {
    // The thread does not exist in the child. The generation that it has prepared is abandoned.
    g_has_watcher.store(false);
    g_is_busy = 0;
    watch.control = nullptr;
    watch.resolved_ms = 0;
    watch.prepared.exists = false;
    watch.prepared.next = nullptr;
  }
  watch.lock.unlock_after_fork(is_child);
}

}  // namespace fibshim
