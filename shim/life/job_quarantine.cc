#include "shim/life/job_quarantine.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>

#include "shim/base/process_file.h"
#include "shim/base/settings_in_force.h"
#include "shim/launch/served_solutions.h"
#include "shim/life/mapped_control.h"
#include "shim/life/watch.h"

namespace fibshim {
namespace {

bool is_of_job(const ControlStatus& status) {
  char job[sizeof status.job];
  for (int attempt = 0; attempt < 100; ++attempt) {
    const uint32_t version = __atomic_load_n(&status.version, __ATOMIC_ACQUIRE);
    memcpy(job, status.job, sizeof job);
    __atomic_thread_fence(__ATOMIC_ACQUIRE);
    if (version % 2 == 0 && __atomic_load_n(&status.version, __ATOMIC_RELAXED) == version) {
      return strncmp(job, job_label(), sizeof job) == 0;
    }
  }
  return false;
}

bool lives(const MappedControl& control) {
  char pid[24];
  snprintf(pid, sizeof pid, "%llu", static_cast<unsigned long long>(control.pid()));
  return process_start_time(pid) == control.start_time();
}

// Calls `use(control)` for the control block of each process of the job, including this one.
template <class Use>
void for_each_of_job(const Use& use) {
  if (job_label()[0] == 0) return;
  DIR* const listing = opendir(stats_dir());
  if (listing == nullptr) return;
  while (const dirent* const entry = readdir(listing)) {
    const size_t length = strlen(entry->d_name);
    constexpr size_t kSuffix = sizeof kCountersSuffix - 1;
    if (length < kSuffix || strcmp(entry->d_name + length - kSuffix, kCountersSuffix) != 0) {
      continue;
    }
    MappedControl control;
    if (control.open(entry->d_name) == nullptr && is_of_job(control->status)) use(control);
    control.close();
  }
  closedir(listing);
}

// Adds an identity unless it is there already or there is no room.
void add(ControlBlock* control, uint64_t identity) {
  for (uint64_t& place : control->quarantines) {
    uint64_t known = 0;
    if (__atomic_compare_exchange_n(&place, &known, identity, false, __ATOMIC_SEQ_CST,
                                    __ATOMIC_SEQ_CST) ||
        known == identity) {
      return;
    }
  }
}

template <class Use>
void for_each_quarantine(const ControlBlock& control, const Use& use) {
  for (const uint64_t& place : control.quarantines) {
    const uint64_t identity = __atomic_load_n(&place, __ATOMIC_SEQ_CST);
    if (identity == 0) return;
    use(identity);
  }
}

}  // namespace

void follow_job_quarantines() {
  ControlBlock* const own = g_watch.control;
  static const ControlBlock* joined = nullptr;
  if (own == nullptr) return;
  if (own != joined) {
    joined = own;
    for_each_of_job([&](const MappedControl& other) {
      // A process that ended may have belonged to an earlier job of that name.
      if (!lives(other)) return;
      for_each_quarantine(*other, [&](uint64_t identity) { add(own, identity); });
    });
  }
  while (const uint64_t found = next_found_quarantine()) {
    add(own, found);
    for_each_of_job([&](const MappedControl& other) {
      add(&*other, found);
      wake_all(&other->ask);
    });
  }
  for_each_quarantine(*own, quarantine_identity);
}

void forget_job_quarantines() {
  ControlBlock* const own = g_watch.control;
  if (own == nullptr) return;
  for (uint64_t& place : own->quarantines) __atomic_store_n(&place, 0, __ATOMIC_SEQ_CST);
}

}  // namespace fibshim
