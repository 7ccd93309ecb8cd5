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
#include "shim/abi/control_format.h"
#include "shim/base/log.h"

namespace fibshim {

constinit std::atomic<Mode> g_mode{Mode::apply};
constinit std::atomic<bool> g_is_recording{false};
constinit std::atomic<OnError> g_on_error{OnError::fail};

namespace {

enum class Activity : uint8_t { unknown, active, inactive };
std::atomic<Activity> g_activity{Activity::unknown};

char g_working_directory[PATH_MAX];
char g_config_path[PATH_MAX];
char g_stats_dir[PATH_MAX];
char g_log_file[PATH_MAX];
char g_record_folder[PATH_MAX];
char g_job[kControlTextBytes];
Trust g_trust = Trust::owner;
char g_required_key[8192];
uint64_t g_record_limit = kDefaultRecordLimit;
std::atomic<LogLevel> g_log_level{LogLevel::warn};
std::atomic<bool> g_counts_devices_apart{true};
std::atomic<uint32_t> g_quarantine_limit{0};
bool g_is_set[kSettingCount];  // by the environment

// Position of `value` among a setting's choices, or -1.
int find_choice(const SettingInfo& setting, const char* value) {
  for (int i = 0; i < 4 && setting.choices[i] != nullptr; ++i) {
    if (strcasecmp(value, setting.choices[i]) == 0) return i;
  }
  return -1;
}

// "65536", "64k", "1M", "2G". 0: not understood, or too small.
uint64_t parse_record_limit(const char* value) {
  char* end = nullptr;
  errno = 0;
  const uint64_t number = strtoull(value, &end, 10);
  if (value[0] < '0' || value[0] > '9' || errno != 0) return 0;
  int shift = 0;
  const char unit = *end == 'K' ? 'k' : *end;
  if (unit == 'k' || unit == 'M' || unit == 'G') {
    shift = unit == 'k' ? 10 : unit == 'M' ? 20 : 30;
    ++end;
  }
  if (*end != 0 || number > (UINT64_MAX >> 1 >> shift)) return 0;
  const uint64_t bytes = number << shift;
  return bytes < kSmallestRecordLimit ? 0 : bytes;
}

void warn_of_value(const SettingInfo& setting, const char* value, const char* where) {
  log_message(LogLevel::warn, "%s: %s is \"%.64s\", expected %s; %s holds", where, setting.name,
              value, setting.value_words, setting.default_words);
}

void take_value(const SettingInfo& setting, const char* value, const char* where) {
  int choice = 0;
  if (setting.choices[0] != nullptr) {
    choice = find_choice(setting, value);
    if (choice < 0) {
      return warn_of_value(setting, value, where);
    }
  }
  switch (setting.id) {
    case SettingId::config:
      if (!make_absolute(value, g_config_path, sizeof g_config_path)) g_config_path[0] = 0;
      break;
    case SettingId::mode: g_mode.store(static_cast<Mode>(choice)); break;
    case SettingId::on_error: g_on_error.store(static_cast<OnError>(choice)); break;
    case SettingId::stats_dir:
      if (!make_absolute(value, g_stats_dir, sizeof g_stats_dir)) g_stats_dir[0] = 0;
      break;
    case SettingId::log: g_log_level.store(static_cast<LogLevel>(choice)); break;
    case SettingId::log_file:
      if (!make_absolute(value, g_log_file, sizeof g_log_file)) g_log_file[0] = 0;
      break;
    case SettingId::trust: g_trust = static_cast<Trust>(choice); break;
    case SettingId::require_key:
      // One that is cut could be another key's: nothing has signed anything with this one.
      if (snprintf(g_required_key, sizeof g_required_key, "%s", value) >=
          static_cast<int>(sizeof g_required_key)) {
        strcpy(g_required_key, "(a text that is too long)");
      }
      break;
    case SettingId::deepbind: break;  // clears_deepbind() reads it, before this does
    case SettingId::record:
      if (!make_absolute(value, g_record_folder, sizeof g_record_folder)) g_record_folder[0] = 0;
      break;
    case SettingId::record_limit:
      if (const uint64_t bytes = parse_record_limit(value)) {
        g_record_limit = bytes;
      } else {
        warn_of_value(setting, value, where);
      }
      break;
    case SettingId::job: snprintf(g_job, sizeof g_job, "%s", value); break;
    case SettingId::devices: g_counts_devices_apart.store(choice == 0); break;
    case SettingId::quarantine:
      if (uint32_t limit = 0; parse_count(value, kMostQuarantine, &limit)) {
        g_quarantine_limit.store(limit);
      } else {
        warn_of_value(setting, value, where);
      }
      break;
  }
}

// A folder's choice for a setting that the environment says nothing of; `unset` where it makes none.
template <class Choice>
Choice choice_with(const Snapshot& snapshot, SettingId id, Choice set, Choice unset) {
  const auto index = static_cast<uint32_t>(id);
  if (g_is_set[index]) return set;
  Choice choice = unset;
  const Setting* const settings = snapshot.begin(snapshot.settings);
  for (uint32_t i = 0; i < snapshot.settings.count; ++i) {
    if (strcmp(snapshot.text(settings[i].name), kSettings[index].name) != 0) continue;
    const char* const value = snapshot.text(settings[i].value);
    const int found = find_choice(kSettings[index], value);
    if (found < 0) {
      warn_of_value(kSettings[index], value, "fibshim.json");
    } else {
      choice = static_cast<Choice>(found);
    }
  }
  return choice;
}

// The limit of a process that goes on with this folder.
void take_quarantine_of(const Snapshot& snapshot) {
  constexpr auto kAt = static_cast<size_t>(SettingId::quarantine);
  if (g_is_set[kAt]) return;
  g_quarantine_limit.store(0);
  const Setting* folder_settings = snapshot.begin(snapshot.settings);
  for (uint32_t i = 0; i < snapshot.settings.count; ++i) {
    if (strcmp(snapshot.text(folder_settings[i].name), kSettings[kAt].name) != 0) continue;
    take_value(kSettings[kAt], snapshot.text(folder_settings[i].value), "fibshim.json");
  }
}

bool is_given(const char* name) {
  const char* value = secure_getenv(name);
  return value != nullptr && value[0] != 0;
}

Activity find_activity() {
  if (!is_given("FIBSHIM_CONFIG") && !wants_recording()) return Activity::inactive;
  const char* mode_value = secure_getenv("FIBSHIM_MODE");
  const bool is_off = mode_value != nullptr && strcasecmp(mode_value, "off") == 0;
  return is_off ? Activity::inactive : Activity::active;
}

}  // namespace

bool is_active() {
  Activity activity = g_activity.load(std::memory_order_relaxed);
  if (__builtin_expect(activity == Activity::unknown, 0)) {
    // Asked before libc has set the environment up: the answer is not kept.
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

OnError on_error_of(SolutionOnError of_definition) {
  if (g_is_set[static_cast<size_t>(SettingId::on_error)]) return on_error();
  switch (of_definition) {
    case SolutionOnError::unset: break;
    case SolutionOnError::fail: return OnError::fail;
    case SolutionOnError::fallback: return OnError::fallback;
  }
  return on_error();
}

bool counts_devices_apart() { return g_counts_devices_apart.load(std::memory_order_relaxed); }
uint32_t quarantine_limit() { return g_quarantine_limit.load(std::memory_order_relaxed); }

const char* config_path() { return g_config_path; }
LogLevel log_level() { return g_log_level.load(std::memory_order_relaxed); }
const char* stats_dir() { return g_stats_dir; }
const char* log_file() { return g_log_file; }
bool wants_recording() { return is_given("FIBSHIM_RECORD"); }
const char* record_folder() { return g_record_folder; }
uint64_t record_limit() { return g_record_limit; }
const char* job_label() { return g_job; }
FolderRules folder_rules() { return {g_required_key, g_trust}; }

void read_settings() {
  snprintf(g_stats_dir, sizeof g_stats_dir, "/dev/shm/fibshim-%u", geteuid());
  // The log's own settings first, so that warnings about the others go where they should.
  for (const bool is_log_pass : {true, false}) {
    for (uint32_t i = 0; i < kSettingCount; ++i) {
      const SettingInfo& setting = kSettings[i];
      const bool is_log = setting.id == SettingId::log || setting.id == SettingId::log_file;
      if (is_log != is_log_pass) continue;
      const char* value = secure_getenv(setting.name);
      if (value == nullptr || value[0] == 0) continue;
      g_is_set[i] = true;
      take_value(setting, value, "environment");
    }
  }
  for (const RemovedSetting& removed : kRemovedSettings) {
    if (is_given(removed.name)) {
      log_message(LogLevel::warn, "%s is gone: %s", removed.name, removed.instead);
    }
  }
  for (const char* name : kJobVariables) {
    if (g_job[0] != 0) break;
    const char* const value = secure_getenv(name);
    if (value != nullptr && value[0] != 0) snprintf(g_job, sizeof g_job, "%s=%s", name, value);
  }
}

void apply_folder_settings(const Snapshot& snapshot) {
  const Setting* folder_settings = snapshot.begin(snapshot.settings);
  for (uint32_t i = 0; i < snapshot.settings.count; ++i) {
    const char* name = snapshot.text(folder_settings[i].name);
    for (uint32_t k = 0; k < kSettingCount; ++k) {
      if (g_is_set[k] || strcmp(name, kSettings[k].name) != 0) continue;
      // check refuses it in fibshim.json; an index may have been made by hand.
      if (!kSettings[k].is_allowed_in_folder) continue;
      take_value(kSettings[k], snapshot.text(folder_settings[i].value), "fibshim.json");
    }
  }
}

Mode mode_with(const Snapshot& snapshot) {
  return choice_with(snapshot, SettingId::mode, mode(), Mode::apply);
}

void apply_settings_of_next(const Snapshot& snapshot, Mode mode) {
  g_mode.store(mode, std::memory_order_relaxed);
  g_on_error.store(choice_with(snapshot, SettingId::on_error, on_error(), OnError::fail),
                   std::memory_order_relaxed);
  g_log_level.store(choice_with(snapshot, SettingId::log, log_level(), LogLevel::warn),
                    std::memory_order_relaxed);
  take_quarantine_of(snapshot);
}

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
