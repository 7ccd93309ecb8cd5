#include "shim/life/watch.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "shim/base/log.h"
#include "shim/base/settings_in_force.h"

namespace fibshim {

constinit Watch g_watch = {};

namespace {

FolderState state_of(const Watch& watch) {
  if (watch.is_off) return FolderState::off;
  const bool has_none = watch.folder[0] == 0 && config_path()[0] != 0;
  return has_none ? FolderState::refused : FolderState::on;
}

void begin_writing(ControlStatus* status) {
  __atomic_store_n(&status->version, status->version + 1, __ATOMIC_RELAXED);
  __atomic_thread_fence(__ATOMIC_RELEASE);
}

void end_writing(ControlStatus* status) {
  __atomic_store_n(&status->version, status->version + 1, __ATOMIC_RELEASE);
}

}  // namespace

uint64_t monotonic_ms() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1000 + static_cast<uint64_t>(now.tv_nsec) / 1000000;
}

void wait_on(const uint32_t* word, uint32_t seen, uint64_t timeout_ms) {
  const timespec timeout = {static_cast<time_t>(timeout_ms / 1000),
                            static_cast<long>(timeout_ms % 1000 * 1000000)};
  syscall(SYS_futex, word, FUTEX_WAIT, seen, &timeout, nullptr, 0);
}

void wake_all(const uint32_t* word) {
  syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

void write_status() {
  Watch& watch = g_watch;
  if (watch.control == nullptr) return;
  MutexGuard guard(watch.lock);
  ControlStatus& status = watch.control->status;
  begin_writing(&status);
  status.has_watcher = 1;
  status.swap_count = watch.swap_count;
  status.refused_count = watch.refused_count;
  status.image_count = watch.totals.count;
  status.image_bytes = watch.totals.size_bytes;
  status.kept_image_count = watch.totals.kept_count;
  status.kept_image_bytes = watch.totals.kept_size_bytes;
  status.state = state_of(watch);
  memcpy(status.digest, watch.digest, sizeof status.digest);
  copy_text(status.folder, watch.folder);
  copy_text(status.previous, watch.previous);
  copy_text(status.configured, config_path());
  copy_text(status.refusal, watch.refusal);
  copy_text(status.job, job_label());
  end_writing(&status);
}

void write_answer(AnswerState state, const char* message) {
  ControlBlock* const control = g_watch.control;
  if (control == nullptr) return;
  copy_text(control->message, message);
  control->moved_graphs = g_watch.graphs.moved;
  control->kept_graphs = g_watch.graphs.kept;
  __atomic_store_n(&control->answer, control_word(control_number(g_watch.seen_ask), state),
                   __ATOMIC_RELEASE);
  wake_all(&control->answer);
}

void record_refusal(const char* message) {
  Watch& watch = g_watch;
  const FolderState state = state_of(watch);
  {
    MutexGuard guard(watch.lock);
    ++watch.refused_count;
    copy_text(watch.refusal, message);
  }
  log_message(LogLevel::warn, "%s; %s", message,
              state == FolderState::off       ? "still off"
              : state == FolderState::refused ? "kernels still run unchanged"
                                              : "the folder before stays");
  write_status();
}

}  // namespace fibshim
