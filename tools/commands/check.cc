// fibshim check: reads config folders as the shim does and prints every mistake with its place.
#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "loader/check/check.h"
#include "loader/check/index.h"
#include "tools/base/commands.h"
#include "tools/base/diagnostics_output.h"
#include "tools/processes/gpus.h"
#include "tools/processes/installation.h"
#include "tools/base/options.h"
#include "tools/base/terminal.h"

namespace fibshim::tools {
namespace {

const char* effect_words(Effect effect) {
  switch (effect) {
    case Effect::invalid_folder: return "an error; the folder is not loaded";
    case Effect::broken_solution:
      return "an error; the folder is loaded, launches of that solution fail "
             "(FIBSHIM_ON_ERROR=fallback: run the original)";
    case Effect::warning: return "a warning; the folder is loaded";
    case Effect::note: return "a note; nothing is wrong";
  }
  return "";
}

int explain(const std::string& name) {
  if (name == "all") {
    std::string out;
    for (const RuleInfo& rule : kRules) {
      out += fmt::format("{}\n  {}.\n  {}\n\n", rule.name, effect_words(rule.effect),
                         rule.explanation);
    }
    return print_data(out) ? kExitFine : kExitWrong;
  }
  const RuleInfo* const rule = find_rule(name);
  if (rule == nullptr) {
    std::vector<std::string_view> names;
    for (const RuleInfo& known : kRules) names.emplace_back(known.name);
    std::string text = fmt::format("--explain: '{}' is not a rule", printable(name));
    const std::string_view meant = nearest_word(name, names);
    if (!meant.empty()) text += fmt::format("; did you mean '{}'?", meant);
    return usage_error("check", text + " ('all' lists them)");
  }
  const std::string out =
      fmt::format("{}: {}\n\n{}\n", rule->name, effect_words(rule->effect), rule->explanation);
  return print_data(out) ? kExitFine : kExitWrong;
}

nlohmann::ordered_json to_json(const std::string& folder, const CheckReport& report) {
  nlohmann::ordered_json findings = nlohmann::ordered_json::array();
  for (const Diagnostic& diagnostic : report.diagnostics) {
    nlohmann::ordered_json item;
    item["file"] = diagnostic.place.file;
    item["line"] = diagnostic.place.line;
    item["column"] = diagnostic.place.column;
    item["severity"] = severity_name(diagnostic.severity);
    item["rule"] = rule_info(diagnostic.rule).name;
    item["message"] = diagnostic.message;
    item["hint"] = diagnostic.hint;
    findings.push_back(std::move(item));
  }
  nlohmann::ordered_json out;
  out["folder"] = folder;
  out["loads"] = report.snapshot != nullptr;
  out["errors"] = report.error_count;
  out["warnings"] = report.warning_count;
  out["notes"] = report.note_count;
  out["definitions"] = report.definition_count;
  out["solutions"] = report.solution_count;
  out["patterns"] = report.pattern_count;
  out["broken_solutions"] = report.broken_solution_count;
  out["ready_bindings"] = report.ready_binding_count;
  out["refused_bindings"] = report.refused_binding_count;
  out["diagnostics"] = std::move(findings);
  return out;
}

}  // namespace

int check_command(int argc, const char* const* argv) {
  CLI::App app("Checks config folders: every mistake, with file, line and column", "fibshim check");
  std::vector<std::string> folders;
  std::string rule;
  bool wants_json = false;
  bool writes_index = false;
  bool wants_gpus = false;
  CheckOptions options;
  app.add_option("DIR", folders, "config folders")->type_name("");
  app.add_flag("--json", wants_json, "print JSON");
  app.add_flag("--write-index", writes_index,
               "write an index, with which a folder without errors is loaded sooner");
  app.add_option("--sm", options.sms,
                 "compute capability, such as 90, that every solution should have an image for")
      ->type_name("NUMBER")
      ->allow_extra_args(false)
      ->check(CLI::Range(30, 999));
  app.add_flag("--gpu", wants_gpus, "the same for every GPU of this machine");
  std::string key;
  auto* const takes_key =
      app.add_option("--key", key,
                     "public key, or a file with one, that must have signed the folder (default: "
                     "FIBSHIM_REQUIRE_KEY)")
          ->type_name("KEY");
  app.add_option("--explain", rule, "explain a rule, or all of them")->type_name("RULE");
  app.footer("Exit codes: 0 no error (there may be warnings); 1 an error; 2 wrong usage.");
  if (int exit_code = 0; !parse_options(&app, "[OPTIONS] DIR...", argc, argv, &exit_code))
    return exit_code;
  if (app.count("--explain") > 0) {
    if (!folders.empty()) return usage_error("check", "--explain takes no folder");
    return explain(rule);
  }
  if (folders.empty()) return usage_error("check", "name at least one config folder");
  if (takes_key->count() > 0 && key.empty()) {
    return usage_error("check", "--key: needs a public key, or a file with one");
  }

  bool has_errors = false;
  std::string text;
  nlohmann::ordered_json document;
  document["version"] = 1;
  document["folders"] = nlohmann::ordered_json::array();
  if (wants_gpus) {
    std::string why;
    const std::vector<uint32_t> sms = compute_capabilities(&why);
    if (sms.empty()) {
      print_message("check", "--gpu: " + printable(why));
      return kExitWrong;
    }
    options.sms.insert(options.sms.end(), sms.begin(), sms.end());
  }
  std::sort(options.sms.begin(), options.sms.end());
  options.sms.erase(std::unique(options.sms.begin(), options.sms.end()), options.sms.end());
  if (!key.empty()) options.required_key = parse_public_key(key) ? key : absolute_path(key);
  options.wants_advice = true;
  options.wants_index_current = !writes_index;
  for (const std::string& folder : folders) {
    CheckReport report;
    if (writes_index) {
      const auto index = write_index(folder, options, &report);
      if (!index) {
        has_errors = true;
        print_message("check", printable(index.error().message));
      }
    } else {
      report = check_folder(folder, options);
    }
    has_errors = has_errors || report.error_count > 0;
    if (wants_json) {
      document["folders"].push_back(to_json(folder, report));
    } else {
      text += format_findings(report) + format_summary(folder, report);
    }
  }
  const bool is_written = wants_json ? print_json(document) : print_data(text);
  return is_written && !has_errors ? kExitFine : kExitWrong;
}

}  // namespace fibshim::tools
