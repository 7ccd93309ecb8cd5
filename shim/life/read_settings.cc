#include "shim/life/read_settings.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "shim/abi/folder_list.h"
#include "shim/abi/snapshot.h"
#include "shim/base/log.h"
#include "shim/base/settings_in_force.h"

namespace fibshim {
namespace {

// Returns the position of `value` among a setting's choices, or -1.
int find_choice(const SettingInfo& setting, const char* value) {
  for (int i = 0; i < 4 && setting.choices[i] != nullptr; ++i) {
    if (strcasecmp(value, setting.choices[i]) == 0) return i;
  }
  return -1;
}

void warn_of_value(const SettingInfo& setting, const char* value, const char* where) {
  log_message(LogLevel::warn, "%s: %s is \"%.64s\", expected %s; %s holds", where, setting.name,
              value, setting.value_words, setting.default_words);
}

// Makes each folder of a list absolute. False: the result is too long.
bool make_all_absolute(const char* list, char* out, size_t out_size) {
  size_t used = 0;
  size_t length = 0;
  out[0] = 0;
  while (const char* const folder = next_folder(&list, &length)) {
    char one[PATH_MAX];
    if (length >= sizeof one) return false;
    memcpy(one, folder, length);
    one[length] = 0;
    if (used != 0 && used + 1 < out_size) out[used++] = kFolderSeparator;
    if (!make_absolute(one, out + used, out_size - used)) return false;
    used += strlen(out + used);
  }
  return true;
}

// Keeps the default if the path is too long.
void set_path(const SettingInfo& setting, const char* value, char (&out)[PATH_MAX]) {
  char path[PATH_MAX];
  if (make_absolute(value, path, sizeof path)) {
    strcpy(out, path);
  } else {
    log_message(LogLevel::warn, "%s is too long for a path; %s holds", setting.name,
                setting.default_words);
  }
}

void set_value(const SettingInfo& setting, const char* value, const char* where) {
  int choice = 0;
  if (setting.choices[0] != nullptr) {
    choice = find_choice(setting, value);
    if (choice < 0) {
      return warn_of_value(setting, value, where);
    }
  } else if (!takes_text(setting.id, value)) {
    return warn_of_value(setting, value, where);
  }
  switch (setting.id) {
    case SettingId::config:
      if (!make_all_absolute(value, g_settings.config_path, sizeof g_settings.config_path))
        g_settings.config_path[0] = 0;
      if (g_settings.config_path[0] == 0) {
        log_message(LogLevel::warn,
                    "FIBSHIM_CONFIG names no folder, or is too long: \"%.64s\"; "
                    "kernels run unchanged",
                    value);
      }
      break;
    case SettingId::mode: g_mode.store(static_cast<Mode>(choice)); break;
    case SettingId::on_error: g_on_error.store(static_cast<OnError>(choice)); break;
    case SettingId::stats_dir: set_path(setting, value, g_settings.stats_dir); break;
    case SettingId::log: g_settings.log_level.store(static_cast<LogLevel>(choice)); break;
    case SettingId::log_file: set_path(setting, value, g_settings.log_file); break;
    case SettingId::trust: g_settings.trust = static_cast<Trust>(choice); break;
    case SettingId::require_key:
      // A key that is cut could be another valid key. Nothing is signed with this text.
      if (snprintf(g_settings.required_key, sizeof g_settings.required_key, "%s", value) >=
          static_cast<int>(sizeof g_settings.required_key)) {
        strcpy(g_settings.required_key, "(a text that is too long)");
      }
      break;
    case SettingId::deepbind: break;  // clears_deepbind() reads it from the environment
    case SettingId::record:
      if (!make_absolute(value, g_settings.record_folder, sizeof g_settings.record_folder))
        g_settings.record_folder[0] = 0;
      break;
    case SettingId::record_limit: (void)parse_bytes(value, &g_settings.record_limit); break;
    case SettingId::record_images:
      // A glob that is cut would match other kernels.
      if (snprintf(g_settings.record_images, sizeof g_settings.record_images, "%s", value) >=
          static_cast<int>(sizeof g_settings.record_images)) {
        g_settings.record_images[0] = 0;
        warn_of_value(setting, value, where);
      }
      break;
    case SettingId::record_times: g_settings.record_times = static_cast<RecordTimes>(choice); break;
    case SettingId::job: snprintf(g_settings.job, sizeof g_settings.job, "%s", value); break;
    case SettingId::shadow: {
      uint32_t interval = 0;
      (void)parse_shadow(value, &interval);
      g_settings.shadow_interval.store(interval);
      break;
    }
    case SettingId::shadow_memory: (void)parse_bytes(value, &g_settings.shadow_memory); break;
    case SettingId::on_mismatch:
      g_settings.on_mismatch.store(static_cast<MismatchAction>(choice));
      break;
    case SettingId::devices: g_settings.counts_devices_apart.store(choice == 0); break;
    case SettingId::quarantine: {
      uint32_t limit = 0;
      (void)parse_count(value, kMostQuarantine, &limit);
      g_settings.quarantine_limit.store(limit);
      break;
    }
  }
}

// Returns the value of a setting for a process that moves to this folder: `set` if the environment
// sets it, else the folder's choice, or `unset`.
template <class Choice>
Choice choice_with(const Snapshot& snapshot, SettingId id, Choice set, Choice unset) {
  const auto index = static_cast<uint32_t>(id);
  if (g_settings.is_set[index]) return set;
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

// Sets a numeric setting for a process that moves to this folder.
void set_number_of(const Snapshot& snapshot, SettingId id, std::atomic<uint32_t>* number) {
  const auto at = static_cast<size_t>(id);
  if (g_settings.is_set[at]) return;
  number->store(0);
  const Setting* folder_settings = snapshot.begin(snapshot.settings);
  for (uint32_t i = 0; i < snapshot.settings.count; ++i) {
    if (strcmp(snapshot.text(folder_settings[i].name), kSettings[at].name) != 0) continue;
    set_value(kSettings[at], snapshot.text(folder_settings[i].value), "fibshim.json");
  }
}

}  // namespace

void read_settings() {
  snprintf(g_settings.stats_dir, sizeof g_settings.stats_dir, "/dev/shm/fibshim-%u", geteuid());
  // The settings of the log come first, so that warnings about the others go to the right place.
  for (const bool is_log_pass : {true, false}) {
    for (uint32_t i = 0; i < kSettingCount; ++i) {
      const SettingInfo& setting = kSettings[i];
      const bool is_log = setting.id == SettingId::log || setting.id == SettingId::log_file;
      if (is_log != is_log_pass) continue;
      const char* value = secure_getenv(setting.name);
      if (value == nullptr || value[0] == 0) continue;
      g_settings.is_set[i] = true;
      set_value(setting, value, "environment");
    }
  }
  for (const RemovedSetting& removed : kRemovedSettings) {
    if (is_given(removed.name)) {
      log_message(LogLevel::warn, "%s is gone: %s", removed.name, removed.instead);
    }
  }
  for (const char* name : kJobVariables) {
    if (g_settings.job[0] != 0) break;
    const char* const value = secure_getenv(name);
    if (value != nullptr && value[0] != 0)
      snprintf(g_settings.job, sizeof g_settings.job, "%s=%s", name, value);
  }
}

void apply_folder_settings(const Snapshot& snapshot) {
  const Setting* folder_settings = snapshot.begin(snapshot.settings);
  for (uint32_t i = 0; i < snapshot.settings.count; ++i) {
    const char* name = snapshot.text(folder_settings[i].name);
    for (uint32_t k = 0; k < kSettingCount; ++k) {
      if (g_settings.is_set[k] || strcmp(name, kSettings[k].name) != 0) continue;
      // A second guard, since the loader has refused it in fibshim.json already: such a setting
      // could say where the process writes or whom it trusts.
      if (!kSettings[k].is_allowed_in_folder) continue;
      set_value(kSettings[k], snapshot.text(folder_settings[i].value), "fibshim.json");
    }
  }
}

Mode mode_with(const Snapshot& snapshot) {
  return choice_with(snapshot, SettingId::mode, mode(), Mode::apply);
}

OnError on_error_with(const Snapshot& snapshot) {
  return choice_with(snapshot, SettingId::on_error, on_error(), OnError::fail);
}

void apply_settings_of_next(const Snapshot& snapshot, Mode mode) {
  g_mode.store(mode, std::memory_order_relaxed);
  g_on_error.store(on_error_with(snapshot), std::memory_order_relaxed);
  g_settings.log_level.store(choice_with(snapshot, SettingId::log, log_level(), LogLevel::warn),
                             std::memory_order_relaxed);
  g_settings.on_mismatch.store(choice_with(snapshot, SettingId::on_mismatch,
                                           g_settings.on_mismatch.load(), MismatchAction::warn),
                               std::memory_order_relaxed);
  set_number_of(snapshot, SettingId::quarantine, &g_settings.quarantine_limit);
  set_number_of(snapshot, SettingId::shadow, &g_settings.shadow_interval);
}

}  // namespace fibshim
