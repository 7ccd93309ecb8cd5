#include "shim/life/start_gate.h"

#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "shim/base/settings_in_force.h"
#include "shim/registry/generation.h"

namespace fibshim {
namespace {

constexpr int kLongestWaitMs = 3000;

__thread bool t_is_starting __attribute__((tls_model("initial-exec")));
std::atomic<uint32_t> g_starters{0};
std::atomic<uint32_t> g_forkers{0};

// Waits until is_over(value of `word`). False: it took too long.
template <class IsOver>
bool wait_until(std::atomic<uint32_t>* word, IsOver is_over) {
  constexpr int64_t kSliceNs = 100'000'000;
  int64_t left_ns = kLongestWaitMs * int64_t{1'000'000};
  timespec before;
  clock_gettime(CLOCK_MONOTONIC, &before);
  for (uint32_t seen; !is_over(seen = word->load());) {
    if (left_ns <= 0) return false;
    const timespec slice = {0, kSliceNs};
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, &slice, nullptr, 0);
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    const int64_t passed_ns =
        (now.tv_sec - before.tv_sec) * 1'000'000'000 + (now.tv_nsec - before.tv_nsec);
    // If the process was stopped or the clock has jumped, it has not waited all that time.
    left_ns -= passed_ns < 2 * kSliceNs ? passed_ns : 2 * kSliceNs;
    before = now;
  }
  return true;
}

bool is_zero(uint32_t value) { return value == 0; }

}  // namespace

void enter_start_gate() {
  t_is_starting = true;
  // Starters and forkers first count themselves, then check for the others.
  for (bool has_time = true;; has_time = wait_until(&g_forkers, is_zero)) {
    g_starters.fetch_add(1);
    if (g_forkers.load() == 0 || !has_time) return;
    if (g_starters.fetch_sub(1) == 1) wake_waiters(&g_starters);
  }
}

void leave_start_gate() {
  if (g_starters.fetch_sub(1) == 1) wake_waiters(&g_starters);
  t_is_starting = false;
}

bool is_in_start_gate() { return t_is_starting; }

void enter_fork() {
  g_forkers.fetch_add(1);
  if (!t_is_starting) (void)wait_until(&g_starters, is_zero);
}

void leave_fork(bool is_child) {
  if (is_child) {
    g_starters.store(0);
    g_forkers.store(0);
  } else if (g_forkers.fetch_sub(1) == 1) {
    wake_waiters(&g_forkers);
  }
}

void wait_while(std::atomic<uint32_t>* word, uint32_t value) {
  (void)wait_until(word, [value](uint32_t now) { return now != value; });
}

void wake_waiters(std::atomic<uint32_t>* word) {
  syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

const Snapshot* open_folder(const char* path, char* message, size_t message_size) {
  enter_start_gate();
  const Snapshot* const snapshot = loader().open(path, folder_rules(), message, message_size);
  leave_start_gate();
  return snapshot;
}

}  // namespace fibshim
