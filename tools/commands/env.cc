// fibshim env: for every setting, the value that a program started from here would get, and why.
#include <set>

#include <nlohmann/json.hpp>

#include "tools/commands/commands.h"
#include "tools/base/setting_values.h"

namespace fibshim::tools {
namespace {

const char* source_words(SettingSource source) {
  switch (source) {
    case SettingSource::environment: return "environment";
    case SettingSource::folder: return "fibshim.json";
    case SettingSource::none: return "default";
  }
  return "";
}

nlohmann::ordered_json to_json(const SettingValues& settings) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const SettingValue& setting : settings.values) {
    nlohmann::ordered_json row;
    row["name"] = setting.info->name;
    row["value"] = or_null(setting.value);
    row["source"] = source_words(setting.source);
    row["default"] = setting.info->default_words;
    row["accepted"] = setting.info->value_words;
    nlohmann::ordered_json choices = nlohmann::ordered_json::array();
    for (const char* choice : setting.info->choices) {
      if (choice != nullptr) choices.push_back(choice);
    }
    row["choices"] = std::move(choices);
    row["meaning"] = setting.info->meaning;
    row["not_understood"] = or_null(setting.not_understood);
    list.push_back(std::move(row));
  }
  nlohmann::ordered_json document;
  document["version"] = 1;
  document["settings"] = std::move(list);
  document["unknown"] = unknown_variables();
  document["config_problem"] = or_null(settings.folder_problem);
  document["shadowed"] = nlohmann::ordered_json::array();
  for (const Shadowed& one : settings.shadowed) {
    document["shadowed"].push_back(
        {{"kind", one.kind}, {"name", one.name}, {"file", one.place.file}, {"by", one.by.file}});
  }
  return document;
}

// What earlier folders of FIBSHIM_CONFIG hide in later ones; one line for each kind.
std::string shadows_text(const std::vector<Shadowed>& shadowed) {
  std::map<std::string, std::set<std::string>> names;
  for (const Shadowed& one : shadowed) names[one.kind].insert(one.name);
  std::string out;
  for (const auto& [kind, all] : names) {
    constexpr size_t kShown = 8;
    std::string shown;
    for (const std::string& name : all) {
      if (std::ranges::count(shown, ',') + 1 == kShown) {
        shown += ", ...";
        break;
      }
      shown += (shown.empty() ? "" : ", ") + name;
    }
    out += fmt::format("FIBSHIM_CONFIG: an earlier folder has {}: {}\n",
                       counted(all.size(), kind == "solution" ? "definition's solution" : kind,
                               kind == "solution" ? "definitions' solutions" : kind + "s"),
                       printable(shown));
  }
  return out;
}

std::string to_table(const SettingValues& settings) {
  std::vector<std::vector<std::string>> rows = {
      {"SETTING", "VALUE", "FROM", "DEFAULT", "ACCEPTED"}};
  for (const SettingValue& setting : settings.values) {
    rows.push_back({setting.info->name, setting.value.empty() ? "-" : printable(setting.value),
                    source_words(setting.source), setting.info->default_words,
                    setting.info->value_words});
  }
  return format_table(rows) + shadows_text(settings.shadowed);
}

// Prints every setting that cannot mean what its author intended. Returns true if there was one.
bool report_mistakes(const SettingValues& settings) {
  bool found = false;
  for (const SettingValue& setting : settings.values) {
    if (setting.not_understood.empty()) continue;
    found = true;
    print_message("env",
                  "{} is \"{}\" ({}), which is not understood; accepted: {}; "
                  "the default, {}, holds",
                  setting.info->name, printable(setting.not_understood),
                  source_words(setting.given), setting.info->value_words,
                  setting.info->default_words);
  }
  std::vector<std::string_view> names;
  for (const SettingInfo& info : kSettings) names.emplace_back(info.name);
  for (const std::string& name : unknown_variables()) {
    found = true;
    std::string text = fmt::format("{} is not a setting", printable(name));
    const std::string_view meant = nearest_word(name, names);
    if (!meant.empty()) text += fmt::format("; did you mean {}?", meant);
    for (const RemovedSetting& removed : kRemovedSettings) {
      if (name == removed.name) text = fmt::format("{} is gone: {}", name, removed.instead);
    }
    print_message("env", text);
  }
  if (!settings.folder_problem.empty()) {
    found = true;
    print_message("env", "FIBSHIM_CONFIG: {}", printable(settings.folder_problem));
  }
  return found;
}

}  // namespace

int env_command(int argc, const char* const* argv) {
  CommandLine line("env", "The settings: value in force, where it comes from, what is accepted",
                   "[OPTIONS]",
                   "0 fine; 1 a value or a name is not understood, or the config folder is not "
                   "loaded; 2 wrong usage.");
  bool wants_json = false;
  line.json(&wants_json);
  if (!line.parse(argc, argv)) return line.exit_code();

  const SettingValues settings = resolve_settings();
  const bool is_written =
      wants_json ? print_json(to_json(settings)) : print_data(to_table(settings));
  const bool has_mistakes = report_mistakes(settings);
  return is_written && !has_mistakes ? kExitFine : kExitWrong;
}

}  // namespace fibshim::tools
