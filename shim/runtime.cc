#include "shim/runtime.h"

#include <atomic>
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "shim/counters.h"
#include "shim/decisions.h"
#include "shim/graphs.h"
#include "shim/handles.h"
#include "shim/image_identity.h"
#include "shim/images.h"
#include "shim/launch_path.h"
#include "shim/log.h"
#include "shim/settings_in_force.h"

namespace fibshim {
namespace {

enum State : uint32_t { kNotStarted, kStarting, kRunning, kOff };
std::atomic<uint32_t> g_state{kNotStarted};
std::atomic<const Snapshot*> g_snapshot;
const LoaderApi* g_loader;  // written before kRunning is published

// How long a thread waits for another one that is starting. Long enough for a large folder; the
// limit is there for what nobody has thought of.
constexpr int kLongestWaitMs = 3000;

thread_local bool t_is_starting __attribute__((tls_model("initial-exec")));

// Held for reading by threads that start, for writing by one that forks: the dynamic linker and the
// loader's C++ library do not survive being copied half-way through their work.
pthread_rwlock_t g_starters = PTHREAD_RWLOCK_INITIALIZER;
thread_local bool t_has_starters __attribute__((tls_model("initial-exec")));

// The loader lies beside this library.
bool find_loader_path(char* out, size_t out_size) {
  Dl_info info;
  if (dladdr(reinterpret_cast<void*>(&find_loader_path), &info) == 0 || info.dli_fname == nullptr) {
    return false;
  }
  char self[PATH_MAX];
  if (!make_absolute(info.dli_fname, self, sizeof self)) return false;
  char* slash = strrchr(self, '/');
  if (slash == nullptr) return false;
  *slash = 0;
  const int length = snprintf(out, out_size, "%s/libfibloader.so", self);
  return length > 0 && static_cast<size_t>(length) < out_size;
}

// Null: `message` says why.
const LoaderApi* load_loader(char* message, size_t message_size) {
  char path[PATH_MAX];
  if (!find_loader_path(path, sizeof path)) {
    snprintf(message, message_size,
             "cannot tell where libfibshim.so lies, so not libfibloader.so either");
    return nullptr;
  }
  // Never closed: the snapshot's code lives there.
  void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    snprintf(message, message_size, "%s", dlerror());
    return nullptr;
  }
  using Entry = const LoaderApi* (*)(uint32_t);
  const auto entry = reinterpret_cast<Entry>(dlsym(library, "fibloader_api"));
  const LoaderApi* api = entry == nullptr ? nullptr : entry(kLoaderApiVersion);
  if (api == nullptr) {
    snprintf(message, message_size, "%.900s is of another version than libfibshim.so", path);
  }
  return api;
}

// A thread that starts may wait for the dynamic linker's lock, which the forking thread may hold: it
// forks all the same then, after a while.
void wait_for_starters() {
  if (t_is_starting) return;
  timespec until;
  clock_gettime(CLOCK_REALTIME, &until);
  until.tv_sec += kLongestWaitMs / 1000;
  t_has_starters = pthread_rwlock_timedwrlock(&g_starters, &until) == 0;
}

void let_starters_go(bool is_child) {
  if (is_child) {
    pthread_rwlock_init(&g_starters, nullptr);  // its writer was this thread under another id
  } else if (t_has_starters) {
    pthread_rwlock_unlock(&g_starters);
  }
  t_has_starters = false;
}

// In the order in which the slow paths take them.
void before_fork() {
  wait_for_starters();
  lock_handles_for_fork();
  lock_decisions_for_fork();
  lock_graphs_for_fork();
  lock_image_identity_for_fork();
  lock_images_for_fork();
  lock_counters_for_fork();
}

void after_fork(bool is_child) {
  unlock_counters_after_fork(is_child);
  unlock_images_after_fork(is_child);
  unlock_image_identity_after_fork(is_child);
  unlock_graphs_after_fork(is_child);
  unlock_decisions_after_fork(is_child);
  unlock_handles_after_fork(is_child);
  // Forked while another thread was starting: that thread does not exist here.
  uint32_t state = kStarting;
  if (is_child) g_state.compare_exchange_strong(state, kNotStarted);
  let_starters_go(is_child);
}

// `message`: why there is no loader.
const Snapshot* start(const LoaderApi* api, char (&message)[1024]) {
  read_settings();
  log_message(LogLevel::debug, "starting, FIBSHIM_CONFIG=%s", config_path());
  g_loader = api;
  if (g_loader == nullptr) {
    log_message(LogLevel::warn, "%s; kernels run unchanged", message);
    return nullptr;
  }
  const Snapshot* snapshot = g_loader->open(config_path(), message, sizeof message);
  if (snapshot == nullptr) {
    log_message(LogLevel::warn, "%s; kernels run unchanged (fibshim check %s lists everything)",
                message, config_path());
    return nullptr;
  }
  // Solutions that are broken. A launch that one of them would serve says so when it happens.
  if (message[0] != 0) log_message(LogLevel::info, "%s", message);
  apply_folder_settings(*snapshot);
  if (mode() == Mode::off) return nullptr;
  if (mode() != Mode::apply) g_slow_reasons.fetch_add(1, std::memory_order_relaxed);
  if (!prepare_image_table(*snapshot)) {
    log_message(LogLevel::warn, "no memory for %u solutions; kernels run unchanged",
                snapshot->solutions.count);
    return nullptr;
  }
  open_counters(*snapshot);
  log_message(LogLevel::info, "%s: %u patterns, %u solutions", snapshot->text(snapshot->root),
              snapshot->patterns.count, snapshot->solutions.count);
  return snapshot;
}

// Until the starting thread is done, or it took too long.
void wait_for_start() {
  timespec begin;
  clock_gettime(CLOCK_MONOTONIC, &begin);
  while (g_state.load(std::memory_order_acquire) == kStarting) {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    const int64_t waited_ms =
        (now.tv_sec - begin.tv_sec) * 1000 + (now.tv_nsec - begin.tv_nsec) / 1000000;
    if (waited_ms >= kLongestWaitMs) return;
    const timespec slice = {0, 100 * 1000 * 1000};
    syscall(SYS_futex, &g_state, FUTEX_WAIT_PRIVATE, kStarting, &slice, nullptr, 0);
  }
}

__attribute__((noinline)) const Snapshot* start_or_wait() {
  if (!is_active() || t_is_starting) return nullptr;
  uint32_t state = g_state.load(std::memory_order_acquire);
  if (state == kNotStarted) {
    // The loader is opened before anything is claimed, by each thread that comes here: that takes
    // the dynamic linker's lock, and the thread that holds it may be in the constructor of a
    // library, waiting for whoever has claimed the start.
    const int saved_errno = errno;
    char message[1024];
    t_is_starting = true;
    pthread_rwlock_rdlock(&g_starters);
    const LoaderApi* api = load_loader(message, sizeof message);
    const bool is_ours =
        g_state.compare_exchange_strong(state, kStarting, std::memory_order_acq_rel);
    const Snapshot* snapshot = is_ours ? start(api, message) : nullptr;
    if (is_ours) {
      g_snapshot.store(snapshot, std::memory_order_release);
      g_state.store(snapshot == nullptr ? kOff : kRunning, std::memory_order_release);
      syscall(SYS_futex, &g_state, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
    }
    pthread_rwlock_unlock(&g_starters);
    t_is_starting = false;
    errno = saved_errno;
    if (is_ours) return snapshot;
  }
  if (state == kStarting) wait_for_start();
  return g_snapshot.load(std::memory_order_acquire);
}

// Cheap: a look at the environment. Everything else waits for CUDA, but for the fork handlers: no
// thread of the parent may be half-way through a change, or through starting, when a child is made.
__attribute__((constructor)) void on_map() {
  remember_working_directory();
  if (is_active()) {
    pthread_atfork(
        before_fork, [] { after_fork(false); }, [] { after_fork(true); });
  }
}

}  // namespace

const Snapshot* ensure_snapshot() {
  const uint32_t state = g_state.load(std::memory_order_acquire);
  if (__builtin_expect(state == kRunning || state == kOff, 1)) {
    return g_snapshot.load(std::memory_order_relaxed);
  }
  return start_or_wait();
}

const Snapshot* current_snapshot() { return g_snapshot.load(std::memory_order_acquire); }

const LoaderApi& loader() { return *g_loader; }

}  // namespace fibshim
