#include "tools/base/manual.h"

#include <ctype.h>

#include "loader/read/limits.h"
#include "shim/abi/graph_reasons.h"
#include "shim/abi/outcomes.h"
#include "shim/abi/settings.h"
#include "tools/base/terminal.h"

namespace fibshim::tools {
namespace {

std::string settings_list() {
  std::string out;
  for (const SettingInfo& setting : kSettings) {
    out += fmt::format(".TP\n.B {}\n{} Value: {}. Default: {}.\n", setting.name,
                       roff_sentence(setting.meaning), roff(setting.value_words),
                       roff(setting.default_words));
  }
  return out;
}

// The settings that a folder may have, as fibshim.json spells them.
std::string folder_settings() {
  std::vector<std::string> names;
  for (const SettingInfo& setting : kSettings) {
    if (!setting.is_allowed_in_folder) continue;
    std::string name = std::string(setting.name).substr(8);  // without FIBSHIM_
    std::ranges::transform(name, name.begin(), tolower);
    names.push_back(std::move(name));
  }
  return fmt::format("{}.\n", fmt::join(names, ", "));
}

std::string outcomes_list() {
  std::string out;
  for (const OutcomeInfo& outcome : kOutcomes) {
    out += fmt::format(".TP\n{}\n{}\n", outcome.name, roff(outcome.meaning));
  }
  return out;
}

std::string reasons_list() {
  std::string out;
  for (const GraphReasonInfo& reason : kGraphReasons) {
    out += fmt::format(".TP\n{}\n{}\n", reason.name, roff(reason.meaning));
  }
  return out;
}

std::string limits_list() {
  std::string out;
  for (const LimitInfo& limit : kLimits) {
    out += fmt::format(".TP\n{}\n{} [{}]\n", limit.value, roff(limit.meaning), limit.beyond);
  }
  return out;
}

// "SEE a(1) b(5)".
std::string see_also(std::string_view names) {
  std::string out = ".SH SEE ALSO\n";
  while (!names.empty()) {
    const std::string_view name = names.substr(0, names.find(' '));
    names.remove_prefix(std::min(names.size(), name.size() + 1));
    const size_t bracket = name.find('(');
    out += fmt::format(".BR {} {}{}\n", name.substr(0, bracket), name.substr(bracket),
                       names.empty() ? "" : ",");
  }
  return out;
}

std::string known_text(std::string_view keyword) {
  if (keyword == "SETTINGS") return settings_list();
  if (keyword == "FOLDER_SETTINGS") return folder_settings();
  if (keyword == "OUTCOMES") return outcomes_list();
  if (keyword == "REASONS") return reasons_list();
  if (keyword == "LIMITS") return limits_list();
  if (keyword.starts_with("SEE ")) return see_also(keyword.substr(4));
  return "";
}

}  // namespace

std::string manual_head(const std::string& name, int section) {
  std::string upper = name;
  std::ranges::transform(upper, upper.begin(), toupper);
  return fmt::format(".TH {} {} \"\" \"fibshim {}\" \"fibshim manual\"\n", upper, section,
                     kVersion);
}

std::string fill_manual(std::string_view page,
                        const std::function<std::string(std::string_view)>& expand) {
  std::string out;
  for (const std::string_view line : split(page, '\n')) {
    if (line.size() < 3 || line.front() != '@' || line.back() != '@') {
      out += fmt::format("{}\n", line);
      continue;
    }
    const std::string_view keyword = line.substr(1, line.size() - 2);
    const std::string text = known_text(keyword);
    out += text.empty() ? expand(keyword) : text;
  }
  return out;
}

std::string roff(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if ((c == '.' || c == '\'') && (out.empty() || out.back() == '\n')) out += "\\&";
    out += c == '-' ? "\\-" : c == '\\' ? "\\e" : std::string(1, c);
  }
  return out;
}

std::string roff_sentence(std::string_view text) {
  std::string out = roff(text);
  if (!out.empty()) out[0] = static_cast<char>(toupper(out[0]));
  return out + ".";
}

}  // namespace fibshim::tools
