#include "tools/judge/made_pattern.h"

#include <nlohmann/json.hpp>

#include "loader/compile/bind.h"
#include "loader/compile/read_pattern.h"
#include "tools/judge/references.h"
#include "tools/judge/usual_values.h"
#include "tools/judge/variants.h"
#include "tools/base/terminal.h"
#include "tools/base/try.h"

namespace fibshim::judge {
namespace {

using Json = nlohmann::ordered_json;

// The type of a name for which nothing states one: as wide as the kernel's parameter.
ValueType type_by_size(const std::string& name, const SolutionSpec& solution) {
  uint32_t size = 0;
  for (size_t i = 0; i < solution.arguments.size() && i < solution.params.size(); ++i) {
    if (solution.arguments[i].name == name) size = solution.params[i].size;
  }
  if (is_floating_name(name)) return size == 8 ? ValueType::float64 : ValueType::float32;
  switch (size) {
    case 1: return ValueType::int8;
    case 2: return ValueType::int16;
    case 4: return ValueType::int32;
    default: return ValueType::int64;
  }
}

std::string make_text(const SolutionSpec& solution, const VerifyBlock& verify,
                      const Definition& definition) {
  const std::string op = find_op(definition, verify.op);
  Json params = Json::array(), axes = Json::object(), arguments = Json::object();
  const auto param = [&](const char* key, const char* type, uint32_t size) {
    params.push_back(size);
    return Json{{"arg", params.size() - 1}, {key, type}};
  };
  const auto scalar = [&](ValueType type) {
    return param("type", tools::find_row(kDtypes, &DtypeInfo::scalar, type)->name, size_of(type));
  };
  const auto pointer = [&](const char* dtype) { return param("dtype", dtype, 8); };
  for (const DefinitionAxis& axis : definition.axes) {
    axes[axis.name] = axis.is_const ? Json{{"value", axis.value}} : scalar(ValueType::int64);
  }
  for (const std::string& name : names_behind(names_of_launch(solution), nullptr, verify)) {
    if (definition.find_axis(name) != nullptr) continue;
    const DefinitionArgument* const argument = definition.find_argument(name);
    const VerifyArgument* const told = verify.find_argument(name);
    const ExtraOutput* const extra = find_extra_output(op, name);
    Json& value = arguments[name];
    if (argument != nullptr) {
      const DtypeInfo& dtype = kDtypes[argument->dtype];
      value = argument->is_scalar ? scalar(dtype.scalar) : pointer(dtype.name);
    } else if (told != nullptr && told->kind == VerifyArgument::Kind::expression) {
      const Expression& expression = told->expression->expression;
      value = told->expression->is_number
                  ? Json{{"value", expression.node(expression.root()).integer}}
                  : Json{{"expr", told->expression->text.text}};
    } else if (told != nullptr && told->kind == VerifyArgument::Kind::tensor) {
      value = pointer(kDtypes[told->dtype].name);
    } else if (told == nullptr && extra != nullptr) {
      value = pointer(extra->dtype);
    } else {
      value = scalar(told != nullptr && told->type ? *told->type : type_by_size(name, solution));
    }
  }
  return tools::json_line({{"label", "made for " + definition.name.name},
                           {"match", {{"symbol", "made_by_the_judge"}, {"params", params}}},
                           {"axes", axes},
                           {"arguments", arguments},
                           {"writes", Json::array()},
                           {"definition", definition.name.name}});
}

// Adds a pattern for the solution. Returns why the solution cannot be called, or "".
std::string add_pattern(const VerifyBlocks& verify_blocks, FolderModel* model,
                        uint32_t solution_index) {
  const SolutionSpec& solution = model->solutions[solution_index];
  const Definition* const definition = model->definition_of(solution);
  if (definition == nullptr) return "it has no definition";
  model->files.emplace_back("(a pattern made by the judge)");
  Diagnostics diagnostics;
  const std::string text = make_text(solution, verify_blocks.of(solution), *definition);
  const auto document = JsonDocument::parse(text, &model->files.back(), &diagnostics);
  auto pattern = document ? read_pattern(document->root(), &diagnostics) : nullptr;
  if (pattern == nullptr || diagnostics.error_count() != 0) {
    return diagnostics.all().empty() ? "no pattern can be made" : diagnostics.all()[0].message;
  }
  KnownTexts texts;
  KnownClauses known(&texts);
  BindingSpec binding = bind(*pattern, solution, *definition, {}, &known, &diagnostics);
  if (binding.state != BindingState::ready) return binding.reason;
  binding.pattern = static_cast<uint32_t>(model->patterns.size());
  binding.solution = solution_index;
  model->patterns.push_back(std::move(pattern));
  model->pattern_files.push_back(model->files.back());
  model->bindings.push_back(std::move(binding));
  return "";
}

}  // namespace

Result<void> add_missing_patterns(const VerifyBlocks& verify_blocks, FolderModel* model,
                                  SnapshotPtr* snapshot) {
  const size_t patterns = model->patterns.size();
  for (uint32_t i = 0; i < model->solutions.size(); ++i) {
    SolutionSpec& solution = model->solutions[i];
    if (solution.error_code != ErrorCode::success || !find_variants(*model, i).empty()) continue;
    solution.error_message = add_pattern(verify_blocks, model, i);
    if (!solution.error_message.empty()) solution.error_code = ErrorCode::invalid_value;
  }
  if (model->patterns.size() == patterns) return {};
  *snapshot = FIBSHIM_TRY(build_snapshot(*model));
  return {};
}

}  // namespace fibshim::judge
