#include "shim/settings_in_force.h"

#include <atomic>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "loader/snapshot.h"
#include "shim/log.h"

namespace fibshim {

constinit std::atomic<Mode> g_mode{Mode::apply};
constinit std::atomic<OnError> g_on_error{OnError::fail};

namespace {

enum class Activity : uint8_t { unknown, active, inactive };
std::atomic<Activity> g_activity{Activity::unknown};

char g_working_directory[PATH_MAX];
char g_config_path[PATH_MAX];
char g_stats_dir[PATH_MAX];
char g_log_file[PATH_MAX];
std::atomic<LogLevel> g_log_level{LogLevel::warn};
bool g_is_set[kSettingCount];  // by the environment

// Position of `value` among a setting's choices, or -1.
int find_choice(const SettingInfo& setting, const char* value) {
  for (int i = 0; i < 4 && setting.choices[i] != nullptr; ++i) {
    if (strcasecmp(value, setting.choices[i]) == 0) return i;
  }
  return -1;
}

void take_value(const SettingInfo& setting, const char* value, const char* where) {
  int choice = 0;
  if (setting.choices[0] != nullptr) {
    choice = find_choice(setting, value);
    if (choice < 0) {
      log_message(LogLevel::warn, "%s: %s is \"%.64s\", expected %s; %s holds", where, setting.name,
                  value, setting.value_words, setting.default_words);
      return;
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
    case SettingId::trust: break;  // the loader's
    case SettingId::deepbind: break;  // clears_deepbind() reads it, before this does
  }
}

Activity find_activity() {
  const char* config = secure_getenv("FIBSHIM_CONFIG");
  if (config == nullptr || config[0] == 0) return Activity::inactive;
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

const char* config_path() { return g_config_path; }
LogLevel log_level() { return g_log_level.load(std::memory_order_relaxed); }
const char* stats_dir() { return g_stats_dir; }
const char* log_file() { return g_log_file; }

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
}

void apply_folder_settings(const Snapshot& snapshot) {
  const Setting* folder_settings = snapshot.begin(snapshot.settings);
  for (uint32_t i = 0; i < snapshot.settings.count; ++i) {
    const char* name = snapshot.text(folder_settings[i].name);
    for (uint32_t k = 0; k < kSettingCount; ++k) {
      if (g_is_set[k] || strcmp(name, kSettings[k].name) != 0) continue;
      take_value(kSettings[k], snapshot.text(folder_settings[i].value), "fibshim.json");
    }
  }
}

void remember_working_directory() {
  const char* config = secure_getenv("FIBSHIM_CONFIG");
  if (config == nullptr || getcwd(g_working_directory, sizeof g_working_directory) == nullptr) {
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

}  // namespace fibshim
