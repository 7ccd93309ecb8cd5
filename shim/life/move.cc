#include "shim/life/move.h"

#include <stdio.h>
#include <string.h>

#include "shim/base/log.h"
#include "shim/base/read_section.h"
#include "shim/base/settings_in_force.h"
#include "shim/counters/counters.h"
#include "shim/counters/counters_file.h"
#include "shim/graphs/graph_swap.h"
#include "shim/launch/learn.h"
#include "shim/launch/served_solutions.h"
#include "shim/launch/shadow_rules.h"
#include "shim/life/ended_contexts.h"
#include "shim/life/job_quarantine.h"
#include "shim/life/read_settings.h"
#include "shim/life/start_gate.h"
#include "shim/registry/handle_swap.h"
#include "shim/registry/images.h"

namespace fibshim {
namespace {

void close_snapshot(const Snapshot* snapshot) {
  if (!is_no_folder(*snapshot)) loader().close(snapshot);
}

bool is_in_force(const Snapshot& snapshot, Mode mode) {
  const ReadSection section;
  const Generation& now = *current_generation();
  return mode == now.mode &&
         memcmp(snapshot.digest, now.snapshot->digest, sizeof snapshot.digest) == 0 &&
         strcmp(snapshot.text(snapshot.root), now.snapshot->text(now.snapshot->root)) == 0;
}

// Records the move in g_watch, for readers and for forked children.
void record_move(const Generation* next, bool is_off, const char* wanted) {
  Watch& watch = g_watch;
  MutexGuard guard(watch.lock);
  watch.is_off = is_off;
  watch.refusal[0] = 0;
  if (wanted != watch.wanted) copy_text(watch.wanted, wanted);
  if (next == nullptr) return;
  watch.number = next->number;
  ++watch.swap_count;
  watch.totals = image_totals(watch.number);
  if (is_off) return;
  const Snapshot& snapshot = *next->snapshot;
  const char* const folder = snapshot.text(snapshot.root);
  if (strcmp(folder, watch.folder) != 0) copy_text(watch.previous, watch.folder);
  copy_text(watch.folder, folder);
  memcpy(watch.digest, snapshot.digest, sizeof watch.digest);
}

}  // namespace

void forget_seen_unless(const Snapshot& opened) {
  FolderIdentity& seen = g_watch.seen;
  if (seen.device != opened.root_device || seen.inode != opened.root_inode) seen = {};
}

Generation* prepare_generation(bool is_off, const char* path, Faults faults,
                               char (&message)[kControlTextBytes]) {
  message[0] = 0;
  const Snapshot* snapshot = no_folder();
  Mode mode = Mode::off;
  if (!is_off) {
    snapshot = open_folder(path, message, sizeof message);
    if (snapshot == nullptr) return nullptr;
    if (strcmp(path, config_path()) == 0) {
      MutexGuard guard(g_watch.lock);
      forget_seen_unless(*snapshot);
    }
    if (message[0] != 0) log_message(LogLevel::info, "%s", message);
    message[0] = 0;
    mode = mode_with(*snapshot);
  }
  if (is_in_force(*snapshot, mode)) {
    close_snapshot(snapshot);
    return nullptr;
  }
  Generation* const next =
      make_generation(snapshot, mode, on_error_with(*snapshot), g_watch.number + 1);
  if (next == nullptr) {
    snprintf(message, sizeof message, "no memory for %u solutions", snapshot->solutions.count);
    close_snapshot(snapshot);
    return nullptr;
  }
  prepare_handles(*next, learn_successor);
  if (faults == Faults::refused && find_fault(*next, message, sizeof message)) {
    end_generation(next);
    return nullptr;
  }
  return next;
}

void watch_graphs() {
  const MovedGraphs graphs = prepare_graphs();
  g_watch.graphs.moved += graphs.moved;
  g_watch.graphs.kept += graphs.kept;
  if (graphs.moved + graphs.kept != 0) {
    log_message(LogLevel::info,
                "%u graphs are ready for the folder in force, %u keep what they run", graphs.moved,
                graphs.kept);
  }
}

bool put_generation_in_force(Generation* next, bool is_off, const char* wanted,
                             char (&message)[kControlTextBytes]) {
  if (next != nullptr) {
    if (!is_off) {
      next->config = add_config(*next->snapshot);
      end_quarantines();
      forget_job_quarantines();
    }
    if (!put_in_force(next, learn_successor, load_into_contexts)) {
      end_generation(next);
      snprintf(message, sizeof message, "no memory for the handles that are in use");
      return false;
    }
    forget_contexts_that_ended_here();
    if (!is_off) {
      apply_settings_of_next(*next->snapshot, next->mode);
      apply_shadow_rules();
    }
    publish_mode(next->mode);
  }
  g_watch.retry_at_ms = 0;
  record_move(next, is_off, wanted);
  if (next != nullptr && is_off) {
    log_message(LogLevel::info, "off: kernels run unchanged");
  } else if (next != nullptr) {
    log_message(LogLevel::info, "moved to %s: %u patterns, %u solutions", g_watch.folder,
                next->snapshot->patterns.count, next->snapshot->solutions.count);
  }
  write_status();
  // The process that asked for the move also waits for the graphs.
  watch_graphs();
  return true;
}

bool move_to(bool is_off, const char* path, Faults faults, char (&message)[kControlTextBytes]) {
  Generation* const next = prepare_generation(is_off, path, faults, message);
  if (next == nullptr && message[0] != 0) return false;
  return put_generation_in_force(next, is_off, path, message);
}

}  // namespace fibshim
