// fibshim check: reads config folders as the shim does and prints every mistake with its place.
#include <filesystem>
#include <system_error>

#include <nlohmann/json.hpp>

#include "tools/base/files.h"
#include "tools/commands/commands.h"
#include "tools/base/diagnostics_output.h"
#include "tools/base/folder_list.h"
#include "tools/lint/advice.h"
#include "tools/lint/measurements.h"
#include "tools/processes/gpus.h"
#include "tools/processes/installation.h"
#include "tools/record/pattern_coverage.h"

namespace fibshim::tools {
namespace {

const char* effect_words(Effect effect) {
  switch (effect) {
    case Effect::invalid_folder: return "an error; the folder is not loaded";
    case Effect::broken_solution:
      return "an error; the folder is loaded, launches of that solution fail "
             "(FIBSHIM_ON_ERROR=fallback: run the original)";
    case Effect::mistake: return "an error; the folder is loaded all the same";
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
    findings.push_back({{"file", diagnostic.place.file},
                        {"line", diagnostic.place.line},
                        {"column", diagnostic.place.column},
                        {"severity", severity_name(diagnostic.severity)},
                        {"rule", rule_info(diagnostic.rule).name},
                        {"message", diagnostic.message},
                        {"hint", diagnostic.hint}});
  }
  return {{"folder", folder},
          {"loads", report.snapshot != nullptr},
          {"errors", report.error_count},
          {"warnings", report.warning_count},
          {"notes", report.note_count},
          {"definitions", report.definition_count},
          {"solutions", report.solution_count},
          {"patterns", report.pattern_count},
          {"broken_solutions", report.broken_solution_count},
          {"ready_bindings", report.ready_binding_count},
          {"refused_bindings", report.refused_binding_count},
          {"diagnostics", std::move(findings)}};
}

// Writes the list of files that a signature of the folder covers. Returns why that failed, or "".
std::string write_manifest(const std::string& folder, const CheckReport& report) {
  if (report.error_count > 0) return "has mistakes; no manifest was written";
  const std::vector<ManifestEntry>& entries = report.manifest.entries;
  const auto text = manifest_text(entries);
  if (!text) return text.error().message;
  const std::string path = folder + "/" + kManifestFile;
  if (!is_replaceable(path)) return fmt::format("{} is not a regular file", kManifestFile);
  const std::string reason = write_file(path, *text);
  if (!reason.empty()) return fmt::format("{}: {}", kManifestFile, reason);
  print_message("check",
                "{}: {} files listed. Sign the list with: minisign -S -s "
                "SECRET_KEY -m {}",
                printable(path), entries.size(), shell_quoted(path));
  return "";
}

// Removes the write permission of everybody but the owner from a folder and all below it.
void fix_modes(const std::string& folder) {
  namespace fs = std::filesystem;
  constexpr fs::perms kOthers = fs::perms::group_write | fs::perms::others_write;
  std::error_code error;
  const auto fix = [&](const fs::path& path) {
    const fs::file_status status = fs::symlink_status(path, error);
    if (error || fs::is_symlink(status) || (status.permissions() & kOthers) == fs::perms::none)
      return;
    fs::permissions(path, kOthers, fs::perm_options::remove, error);
    print_message("check", "{}: {}", printable(path.string()),
                  error ? error.message() : "only its owner can write it now");
  };
  fix(folder);
  std::vector<std::string> faults;
  for (const std::string& path : paths_below(folder, &faults)) fix(path);
  for (const std::string& fault : faults) print_message("check", printable(fault));
}

// Corrects the SHA-256 in solutions that state another one than their image has.
void fix_sums(const FolderModel& model) {
  for (const SolutionSpec& solution : model.solutions) {
    for (const SolutionImage& image : solution.images) {
      const auto content = model.folders[solution.folder].root.read(image.relative, kMaxImageBytes);
      if (!content) continue;
      const std::string found = sha256_hex(sha256(content->bytes));
      const std::string stated = sha256_hex(image.hash);
      if (found == stated) continue;
      auto text = read_file(*solution.file, kMaxJsonBytes);
      size_t line = 0;
      for (uint32_t i = 1; text && i < image.hash_mark.line; ++i) line = text->find('\n', line) + 1;
      const size_t at = text ? text->find(stated, line) : std::string::npos;
      std::string fault = "the sum is not written as 64 small digits";
      if (at != std::string::npos)
        fault = write_file(*solution.file, text->replace(at, found.size(), found));
      print_message("check", "{}: {}", printable(*solution.file),
                    fault.empty()
                        ? fmt::format("the sum of {} is {} now", printable(image.path.text), found)
                        : fault);
    }
  }
}

// The byte at which a character begins. `line` and `column` count from 1. npos if there is none.
size_t byte_at(std::string_view text, uint32_t line, uint32_t column) {
  size_t at = 0;
  for (uint32_t i = 1; i < line; ++i) {
    at = text.find('\n', at);
    if (at == std::string_view::npos) return at;
    ++at;
  }
  for (uint32_t i = 1; i < column; ++i) {
    if (at >= text.size()) return std::string_view::npos;
    do ++at;
    while (at < text.size() && (static_cast<unsigned char>(text[at]) & 0xc0) == 0x80);
  }
  return at;
}

// Replaces misspelt keys for which only one correct key is possible. Returns whether there were
// any.
bool fix_keys(const std::vector<Diagnostic>& findings) {
  bool has_fixed = false;
  // From the end of each file, so that the places of earlier findings stay valid.
  for (auto one = findings.rbegin(); one != findings.rend(); ++one) {
    if (one->rule != Rule::unknown_key || one->meant.empty()) continue;
    auto text = read_file(one->place.file, kMaxJsonBytes);
    if (!text) continue;
    const size_t at = byte_at(*text, one->place.line, one->place.column);
    const size_t end = at >= text->size() ? at : text->find('"', at + 1);
    if (end >= text->size() || (*text)[at] != '"') continue;
    const std::string before = text->substr(at + 1, end - at - 1);
    const std::string fault =
        write_file(one->place.file, text->replace(at + 1, before.size(), one->meant));
    print_message(
        "check", "{}:{}: {}", printable(one->place.file), one->place.line,
        fault.empty() ? fmt::format("\"{}\" is \"{}\" now", printable(before), one->meant) : fault);
    has_fixed = has_fixed || fault.empty();
  }
  return has_fixed;
}

// Fixes what needs no judgement: permissions, then keys, then sums.
void fix_folder(const std::string& folder, const CheckOptions& given) {
  FolderModel model;
  CheckReport report;
  const auto check = [&] {
    CheckLint lint;
    CheckOptions options = given;
    options.lint = &lint;
    options.model = &model;
    report = check_folder(folder, options);
  };
  const auto has = [&](Rule rule) {
    return std::ranges::any_of(report.diagnostics,
                               [&](const auto& one) { return one.rule == rule; });
  };
  check();
  if (has(Rule::untrusted)) fix_modes(folder);
  if (fix_keys(report.diagnostics)) check();
  if (has(Rule::image_sha256)) fix_sums(model);
}

struct Arguments {
  std::vector<std::string> folders;
  std::string rule;
  std::string key;
  bool wants_json = false;
  bool writes_manifest = false;
  bool wants_gpus = false;
  bool fixes = false;
  std::vector<uint32_t> sms;
  std::vector<std::string> against;
  CheckOptions options;
};

// Prints a message and returns false if one of the files cannot be read.
bool read_kernels(const std::vector<std::string>& paths, KernelList* list) {
  bool is_fine = true;
  for (const std::string& path : paths) {
    if (const auto added = add_kernels(path, list); !added) {
      is_fine = false;
      print_message("check", "--against: {}: {}", printable(path),
                    printable(added.error().message));
    }
  }
  for (const std::string& problem : list->problems) {
    print_message("check", "--against: {}", printable(problem));
  }
  return is_fine;
}

std::string against_text(const KernelList& kernels, const Coverage& coverage) {
  const auto dead = std::count_if(coverage.patterns.begin(), coverage.patterns.end(),
                                  [](const PatternCoverage& one) { return one.fits.empty(); });
  return fmt::format("  against {} of {}: {}\n{}", counted(coverage.kernel_count, "kernel"),
                     printable(fmt::format("{}", fmt::join(kernels.origins, ", "))),
                     dead == 0 ? std::string("every pattern fits one")
                               : fmt::format("{} of {} fit nothing", dead,
                                             counted(coverage.patterns.size(), "pattern")),
                     coverage_text(coverage));
}

// Prints a message and returns false if the driver cannot report the GPUs of this machine.
bool add_sms_of_gpus(std::vector<uint32_t>* sms) {
  const DriverInfo driver = ask_driver();
  if (!driver.fault.empty()) print_message("check", "--gpu: " + printable(driver.fault));
  for (const GpuInfo& gpu : driver.gpus) sms->push_back(gpu.sm);
  return driver.fault.empty();
}

// Adds the findings about measurements.
class FolderLintWithTimes : public CheckLint {
 public:
  using CheckLint::CheckLint;
  void check_model(const FolderModel& model, Diagnostics* diagnostics) override {
    CheckLint::check_model(model, diagnostics);
    report_measurements(model, diagnostics);
  }
};

// Checks one folder; fixes it or writes its manifest if asked to. Returns false for an error in it.
bool check_one(const std::string& folder, const Arguments& arguments, CheckReport* report) {
  FolderLintWithTimes lint(arguments.sms);
  CheckOptions options = arguments.options;
  if (arguments.fixes) fix_folder(folder, options);
  options.lint = &lint;
  *report = check_folder(folder, options);
  const std::string fault = arguments.writes_manifest ? write_manifest(folder, *report) : "";
  if (!fault.empty()) print_message("check", printable(fmt::format("{}: {}", folder, fault)));
  return fault.empty() && report->error_count == 0;
}

}  // namespace

int check_command(int argc, const char* const* argv) {
  CommandLine line("check", "Checks config folders: every mistake, with file, line and column",
                   "[OPTIONS] DIR... | --explain RULE",
                   "0 no error (there may be warnings); 1 an error; 2 wrong usage.");
  Arguments given;
  line.positional("DIR", &given.folders,
                  "config folders; DIR:DIR: several in force together, as in FIBSHIM_CONFIG");
  line.json(&given.wants_json);
  line.flag("--write-manifest", &given.writes_manifest,
            "write DIR/fibshim.manifest, the list of files that minisign then signs");
  line.flag(
      "--fix", &given.fixes,
      "first correct what needs no judgement: sums of images that were rebuilt, files that others "
      "can write, and misspelt keys where only one can be meant");
  line.number(
      "--sm", &given.sms, 30u, 999u, "NUMBER",
      "compute capability, such as 90, that every solution should have an image for (may be "
      "repeated)");
  line.flag("--gpu", &given.wants_gpus, "the same for every GPU of this machine");
  line.option(
      "--against", &given.against, "FILE",
      "a library, image, folder of them, or table of kernels: every pattern must fit one of its "
      "kernels (may be repeated)");
  const Option takes_key =
      line.option("--key", &given.key, "KEY",
                  "minisign public key, or a file with one, that must have signed the folder "
                  "(default: FIBSHIM_REQUIRE_KEY)");
  const Option explains =
      line.option("--explain", &given.rule, "RULE", "explain a rule, or all of them");
  line.check([&]() -> std::string {
    if (explains.count() > 0) {
      return !given.folders.empty() ? "--explain takes no folder"
             : given.wants_json     ? "--explain prints text: leave out --json"
                                    : "";
    }
    if (given.folders.empty()) return "name at least one config folder";
    const bool changes = given.fixes || given.writes_manifest;
    for (const std::string& list : given.folders) {
      if (!changes || split_folders(list).size() == 1) continue;
      return fmt::format("{}: name each folder for itself, not {}",
                         given.fixes ? "--fix" : "--write-manifest", list);
    }
    if (takes_key.count() == 0) return "";
    if (given.fixes) return "--fix: a signed folder is not changed; leave out --key";
    if (given.key.empty()) return "--key: needs a public key, or a file with one";
    return given.writes_manifest ? "--write-manifest comes before the signature: leave out --key"
                                 : "";
  });
  if (!line.parse(argc, argv)) return line.exit_code();
  if (explains.count() > 0) return explain(given.rule);

  CheckOptions& options = given.options;
  if (given.wants_gpus && !add_sms_of_gpus(&given.sms)) return kExitWrong;
  std::ranges::sort(given.sms);
  given.sms.erase(std::unique(given.sms.begin(), given.sms.end()), given.sms.end());
  if (!given.key.empty()) {
    options.required_key = parse_public_key(given.key) ? given.key : absolute_path(given.key);
  }
  if (given.writes_manifest) options.required_key.clear();
  options.wants_entries = given.writes_manifest;
  KernelList kernels;
  bool is_fine = read_kernels(given.against, &kernels);
  std::string text;
  nlohmann::ordered_json document = {{"version", 1}, {"folders", nlohmann::ordered_json::array()}};
  for (const std::string& folder : given.folders) {
    CheckReport report;
    is_fine = check_one(folder, given, &report) && is_fine;
    auto& json = document["folders"].emplace_back(to_json(folder, report));
    text += format_findings(report) + format_summary(folder, report);
    if (kernels.origins.empty() || report.snapshot == nullptr) continue;  // none was read
    const Coverage coverage = cover_kernels(*report.snapshot, kernels);
    is_fine = coverage.is_whole() && is_fine;
    json["against"] = coverage_json(coverage);
    text += against_text(kernels, coverage);
  }
  const bool is_written = given.wants_json ? print_json(document) : print_data(text);
  return is_written && is_fine ? kExitFine : kExitWrong;
}

}  // namespace fibshim::tools
