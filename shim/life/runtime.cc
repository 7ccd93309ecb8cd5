#include "shim/life/runtime.h"

#include <atomic>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "shim/base/log.h"
#include "shim/base/read_section.h"
#include "shim/base/settings_in_force.h"
#include "shim/counters/counters.h"
#include "shim/counters/shadow_counts.h"
#include "shim/graphs/bodies.h"
#include "shim/graphs/exec_table.h"
#include "shim/launch/captures.h"
#include "shim/launch/launch.h"
#include "shim/launch/learn.h"
#include "shim/launch/recording.h"
#include "shim/launch/shadow_launch.h"
#include "shim/launch/shadow_rules.h"
#include "shim/launch/workspace.h"
#include "shim/life/libraries.h"
#include "shim/life/read_settings.h"
#include "shim/life/start_gate.h"
#include "shim/life/swap.h"
#include "shim/registry/decisions.h"
#include "shim/registry/devices.h"
#include "shim/registry/generation.h"
#include "shim/registry/handles.h"
#include "shim/registry/loaded_images.h"
#include "shim/registry/modules.h"

namespace fibshim {
namespace {

enum State : uint32_t { kNotStarted, kStarting, kRunning, kOff };
std::atomic<uint32_t> g_state{kNotStarted};

// The libraries that the start needs. Null: not needed, or the message says why.
struct Libraries {
  const LoaderApi* loader;
  const RecorderApi* recorder;
  const ShadowApi* shadow;
  Message loader_message;
  Message recorder_message;
  Message shadow_message;
};

void load_libraries(Libraries* out) {
  out->loader = load_loader_library(out->loader_message);
  out->recorder = !wants_recording() ? nullptr : load_recorder_library(out->recorder_message);
  // The watcher opens it later if the folder or `fibshim shadow` asks for checks.
  out->shadow = is_given(kSettings[static_cast<size_t>(SettingId::shadow)].name)
                    ? load_shadow_library(out->shadow_message)
                    : nullptr;
}

// Takes the locks in the same order as the slow paths.
void before_fork() {
  enter_fork();
  lock_swap_for_fork();
  lock_slow_side_for_fork();
  lock_learning_for_fork();
  lock_handles_for_fork();
  lock_readers_for_fork();
  lock_decisions_for_fork();
  lock_shadow_rules_for_fork();
  lock_bodies_for_fork();
  lock_graphs_for_fork();
  lock_workspaces_for_fork();
  lock_modules_for_fork();
  lock_devices_for_fork();
  lock_loaded_images_for_fork();
  lock_generations_for_fork();
  lock_shadow_counts_for_fork();
  lock_counters_for_fork();
  lock_recording_for_fork();
  lock_shadow_for_fork();
}

void after_fork(bool is_child) {
  unlock_shadow_after_fork(is_child);
  unlock_recording_after_fork(is_child);
  unlock_counters_after_fork(is_child);
  unlock_shadow_counts_after_fork(is_child);
  unlock_generations_after_fork(is_child);
  unlock_loaded_images_after_fork(is_child);
  unlock_devices_after_fork(is_child);
  unlock_modules_after_fork(is_child);
  unlock_workspaces_after_fork(is_child);
  unlock_graphs_after_fork(is_child);
  unlock_bodies_after_fork(is_child);
  unlock_shadow_rules_after_fork(is_child);
  unlock_decisions_after_fork(is_child);
  unlock_readers_after_fork(is_child);
  unlock_handles_after_fork(is_child);
  unlock_learning_after_fork(is_child);
  unlock_slow_side_after_fork(is_child);
  unlock_swap_after_fork(is_child);
  if (is_child) end_captures_in_child();
  // If another thread was starting the shim, it does not exist in the child.
  uint32_t state = kStarting;
  if (is_child) g_state.compare_exchange_strong(state, kNotStarted);
  leave_fork(is_child);
}

Generation* start(const Libraries& libraries) {
  read_settings();
  log_message(LogLevel::debug, "starting, FIBSHIM_CONFIG=%s", config_path());
  if (libraries.loader == nullptr) {
    log_message(LogLevel::warn, "%s; kernels run unchanged", libraries.loader_message);
    return nullptr;
  }
  set_loader(*libraries.loader);
  const RecorderApi* const recorder = libraries.recorder;
  if (recorder == nullptr && wants_recording()) {
    log_message(LogLevel::warn, "FIBSHIM_RECORD: %s; nothing is recorded",
                libraries.recorder_message);
  }
  Message message;
  const FolderIdentity identity = identify_folder(config_path());
  const Snapshot* snapshot = nullptr;
  if (config_path()[0] != 0) {
    snapshot = loader().open(config_path(), folder_rules(), message, sizeof message);
    if (snapshot == nullptr) {
      log_message(LogLevel::warn, "%s; kernels run unchanged (fibshim check %s lists everything)",
                  message, config_path());
    } else if (message[0] != 0) {
      // The message names broken solutions. Launches that they would serve report it again.
      log_message(LogLevel::info, "%s", message);
    }
  }
  // A process whose folder was refused has counters and can move to another folder. Launches can be
  // recorded without a folder.
  const bool is_refused = snapshot == nullptr && config_path()[0] != 0;
  if (!is_refused && snapshot == nullptr && recorder == nullptr) return nullptr;
  if (snapshot == nullptr) snapshot = no_folder();
  apply_folder_settings(*snapshot);
  if (mode() == Mode::off) return nullptr;
  if (recorder != nullptr) start_recording(*recorder, *snapshot);
  seed_samples();
  if (libraries.shadow != nullptr) start_shadow(*libraries.shadow);
  Generation* const generation = make_generation(snapshot, mode(), on_error(), 1);
  if (generation == nullptr) {
    log_message(LogLevel::warn, "no memory for %u solutions; kernels run unchanged",
                snapshot->solutions.count);
    return nullptr;
  }
  generation->config = open_counters(*snapshot);
  begin_watching(*generation, identity, is_refused ? message : "");
  apply_device_setting();
  if (!is_refused) {
    log_message(LogLevel::info, "%s: %u patterns, %u solutions", snapshot->text(snapshot->root),
                snapshot->patterns.count, snapshot->solutions.count);
  }
  return generation;
}

__attribute__((noinline)) bool start_or_wait() {
  if (!is_active() || is_in_start_gate()) return false;
  uint32_t state = g_state.load(std::memory_order_acquire);
  if (state == kNotStarted) {
    // Each thread opens the libraries before it claims the start. Opening takes the dynamic
    // linker's lock, and the thread that holds that may be in a library's constructor, waiting for
    // the thread that has claimed the start.
    const int saved_errno = errno;
    Libraries libraries;
    enter_start_gate();
    load_libraries(&libraries);
    const bool is_ours =
        g_state.compare_exchange_strong(state, kStarting, std::memory_order_acq_rel);
    Generation* generation = is_ours ? start(libraries) : nullptr;
    if (is_ours) {
      if (generation != nullptr) (void)exchange_generation(generation);
      g_state.store(generation == nullptr ? kOff : kRunning, std::memory_order_release);
      wake_waiters(&g_state);
    }
    leave_start_gate();
    if (generation != nullptr) ensure_watcher();
    errno = saved_errno;
    if (is_ours) return generation != nullptr;
  }
  if (state == kStarting) {
    wait_while(&g_state, kStarting);
  }
  return has_generation();
}

// Cheap: only reads the environment and registers the fork handlers. Everything else waits for
// CUDA. The handlers ensure that no thread of the parent is in the middle of a change, or of the
// start, when a child is made.
__attribute__((constructor)) void on_map() {
  remember_working_directory();
  if (is_active()) {
    pthread_atfork(
        before_fork, [] { after_fork(false); }, [] { after_fork(true); });
  }
}

}  // namespace

bool ensure_started() {
  const uint32_t state = g_state.load(std::memory_order_acquire);
  if (__builtin_expect(state == kRunning || state == kOff, 1)) return state == kRunning;
  return start_or_wait();
}

}  // namespace fibshim
