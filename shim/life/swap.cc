#include "shim/life/swap.h"

#include <atomic>
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "shim/abi/control_format.h"
#include "shim/counters/counters.h"
#include "shim/launch/learn.h"
#include "shim/registry/handle_swap.h"
#include "shim/registry/images.h"
#include "shim/registry/loaded_images.h"
#include "shim/base/log.h"
#include "shim/base/mutex.h"
#include "shim/base/read_section.h"
#include "shim/life/decision_word.h"
#include "shim/life/read_settings.h"
#include "shim/life/start_gate.h"
#include "shim/launch/served_solutions.h"
#include "shim/base/settings_in_force.h"

namespace fibshim {
namespace {

constexpr uint64_t kLookMs = 500;  // between two looks at FIBSHIM_CONFIG
constexpr uint64_t kAgainMs =
    1000;                         // until what was refused there is tried; twice as long each time
constexpr uint64_t kSoonMs = 20;  // while a decision or a grace period is waited for
constexpr uint32_t kMostHoldMs = 600'000;
constexpr uint64_t kLongestExitWaitMs = 1000;
// The driver may compile PTX on it. Only what is touched is backed.
constexpr size_t kStackBytes = size_t{4} << 20;

enum WatcherState : uint32_t { kNone, kRuns };
std::atomic<uint32_t> g_watcher{kNone};
// Within the loader or the driver, which must not be torn down under it.
std::atomic<uint32_t> g_is_busy{0};
std::atomic<uint32_t> g_is_exiting{0};

uint64_t now_ms() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1000 + static_cast<uint64_t>(now.tv_nsec) / 1000000;
}

// A word of a shared mapping is known by its place in the file.
void wait_on(const uint32_t* word, uint32_t seen, uint64_t timeout_ms) {
  const timespec timeout = {static_cast<time_t>(timeout_ms / 1000),
                            static_cast<long>(timeout_ms % 1000 * 1000000)};
  syscall(SYS_futex, word, FUTEX_WAIT, seen, &timeout, nullptr, 0);
}

void wake_all(const uint32_t* word) {
  syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

// A copy of what is asked.
struct Ask {
  uint32_t word;
  AskTarget target;
  uint32_t hold_ms;
  uint64_t decision_id;
  char folder[kControlPathBytes];
  char decider[256];
};

// The watcher's, but for what begin_watching() fills before there is one. A child goes on with it: the
// lock is held while it changes.
struct Watch {
  Mutex lock;
  char wanted[PATH_MAX];  // the folder to be in while state is on
  char folder[PATH_MAX];  // in force, links resolved; or the one before off
  uint64_t digest[2];
  bool is_off;
  FolderIdentity seen;  // where FIBSHIM_CONFIG led at the last look
  uint64_t number;      // of the newest generation
  uint64_t swap_count;
  uint64_t refused_count;
  char refusal[kControlTextBytes];

  // Of one process.
  ControlBlock* control;
  uint32_t seen_ask;
  uint64_t looked_ms;
  uint32_t refusals;  // of what FIBSHIM_CONFIG leads to, one after another
  uint64_t again_ms;  // when to try that again; 0: not
  ImageTotals totals;
  bool has_prepared;
  Generation* prepared;  // null where nothing is to be done
  bool prepared_is_off;
  char prepared_wanted[PATH_MAX];
  uint64_t prepared_until_ms;
  DecisionWord decision;
};
constinit Watch g_watch = {};
constinit Ask g_ask = {};  // too large for a stack

// Cut to fit.
template <size_t size>
void copy_text(char (&out)[size], const char* text) {
  const size_t length = strnlen(text, size - 1);
  memcpy(out, text, length);
  out[length] = 0;
}

// --- what readers see ---

void begin_writing(ControlStatus* status) {
  __atomic_store_n(&status->version, status->version + 1, __ATOMIC_RELAXED);
  __atomic_thread_fence(__ATOMIC_RELEASE);
}

void end_writing(ControlStatus* status) {
  __atomic_store_n(&status->version, status->version + 1, __ATOMIC_RELEASE);
}

// Not holding the lock.
void write_status(Watch& watch) {
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
  status.state = watch.is_off ? FolderState::off : FolderState::on;
  memcpy(status.digest, watch.digest, sizeof status.digest);
  copy_text(status.folder, watch.folder);
  copy_text(status.configured, config_path());
  copy_text(status.refusal, watch.refusal);
  copy_text(status.job, job_label());
  end_writing(&status);
}

void write_answer(AnswerState state, const char* message) {
  Watch& watch = g_watch;
  if (watch.control == nullptr) return;
  copy_text(watch.control->message, message);
  __atomic_store_n(&watch.control->answer, control_word(control_number(watch.seen_ask), state),
                   __ATOMIC_RELEASE);
  wake_all(&watch.control->answer);
}

// --- moving ---

// Begins nothing that the end of the process could interrupt.
bool enter_busy() {
  g_is_busy.store(1);
  if (g_is_exiting.load() == 0) return true;
  g_is_busy.store(0);
  wake_all(reinterpret_cast<uint32_t*>(&g_is_busy));
  return false;
}

void leave_busy() {
  g_is_busy.store(0);
  if (g_is_exiting.load() != 0) wake_all(reinterpret_cast<uint32_t*>(&g_is_busy));
}

void wait_for_watcher_at_exit() {
  g_is_exiting.store(1);
  const uint64_t begun = now_ms();
  while (g_is_busy.load() != 0 && now_ms() - begun < kLongestExitWaitMs) {
    wait_on(reinterpret_cast<uint32_t*>(&g_is_busy), 1, 50);
  }
}

void note_refusal(const char* message) {
  Watch& watch = g_watch;
  {
    MutexGuard guard(watch.lock);
    ++watch.refused_count;
    copy_text(watch.refusal, message);
  }
  log_message(LogLevel::warn, "%s; %s", message,
              watch.is_off ? "still off" : "the folder before stays");
  write_status(watch);
}

// A link may lead elsewhere between the look at it and the opening of the folder. Then the next look, whatever
// it finds, must not take it for what was there before.
void check_seen(const Snapshot& opened) {
  FolderIdentity& seen = g_watch.seen;
  if (seen.device != opened.root_device || seen.inode != opened.root_inode) seen = {};
}

// A folder that the process has been in before is accepted again as it is, even with broken solutions.
enum class Faults : bool { refused, accepted };

// The next generation; null when it is the one in force, or cannot be: then `message` says why.
Generation* prepare(bool is_off, const char* path, Faults faults,
                    char (&message)[kControlTextBytes]) {
  message[0] = 0;
  const Snapshot* snapshot = no_folder();
  Mode mode = Mode::off;
  if (!is_off) {
    snapshot = open_folder(path, message, sizeof message);
    if (snapshot == nullptr) return nullptr;
    if (strcmp(path, config_path()) == 0) {
      MutexGuard guard(g_watch.lock);
      check_seen(*snapshot);
    }
    if (message[0] != 0) log_message(LogLevel::info, "%s", message);
    message[0] = 0;
    mode = mode_with(*snapshot);
  }
  const ReadSection section;
  const Generation& now = *current_generation();
  if (mode == now.mode &&
      memcmp(snapshot->digest, now.snapshot->digest, sizeof now.snapshot->digest) == 0 &&
      strcmp(snapshot->text(snapshot->root), now.snapshot->text(now.snapshot->root)) == 0) {
    if (!is_no_folder(*snapshot)) loader().close(snapshot);
    return nullptr;
  }
  Generation* const next = make_generation(snapshot, mode, g_watch.number + 1);
  if (next == nullptr) {
    snprintf(message, sizeof message, "no memory for %u solutions", snapshot->solutions.count);
    if (!is_no_folder(*snapshot)) loader().close(snapshot);
    return nullptr;
  }
  prepare_handles(*next, learn_successor);
  if (faults == Faults::refused && find_fault(*next, message, sizeof message)) {
    end_generation(next);
    return nullptr;
  }
  return next;
}

// False, with a message: no memory. `next` may be null: it is in force.
bool go(Generation* next, bool is_off, const char* wanted, char (&message)[kControlTextBytes]) {
  Watch& watch = g_watch;
  if (next != nullptr) {
    if (!is_off) {
      next->config = add_config(*next->snapshot);
      end_quarantines();
    }
    if (!put_in_force(next, learn_successor, load_into_contexts)) {
      end_generation(next);
      snprintf(message, sizeof message, "no memory for the handles that are in use");
      return false;
    }
    if (!is_off) apply_settings_of_next(*next->snapshot, next->mode);
    publish_mode(next->mode);
  }
  watch.again_ms = 0;
  {
    MutexGuard guard(watch.lock);
    watch.is_off = is_off;
    watch.refusal[0] = 0;
    if (wanted != watch.wanted) copy_text(watch.wanted, wanted);
    if (next != nullptr) {
      watch.number = next->number;
      ++watch.swap_count;
      watch.totals = image_totals(watch.number);
    }
    if (next != nullptr && !is_off) {
      const Snapshot& snapshot = *next->snapshot;
      copy_text(watch.folder, snapshot.text(snapshot.root));
      memcpy(watch.digest, snapshot.digest, sizeof watch.digest);
    }
  }
  if (next != nullptr && is_off) log_message(LogLevel::info, "off: kernels run unchanged");
  if (next != nullptr && !is_off) {
    log_message(LogLevel::info, "moved to %s: %u patterns, %u solutions", watch.folder,
                next->snapshot->patterns.count, next->snapshot->solutions.count);
  }
  write_status(watch);
  return true;
}

// Moves at once. False: refused, and `message` says why.
bool move_now(bool is_off, const char* path, const char* wanted, Faults faults,
              char (&message)[kControlTextBytes]) {
  Generation* const next = prepare(is_off, path, faults, message);
  if (next == nullptr && message[0] != 0) return false;
  return go(next, is_off, wanted, message);
}

// --- what is asked ---

void drop_prepared() {
  Watch& watch = g_watch;
  if (watch.prepared != nullptr) end_generation(watch.prepared);
  watch.prepared = nullptr;
  watch.has_prepared = false;
  watch.decision.close();
}

void carry_out(Verdict verdict) {
  Watch& watch = g_watch;
  if (verdict == Verdict::undecided) return;
  char message[kControlTextBytes] = "";
  if (verdict == Verdict::commit) {
    const bool is_fine = go(watch.prepared, watch.prepared_is_off, watch.prepared_wanted, message);
    watch.prepared = nullptr;
    if (!is_fine) note_refusal(message);
    write_answer(is_fine ? AnswerState::moved : AnswerState::refused, message);
  } else {
    write_answer(AnswerState::aborted, "");
  }
  drop_prepared();
}

bool copy_ask(const ControlBlock& control, uint32_t word, Ask* out) {
  out->word = word;
  out->target = control.asked_target;
  out->hold_ms = control.hold_ms;
  out->decision_id = control.decision_id;
  memcpy(out->folder, control.asked_folder, sizeof out->folder);
  memcpy(out->decider, control.decider, sizeof out->decider);
  out->folder[sizeof out->folder - 1] = 0;
  out->decider[sizeof out->decider - 1] = 0;
  __atomic_thread_fence(__ATOMIC_ACQUIRE);
  return __atomic_load_n(&control.ask, __ATOMIC_RELAXED) == word;
}

void take_ask(uint32_t word) {
  Watch& watch = g_watch;
  if (!copy_ask(*watch.control, word, &g_ask))
    return;  // it is being written: soon there is another
  watch.seen_ask = word;
  const auto verb = control_state<AskVerb>(word);
  if (verb != AskVerb::move && verb != AskVerb::prepare) return;
  // A new request came before the last one was decided.
  if (watch.has_prepared) carry_out(watch.decision.abort());
  write_answer(AnswerState::working, "");
  char message[kControlTextBytes] = "";
  const bool is_off = g_ask.target == AskTarget::off;
  const char* const wanted = g_ask.target == AskTarget::folder ? g_ask.folder : watch.wanted;
  const Faults faults = g_ask.target == AskTarget::on ? Faults::accepted : Faults::refused;
  bool is_fine = false;
  if (g_ask.target != AskTarget::off && wanted[0] != '/') {
    snprintf(message, sizeof message, "no folder is asked for");
  } else if (verb == AskVerb::move) {
    is_fine = move_now(is_off, wanted, wanted, faults, message);
  } else if (const char* reason = watch.decision.open(g_ask.decider, g_ask.decision_id)) {
    snprintf(message, sizeof message, "%s: cannot wait for the decision there: %s", g_ask.decider,
             reason);
  } else {
    Generation* const next = prepare(is_off, wanted, faults, message);
    is_fine = next != nullptr || message[0] == 0;
    if (is_fine) {
      watch.has_prepared = true;
      watch.prepared = next;
      watch.prepared_is_off = is_off;
      copy_text(watch.prepared_wanted, wanted);
      const uint32_t hold_ms = g_ask.hold_ms < kMostHoldMs ? g_ask.hold_ms : kMostHoldMs;
      watch.prepared_until_ms = now_ms() + hold_ms;
      return write_answer(AnswerState::prepared, "");
    }
    watch.decision.close();
  }
  if (!is_fine) note_refusal(message);
  write_answer(is_fine ? AnswerState::moved : AnswerState::refused, message);
}

void look_at_link() {
  Watch& watch = g_watch;
  watch.looked_ms = now_ms();
  const FolderIdentity identity = identify_folder(config_path());
  const bool is_same = identity == watch.seen;
  // A link that is being replaced is missing for a moment.
  if (!identity.is_there) return;
  if (is_same && (watch.again_ms == 0 || watch.looked_ms < watch.again_ms)) return;
  {
    MutexGuard guard(watch.lock);
    watch.seen = identity;
    // Off stays off; this is then what `--on` goes to.
    if (watch.is_off) copy_text(watch.wanted, config_path());
  }
  watch.again_ms = 0;
  if (watch.is_off) return;
  if (!is_same) watch.refusals = 0;
  char message[kControlTextBytes];
  if (move_now(false, config_path(), config_path(), Faults::refused, message)) return;
  // The folder may be incomplete, or a resource was short for a moment.
  const uint64_t pause_ms = kAgainMs << (watch.refusals < 6 ? watch.refusals : 6);
  watch.again_ms = now_ms() + pause_ms;
  ++watch.refusals;
  if (!is_same || strcmp(message, watch.refusal) != 0) note_refusal(message);
}

void end_generations(bool* has_more) {
  while (Generation* ended = take_ended_generation(has_more)) end_generation(ended);
}

void look_at_totals() {
  Watch& watch = g_watch;
  const ImageTotals totals = image_totals(watch.number);
  if (memcmp(&totals, &watch.totals, sizeof totals) == 0) return;
  watch.totals = totals;
  write_status(watch);
}

// --- the thread ---

// Does everything that is due. False: the process is about to end.
bool look(uint32_t* ask, bool* has_more) {
  Watch& watch = g_watch;
  ControlBlock* const control = own_control();
  if (control != watch.control) {
    watch.control = control;
    watch.seen_ask = 0;
    write_status(watch);
  }
  *ask = control == nullptr ? 0 : __atomic_load_n(&control->ask, __ATOMIC_ACQUIRE);
  if (!enter_busy()) return false;
  if (*ask != watch.seen_ask) take_ask(*ask);
  if (watch.has_prepared) {
    const bool is_over = now_ms() >= watch.prepared_until_ms;
    carry_out(is_over ? watch.decision.abort() : watch.decision.verdict());
  } else if (now_ms() - watch.looked_ms >= kLookMs) {
    look_at_link();
    look_at_totals();
  }
  end_generations(has_more);
  leave_busy();
  return true;
}

void* watch_on(void*) {
  static uint32_t never = 0;
  uint32_t ask = 0;
  bool has_more = false;
  while (look(&ask, &has_more)) {
    const Watch& watch = g_watch;
    const bool is_soon = has_more || watch.has_prepared;
    wait_on(watch.control == nullptr ? &never : &watch.control->ask,
            watch.control == nullptr ? 0 : ask, is_soon ? kSoonMs : kLookMs);
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
  const int failure = pthread_create(&thread, &attributes, watch_on, nullptr);
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

FolderIdentity identify_folder(const char* path) {
  FolderIdentity identity = {};
  char resolved[PATH_MAX];
  struct stat status;
  if (path[0] == 0 || realpath(path, resolved) == nullptr || stat(resolved, &status) != 0) {
    return identity;
  }
  identity.is_there = true;
  identity.device = status.st_dev;
  identity.inode = status.st_ino;
  identity.path_hash = 0xcbf29ce484222325u;
  for (const char* at = resolved; *at != 0; ++at) {
    identity.path_hash = (identity.path_hash ^ static_cast<unsigned char>(*at)) * 0x100000001b3u;
  }
  return identity;
}

void begin_watching(const Generation& first, const FolderIdentity& identity) {
  Watch& watch = g_watch;
  const Snapshot& snapshot = *first.snapshot;
  MutexGuard guard(watch.lock);
  watch.number = first.number;
  watch.seen = identity;
  if (!is_no_folder(snapshot)) check_seen(snapshot);
  copy_text(watch.wanted, config_path());
  copy_text(watch.folder, snapshot.text(snapshot.root));
  memcpy(watch.digest, snapshot.digest, sizeof watch.digest);
}

void ensure_watcher() {
  uint32_t none = kNone;
  if (__builtin_expect(g_watcher.load(std::memory_order_relaxed) != kNone, 1) ||
      !has_generation() || !g_watcher.compare_exchange_strong(none, kRuns)) {
    return;
  }
  const int saved_errno = errno;
  static std::atomic<bool> has_exit_handler{false};
  // After the driver has made its own: this one then runs before it.
  if (!has_exit_handler.exchange(true)) (void)atexit(wait_for_watcher_at_exit);
  if (!start_thread()) g_watcher.store(kNone);
  errno = saved_errno;
}

void lock_swap_for_fork() { g_watch.lock.lock(); }

void unlock_swap_after_fork(bool is_child) {
  Watch& watch = g_watch;
  if (is_child) {
    // The thread does not exist here. The generation that it was about to put in force is abandoned.
    g_watcher.store(kNone);
    g_is_busy.store(0);
    watch.control = nullptr;
    watch.looked_ms = 0;
    watch.has_prepared = false;
    watch.prepared = nullptr;
  }
  watch.lock.unlock_after_fork(is_child);
}

}  // namespace fibshim
