#include "tools/lint/mistakes.h"

#include <set>

#include "tools/lint/measurements.h"
#include "tools/lint/ranges.h"

namespace fibshim {
namespace {

constexpr char kNameWrites[] = "name every buffer that the original writes";

class MistakeFinder {
 public:
  MistakeFinder(const FolderModel& model, Diagnostics* diagnostics)
      : model_(model), diagnostics_(diagnostics) {}

  void run() {
    for (const Definition& definition : model_.definitions) report_file_name(definition);
    for (const auto& pattern : model_.patterns) {
      Ranges ranges(*pattern);
      report_where(pattern->where, &ranges, "pattern " + in_quotes(pattern->label));
      if (!pattern->is_rewrite()) {
        report_params(*pattern);
        report_shared_arg(*pattern);
        report_any_kernel(*pattern);
      }
      if (pattern->writes.empty()) {
        add(Rule::unwritten_output, pattern->writes_mark, "\"writes\" is empty", kNameWrites);
      }
    }
    for (const SolutionSpec& solution : model_.solutions) {
      const Definition& definition = *model_.definition_of(solution);
      Ranges ranges(definition);
      const std::string whose = "solution " + in_quotes(solution.name.name);
      report_where(solution.where, &ranges, whose);
      Ranges sizes(definition);
      report_where(solution.when, &sizes, whose);
      report_tensors(solution, definition);
      report_missing_wait(solution);
    }
    for (const BindingSpec& binding : model_.bindings) {
      if (binding.state != BindingState::ready) continue;
      report_outputs(binding);
      report_optional(binding);
    }
    report_mode();
  }

 private:
  void add(Rule rule, Mark mark, std::string message, std::string hint = {}) {
    diagnostics_->add(rule, mark, std::move(message), std::move(hint));
  }

  void report_file_name(const Definition& definition) {
    std::string_view file = *definition.name.mark.file;
    file.remove_prefix(file.rfind('/') + 1);
    file.remove_suffix(std::string_view(".json").size());
    // A file name cannot contain a slash.
    if (file == definition.name.name || definition.name.name.find('/') != std::string::npos) return;
    add(Rule::definition_file_name, definition.name.mark,
        "definition " + in_quotes(definition.name.name) + " is in a file of another name",
        "call the file " + in_quotes(definition.name.name + ".json"));
  }

  // Reports clauses that no value can satisfy, and those that every value satisfies.
  void report_where(const std::vector<MarkedExpression>& where, Ranges* ranges,
                    const std::string& whose) {
    const Ranges all = *ranges;
    for (const MarkedExpression& clause : where) {
      if (const std::string why = ranges->add(clause.expression); !why.empty()) {
        add(Rule::impossible_pattern, clause.text.mark,
            "this never holds: " + why + "; " + whose + " redirects nothing");
        return;
      }
      if (const std::string why = all.always_holds(clause.expression); !why.empty()) {
        add(Rule::always_true, clause.text.mark,
            "this always holds: " + why + "; it keeps no launch away");
      }
    }
  }

  void report_params(const PatternSpec& pattern) {
    int64_t bytes = 0;
    for (const uint16_t size : pattern.params) bytes += size;
    if (bytes <= int64_t{kMaxParamBytes}) return;
    add(Rule::impossible_pattern, pattern.mark,
        "\"params\" are " + std::to_string(bytes) + " bytes; no kernel takes more than " +
            std::to_string(kMaxParamBytes));
  }

  // Reports two pointers that are read from one parameter while another pointer parameter has no
  // name: probably one of them should read that. Without an unnamed one, the kernel works in place.
  void report_shared_arg(const PatternSpec& pattern) {
    std::set<uint16_t> named;
    for (const PatternValue& value : pattern.values) {
      if (value.reads_param) named.insert(value.source.index);
    }
    std::string unnamed;
    for (size_t i = 0; i < pattern.params.size(); ++i) {
      if (pattern.params[i] != 8 || named.count(static_cast<uint16_t>(i)) != 0) continue;
      unnamed.append(unnamed.empty() ? "" : ", ").append(std::to_string(i));
    }
    if (unnamed.empty()) return;
    std::vector<const PatternValue*> readers;
    for (const PatternValue& value : pattern.values) {
      if (!value.is_pointer) continue;
      const auto first = std::ranges::find_if(
          readers, [&](const PatternValue* one) { return one->is_same_place(value); });
      if (first == readers.end()) {
        readers.push_back(&value);
        continue;
      }
      add(Rule::shared_arg, value.mark,
          in_quotes((*first)->name) + " and " + in_quotes(value.name) + " are both parameter " +
              std::to_string(value.source.index) + ", while nothing is parameter " + unnamed,
          "correct the \"arg\" of one, or name the other parameter");
    }
  }

  void report_any_kernel(const PatternSpec& pattern) {
    if (pattern.has_params || !pattern.images.empty()) return;
    const SymbolPattern& symbol = *pattern.symbol;
    const bool fits_any = symbol.kind() == SymbolPattern::Kind::demangled
                              ? symbol.text() == "demangled:*"
                              : symbol.fits("~") && symbol.fits("");
    if (!fits_any) return;
    add(Rule::any_kernel, pattern.label_mark,
        "pattern " + in_quotes(pattern.label) + " fits every kernel, whatever its parameters",
        "narrow the symbol, or say with \"params\" which parameters the kernel has");
  }

  void report_tensors(const SolutionSpec& solution, const Definition& definition) {
    for (const DefinitionArgument& argument : definition.arguments) {
      if (argument.is_scalar) continue;
      const MarkedName* found = nullptr;
      for (const MarkedName& passed : solution.arguments) {
        if (passed.name != argument.name) continue;
        if (found != nullptr) {
          add(Rule::kernel_tensors, passed.mark,
              in_quotes(argument.name) + " is passed to kernel " + in_quotes(solution.kernel.name) +
                  " twice");
        }
        found = &passed;
      }
      if (found != nullptr || argument.is_optional) continue;
      if (is_overwritten(solution, definition, argument)) continue;
      report_unpassed(solution, argument, "");
    }
  }

  void report_unpassed(const SolutionSpec& solution, const DefinitionArgument& argument,
                       const std::string& why) {
    add(Rule::kernel_tensors, solution.arguments_mark,
        std::string(argument.is_output ? "output " : "input ") + in_quotes(argument.name) +
            " of definition " + in_quotes(solution.definition.name) +
            " is never passed to kernel " + in_quotes(solution.kernel.name) + why);
  }

  // Reports optional tensors that launches of the pattern have and the solution does not take.
  void report_optional(const BindingSpec& binding) {
    const PatternSpec& pattern = *model_.patterns[binding.pattern];
    const SolutionSpec& solution = model_.solutions[binding.solution];
    const Definition& definition = *model_.definition_of(solution);
    for (const DefinitionArgument& argument : definition.arguments) {
      if (!argument.is_optional || argument.is_scalar || passes(solution, argument.name)) continue;
      if (pattern.find_value(argument.name) == nullptr || pattern.pin_of(argument.name).is_pinned ||
          is_overwritten(solution, definition, argument)) {
        continue;
      }
      report_unpassed(solution, argument,
                      "; pattern " + in_quotes(pattern.label) + " has it, and no \"where\" says " +
                          in_quotes(argument.name + " == 0"));
    }
  }

  static bool passes(const SolutionSpec& solution, std::string_view name) {
    return std::ranges::any_of(solution.arguments,
                               [&](const MarkedName& passed) { return passed.name == name; });
  }

  // True if the tensor is passed under another name: an output is written into an input's buffer.
  static bool is_overwritten(const SolutionSpec& solution, const Definition& definition,
                             const DefinitionArgument& argument) {
    if (argument.is_output) {
      return !argument.written_into.empty() && passes(solution, argument.written_into);
    }
    return std::ranges::any_of(definition.arguments, [&](const DefinitionArgument& other) {
      return other.written_into == argument.name && passes(solution, other.name);
    });
  }

  void report_missing_wait(const SolutionSpec& solution) {
    if (!solution.waits_for_previous || solution.image_without_wait.empty()) return;
    add(Rule::missing_wait, solution.pdl_mark,
        "\"pdl\" is true, but kernel " + in_quotes(solution.kernel.name) + " of image " +
            in_quotes(solution.image_without_wait) +
            " never waits for the kernel before it (griddepcontrol.wait)",
        "call cudaGridDependencySynchronize() before the first read, or leave \"pdl\" out");
  }

  // Reports outputs of the definition that "writes" lacks: the original writes them, too.
  void report_outputs(const BindingSpec& binding) {
    const PatternSpec& pattern = *model_.patterns[binding.pattern];
    if (pattern.writes.empty()) return;
    const SolutionSpec& solution = model_.solutions[binding.solution];
    const auto writes = [&](const std::string& name) {
      return std::ranges::any_of(pattern.writes,
                                 [&](const MarkedName& written) { return written.name == name; });
    };
    for (const DefinitionArgument& output : model_.definition_of(solution)->arguments) {
      if (!output.is_output || writes(output.name) || writes(output.written_into)) continue;
      if (output.is_optional && pattern.find_value(output.name) == nullptr) continue;
      if (!reported_.emplace(binding.pattern, output.name).second) continue;
      add(Rule::unwritten_output, pattern.writes_mark,
          "\"writes\" lacks " + in_quotes(output.name) + ", an output of definition " +
              in_quotes(solution.definition.name),
          kNameWrites);
    }
  }

  void report_mode() {
    const SettingInfo& mode = kSettings[static_cast<size_t>(SettingId::mode)];
    for (const auto& [name, value] : model_.settings.of_process) {
      if (name != mode.name || value.text != mode.choices[static_cast<size_t>(Mode::off)]) continue;
      diagnostics_->add(Rule::mode_off, {value.file, 0, 0},
                        "\"mode\" is \"off\": the folder does nothing",
                        "switch processes off with FIBSHIM_MODE=off or fibshim swap --off");
    }
  }

  const FolderModel& model_;
  Diagnostics* diagnostics_;
  std::set<std::pair<uint32_t, std::string>> reported_;  // pattern and output
};

}  // namespace

void find_mistakes(const FolderModel& model, Diagnostics* diagnostics) {
  MistakeFinder(model, diagnostics).run();
}

void MistakeLint::check_json(Kind kind, JsonValue root) {
  const auto found =
      find_schema_faults(kind == Kind::pattern ? SchemaName::pattern : SchemaName::solution, root);
  schema_faults_.insert(schema_faults_.end(), found.begin(), found.end());
}

// Adds the schema's faults, except where another finding is at the same place or within it: that
// one is clearer.
void MistakeLint::finish(Diagnostics* diagnostics) {
  using Column = std::pair<uint32_t, uint32_t>;
  std::map<std::string_view, std::set<Column>> places;
  const std::vector<Diagnostic> said = diagnostics->all();
  for (const Diagnostic& one : said)
    places[one.place.file].emplace(one.place.line, one.place.column);
  for (const SchemaFault& fault : schema_faults_) {
    const std::set<Column>& taken = places[*fault.begin.file];
    const auto next = taken.lower_bound({fault.begin.line, fault.begin.column});
    if (next != taken.end() && *next < Column(fault.end.line, fault.end.column)) continue;
    diagnostics->add(Rule::schema, fault.begin, fault.message);
  }
}

void MistakeLint::check_model(const FolderModel& model, Diagnostics* diagnostics) {
  find_mistakes(model, diagnostics);
  find_measurement_faults(model, diagnostics);
}

CheckReport check_with_mistakes(const std::string& folder) {
  MistakeLint lint;
  CheckOptions options;
  options.lint = &lint;
  return check_folder(folder, options);
}

FoundMistakes count_mistakes(const std::string& folder, const CheckReport& report) {
  FoundMistakes out;
  const Diagnostic* first = nullptr;
  for (const Diagnostic& one : report.diagnostics) {
    if (rule_info(one.rule).effect != Effect::mistake) continue;
    if (out.mistakes++ == 0) first = &one;
  }
  out.errors = report.error_count - out.mistakes;
  if (first == nullptr) return out;
  out.words = (out.mistakes == 1 ? "has a mistake: "
                                 : "has " + std::to_string(out.mistakes) + " mistakes, such as ") +
              format_diagnostic(*first) + "; 'fibshim check " + folder + "' shows " +
              (out.mistakes == 1 ? "it" : "them");
  return out;
}

}  // namespace fibshim
