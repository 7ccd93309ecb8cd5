#include "shim/base/settings_in_force.h"

#include <atomic>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "shim/abi/snapshot.h"

namespace fibshim {

constinit std::atomic<Mode> g_mode{Mode::apply};
constinit std::atomic<bool> g_is_recording{false};
constinit std::atomic<OnError> g_on_error{OnError::fail};

constinit SettingValues g_settings = {};

namespace {

enum class Activity : uint8_t { unknown, active, inactive };
std::atomic<Activity> g_activity{Activity::unknown};

char g_working_directory[PATH_MAX];

Activity find_activity() {
  if (!is_given("FIBSHIM_CONFIG") && !wants_recording()) return Activity::inactive;
  const char* mode_value = secure_getenv("FIBSHIM_MODE");
  const bool is_off = mode_value != nullptr && strcasecmp(mode_value, "off") == 0;
  return is_off ? Activity::inactive : Activity::active;
}

}  // namespace

bool is_given(const char* name) {
  const char* value = secure_getenv(name);
  return value != nullptr && value[0] != 0;
}

bool is_active() {
  Activity activity = g_activity.load(std::memory_order_relaxed);
  if (__builtin_expect(activity == Activity::unknown, 0)) {
    // Before libc has set up the environment the answer is not cached.
    if (environ == nullptr) return false;
    activity = find_activity();
    g_activity.store(activity, std::memory_order_relaxed);
  }
  return activity == Activity::active;
}

bool clears_deepbind() {
  const char* value = is_active() ? secure_getenv("FIBSHIM_DEEPBIND") : nullptr;
  return value != nullptr && strcasecmp(value, "clear") == 0;
}

OnError on_error_of(SolutionOnError of_definition, OnError of_folder) {
  if (g_settings.is_set[static_cast<size_t>(SettingId::on_error)]) return on_error();
  switch (of_definition) {
    case SolutionOnError::unset: break;
    case SolutionOnError::fail: return OnError::fail;
    case SolutionOnError::fallback: return OnError::fallback;
  }
  return of_folder;
}

bool counts_devices_apart() {
  return g_settings.counts_devices_apart.load(std::memory_order_relaxed);
}
uint32_t shadow_interval_of(uint32_t of_definition) {
  const bool is_set = g_settings.is_set[static_cast<size_t>(SettingId::shadow)];
  return is_set || of_definition == kShadowUnset
             ? g_settings.shadow_interval.load(std::memory_order_relaxed)
             : of_definition;
}

MismatchAction on_mismatch_of(OnMismatch of_definition) {
  const bool is_set = g_settings.is_set[static_cast<size_t>(SettingId::on_mismatch)];
  if (is_set || of_definition == OnMismatch::unset) {
    return g_settings.on_mismatch.load(std::memory_order_relaxed);
  }
  switch (of_definition) {
    case OnMismatch::unset: break;
    case OnMismatch::warn: return MismatchAction::warn;
    case OnMismatch::quarantine: return MismatchAction::quarantine;
    case OnMismatch::quarantine_job: return MismatchAction::quarantine_job;
  }
  return MismatchAction::warn;
}

uint64_t shadow_memory() { return g_settings.shadow_memory; }
uint32_t quarantine_limit() { return g_settings.quarantine_limit.load(std::memory_order_relaxed); }

const char* config_path() { return g_settings.config_path; }
LogLevel log_level() { return g_settings.log_level.load(std::memory_order_relaxed); }
const char* stats_dir() { return g_settings.stats_dir; }
const char* log_file() { return g_settings.log_file; }
bool wants_recording() { return is_given("FIBSHIM_RECORD"); }
const char* record_folder() { return g_settings.record_folder; }
uint64_t record_limit() { return g_settings.record_limit; }
RecordTimes record_times() { return g_settings.record_times; }
const char* record_images() { return wants_recording() ? g_settings.record_images : ""; }
const char* job_label() { return g_settings.job; }
FolderRules folder_rules() { return {g_settings.required_key, g_settings.trust}; }

void remember_working_directory() {
  const bool has_folder = is_given("FIBSHIM_CONFIG") || wants_recording();
  if (!has_folder || getcwd(g_working_directory, sizeof g_working_directory) == nullptr) {
    g_working_directory[0] = 0;
  }
}

bool make_absolute(const char* path, char* out, unsigned long out_size) {
  int length;
  if (path[0] == '/' || g_working_directory[0] == 0) {
    length = snprintf(out, out_size, "%s", path);
  } else {
    length = snprintf(out, out_size, "%s/%s", g_working_directory, path);
  }
  return length >= 0 && static_cast<unsigned long>(length) < out_size;
}

void expand_path(const char* pattern, char* out, size_t out_size) {
  size_t used = 0;
  auto append = [&](const char* text) {
    while (*text != 0 && used + 1 < out_size) out[used++] = *text++;
  };
  for (const char* at = pattern; *at != 0; ++at) {
    char piece[256] = {*at, 0};
    if (at[0] == '%' && at[1] == 'h') {
      if (gethostname(piece, sizeof piece) != 0) strcpy(piece, "host");
      piece[sizeof piece - 1] = 0;
      ++at;
    } else if (at[0] == '%' && at[1] == 'p') {
      snprintf(piece, sizeof piece, "%d", static_cast<int>(getpid()));
      ++at;
    } else if (at[0] == '%' && at[1] == '%') {
      ++at;
    } else if (at[0] == '%' && at[1] == 'q' && at[2] == '{' && strchr(at, '}') != nullptr) {
      const char* end = strchr(at, '}');
      char name[128];
      snprintf(name, sizeof name, "%.*s", static_cast<int>(end - at - 3), at + 3);
      const char* value = secure_getenv(name);
      snprintf(piece, sizeof piece, "%s", value == nullptr ? "" : value);
      at = end;
    }
    append(piece);
  }
  out[used] = 0;
}

}  // namespace fibshim
