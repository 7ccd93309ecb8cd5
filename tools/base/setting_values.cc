#include "tools/base/setting_values.h"

#include <stdlib.h>
#include <strings.h>
#include <unistd.h>

#include <iterator>

#include <fmt/format.h>

namespace fibshim::tools {
namespace {

std::string default_value(const SettingInfo& setting) {
  switch (setting.id) {
    case SettingId::config:
    case SettingId::log_file:
    case SettingId::job:
    case SettingId::require_key:
    case SettingId::record:
    case SettingId::record_images: return "";
    case SettingId::stats_dir: return default_stats_folder();
    case SettingId::mode:
    case SettingId::on_error:
    case SettingId::log:
    case SettingId::record_limit:
    case SettingId::record_times:
    case SettingId::quarantine:
    case SettingId::devices:
    case SettingId::shadow:
    case SettingId::shadow_memory:
    case SettingId::on_mismatch:
    case SettingId::deepbind:
    case SettingId::trust: return setting.default_words;
  }
  return "";
}

// Sets the value if it is accepted. As in the shim, words may be in upper or lower case.
void set_value(SettingValue* setting, const std::string& given, SettingSource source) {
  const bool is_text = setting->info->choices[0] == nullptr;
  if (is_text && takes_text(setting->info->id, given.c_str())) {
    setting->value = given;
    setting->source = source;
    return;
  }
  for (const char* choice : setting->info->choices) {
    if (choice == nullptr || strcasecmp(choice, given.c_str()) != 0) continue;
    setting->value = choice;
    setting->source = source;
    return;
  }
  setting->not_understood = given;
  setting->given = source;
}

// Reads the settings in the folder's fibshim.json through the loader, as the shim does.
FolderSettings read_folder_settings(const std::string& folder, std::string* problem,
                                    std::vector<Shadowed>* shadowed) {
  CheckReport report = check_folder(folder);
  *shadowed = std::move(report.shadowed);
  if (report.snapshot == nullptr) {
    *problem = fmt::format(
        "{} is not loaded, so its fibshim.json does not count: 'fibshim check "
        "{}' says why",
        folder, folder);
    return {};
  }
  FolderSettings out;
  const Snapshot& snapshot = *report.snapshot;
  const Setting* const settings = snapshot.begin(snapshot.settings);
  for (uint32_t i = 0; i < snapshot.settings.count; ++i) {
    out.emplace_back(snapshot.text(settings[i].name), snapshot.text(settings[i].value));
  }
  return out;
}

}  // namespace

const SettingValue& SettingValues::operator[](SettingId id) const {
  return values.at(static_cast<size_t>(id));
}

SettingValues resolve_settings(const FolderSettings& folder_settings) {
  SettingValues out;
  for (const SettingInfo& info : kSettings) {
    SettingValue setting{&info, default_value(info), SettingSource::none, "", SettingSource::none};
    const char* const variable = getenv(info.name);
    if (variable != nullptr && variable[0] != '\0') {
      set_value(&setting, variable, SettingSource::environment);
    } else if (info.is_allowed_in_folder) {
      for (const auto& [name, value] : folder_settings) {
        if (name == info.name) set_value(&setting, value, SettingSource::folder);
      }
    }
    out.values.push_back(std::move(setting));
  }
  return out;
}

SettingValues resolve_settings() {
  FolderSettings folder_settings;
  std::string problem;
  std::vector<Shadowed> shadowed;
  const char* const folder = getenv("FIBSHIM_CONFIG");
  if (folder != nullptr && folder[0] != '\0') {
    folder_settings = read_folder_settings(folder, &problem, &shadowed);
  }
  SettingValues out = resolve_settings(folder_settings);
  out.folder_problem = std::move(problem);
  out.shadowed = std::move(shadowed);
  return out;
}

std::string default_stats_folder() { return fmt::format("/dev/shm/fibshim-{}", geteuid()); }

std::string stats_folder() { return resolve_settings({})[SettingId::stats_dir].value; }

std::vector<std::string> unknown_variables() {
  std::vector<std::string> out;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string_view text = *variable;
    const std::string_view name = text.substr(0, text.find('='));
    if (name.substr(0, 8) != "FIBSHIM_") continue;
    bool is_setting = false;
    for (const SettingInfo& info : kSettings) is_setting = is_setting || name == info.name;
    if (!is_setting) out.emplace_back(name);
  }
  return out;
}

}  // namespace fibshim::tools
