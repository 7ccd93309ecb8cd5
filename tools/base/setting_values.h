// The value that each setting of shim/abi/settings.h has for a program started from here, and its
// source. The rules are the shim's: the environment, then the folder's fibshim.json, then
// the default. An empty variable counts as unset; an invalid value leaves the default.
#pragma once

#include "loader/check/check.h"

namespace fibshim::tools {

enum class SettingSource : uint8_t { environment, folder, none };

struct SettingValue {
  const SettingInfo* info;
  std::string value;           // in force; empty if there is none (no config folder, stderr)
  SettingSource source;        // none: the default
  std::string not_understood;  // the invalid value, if one was given; its source is `given`
  SettingSource given;
};

struct SettingValues {
  std::vector<SettingValue> values;  // in the table's order
  std::string folder_problem;        // why the config folder's fibshim.json could not be read
  std::vector<Shadowed> shadowed;  // with several folders: what an earlier one hides in a later one

  const SettingValue& operator[](SettingId id) const;
};

using FolderSettings = std::vector<std::pair<std::string, std::string>>;

// Resolves them from this environment and these settings of a folder (names with FIBSHIM_).
SettingValues resolve_settings(const FolderSettings& folder_settings);

// The same, with the settings of the folder that FIBSHIM_CONFIG names, if any.
SettingValues resolve_settings();

// The folder of the counters files, and its default if no setting names one.
std::string stats_folder();
std::string default_stats_folder();

// Variables of this process's environment that begin with FIBSHIM_ but name no setting.
std::vector<std::string> unknown_variables();

}  // namespace fibshim::tools
