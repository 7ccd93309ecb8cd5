// Which value each setting of shim/abi/settings.h has for a program started from here, and where it
// comes from. The same rules as in the shim: the environment, then the folder's fibshim.json, then
// the default; an empty variable is an unset one; a value that is not understood leaves the
// default.
#pragma once

#include "loader/check/check.h"

namespace fibshim::tools {

enum class SettingSource : uint8_t { environment, folder, none };

struct SettingValue {
  const SettingInfo* info;
  std::string value;           // in force; empty when there is none (no config folder, stderr)
  SettingSource source;        // none: the default
  std::string not_understood;  // what was given instead of an accepted value; its source is `given`
  SettingSource given;
};

struct SettingValues {
  std::vector<SettingValue> values;  // in the table's order
  std::string folder_problem;        // why the config folder's fibshim.json could not be read
  std::vector<Shadowed> shadowed;    // what of several folders is not used

  const SettingValue& operator[](SettingId id) const;
};

using FolderSettings = std::vector<std::pair<std::string, std::string>>;

// From this process's environment and the given settings of a folder (names with FIBSHIM_).
SettingValues resolve_settings(const FolderSettings& folder_settings);

// The same; the folder is the one that FIBSHIM_CONFIG names, if any.
SettingValues resolve_settings();

// Where the counters lie, and where they lie if nothing is said.
std::string stats_folder();
std::string default_stats_folder();

// Variables of this process's environment that begin with FIBSHIM_ and are no setting.
std::vector<std::string> unknown_variables();

}  // namespace fibshim::tools
