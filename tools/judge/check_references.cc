#include "tools/judge/check_references.h"

#include <numeric>

#include "tools/base/terminal.h"
#include "tools/judge/inputs.h"
#include "tools/judge/workloads.h"

namespace fibshim::judge {
namespace {

using tools::kExitFine;
using tools::kExitWrong;
using tools::print_message;

// Compares the references in one case. *outputs: the outputs that were compared.
Result<std::vector<Comparison>> compare_references(const Subject& subject, const Workload& workload,
                                                   int run, PythonReference* python,
                                                   std::vector<OutputSpec>* outputs) {
  const Definition& definition = *subject.definition;
  CaseData data;
  AxisValues axes = workload.axes;
  for (const DefinitionAxis& axis : definition.axes) {
    if (axis.is_const) axes[axis.name] = axis.value;
  }
  data.scalars["eps"] = eps_of(definition);
  FIBSHIM_TRY(make_inputs({definition, subject.op, axes, run, {}}, &data));
  for (const DefinitionArgument& argument : definition.arguments) {
    if (!argument.is_output) continue;
    outputs->push_back(
        {argument.name, element_type_of(argument.dtype), shape_of(argument.shape, axes)});
  }
  const RowReference native = FIBSHIM_TRY(make_reference({subject.op, definition, data, *outputs}));
  std::map<std::string, Tensor> told = FIBSHIM_TRY(python->run(data));
  std::vector<Tensor> found;
  std::vector<Tolerance> tolerances;
  for (const OutputSpec& output : *outputs) {
    found.push_back(std::move(told.at(output.name)));
    tolerances.push_back(default_tolerance(*output.type));
  }
  std::vector<int64_t> rows(static_cast<size_t>(outputs->empty() ? 0 : (*outputs)[0].shape[0]));
  std::iota(rows.begin(), rows.end(), 0);
  return compare_rows(native, *outputs, rows, found, tolerances);
}

}  // namespace

int check_references(const Folder& folder, const JudgeOptions& options, const char* command) {
  bool is_fine = true;
  size_t compared = 0;
  std::vector<std::vector<std::string>> rows = {
      {"DEFINITION", "AXES", "OUTPUT", "VERDICT", ">MAX ABS", ">MAX REL"}};
  std::string faults;
  const SolutionSpec nobody;  // no solution is needed here
  const VerifyBlock nothing;
  const auto interpreter = PythonInterpreter::start(options.trial.python);
  if (!interpreter) {
    print_message(command, tools::printable(interpreter.error().message));
    return kExitWrong;
  }
  for (const Definition& definition : folder.model.definitions) {
    const auto& wanted = options.definitions;
    if (!wanted.empty() && std::ranges::find(wanted, definition.name.name) == wanted.end()) {
      continue;
    }
    const Subject subject{&definition, &nobody, &nothing, find_op(definition, "")};
    if (subject.op.empty() || is_sampling_op(subject.op) || definition.reference.empty()) continue;
    auto python = PythonReference::make(interpreter->get(), definition);
    if (!python) {
      print_message(command, tools::printable(python.error().message));
      return kExitWrong;
    }
    int run = 0;
    for (const Workload& workload : make_cases(subject, options, {})) {
      std::vector<OutputSpec> outputs;
      const auto comparisons =
          compare_references(subject, workload, run++, python->get(), &outputs);
      if (!comparisons) {
        faults += fmt::format("{}: {}\n", definition.name.name, comparisons.error().message);
        is_fine = false;
        break;
      }
      for (size_t i = 0; i < outputs.size(); ++i) {
        const Comparison& whole = (*comparisons)[i];
        const std::string fault = whole.fault(default_tolerance(*outputs[i].type));
        rows.push_back({definition.name.name, tools::pairs_words(workload.axes), outputs[i].name,
                        fault.empty() ? "agree" : "DIFFER",
                        fmt::format("{:.1e}", whole.max_absolute_error),
                        fmt::format("{:.1e}", whole.max_relative_error)});
        if (!fault.empty()) faults += fmt::format("{}: {}\n", definition.name.name, fault);
        is_fine = is_fine && fault.empty();
        ++compared;
      }
    }
  }
  const bool is_written = tools::print_data(tools::format_table(rows) + faults);
  if (compared == 0) print_message(command, "no definition has both references");
  return is_written && is_fine && compared > 0 ? kExitFine : kExitWrong;
}

}  // namespace fibshim::judge
