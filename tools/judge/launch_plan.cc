#include "tools/judge/launch_plan.h"

#include <string.h>

#include <algorithm>
#include <set>

#include "loader/compile/bind.h"
#include "tools/judge/inputs.h"
#include "tools/judge/references.h"

namespace fibshim::judge {
namespace {

bool ends_with(std::string_view text, std::string_view end) {
  return text.size() >= end.size() && text.substr(text.size() - end.size()) == end;
}

bool is_floating_name(std::string_view name) {
  static constexpr std::string_view kFloating[] = {"eps",         "epsilon", "scale", "weight_bias",
                                                   "temperature", "top_p",   "min_p"};
  return std::find(std::begin(kFloating), std::end(kFloating), name) != std::end(kFloating);
}

const DefinitionArgument* find_input(const Definition& definition, std::string_view name) {
  for (const DefinitionArgument& argument : definition.arguments) {
    if (!argument.is_output && argument.name == name) return &argument;
  }
  return nullptr;
}

const DefinitionArgument* first_tensor(const Definition& definition, bool is_output) {
  for (const DefinitionArgument& argument : definition.arguments) {
    if (argument.is_output == is_output && !argument.is_scalar) return &argument;
  }
  return nullptr;
}

// The tensor that a stride or a head count is about.
const DefinitionArgument* tensor_called(const Definition& definition, std::string_view word) {
  if (const DefinitionArgument* const exact = definition.find_argument(word)) return exact;
  if (word.empty() || word == "in" || word == "input") return first_tensor(definition, false);
  if (word == "out" || word == "output") return first_tensor(definition, true);
  static constexpr std::pair<std::string_view, std::string_view> kShort[] = {
      {"q", "query"},         {"k", "key"},         {"kv", "key"},      {"kv", "k"},
      {"q_out", "query_out"}, {"k_out", "key_out"}, {"res", "residual"}};
  for (const auto& [brief, name] : kShort) {
    if (word != brief) continue;
    if (const DefinitionArgument* const found = definition.find_argument(name)) return found;
  }
  return nullptr;
}

int64_t width_of(const DefinitionArgument& tensor, const AxisValues& axes) {
  int64_t width = 1;
  for (size_t i = 1; i < tensor.shape.size(); ++i) width *= axes.at(tensor.shape[i]);
  return width;
}

std::optional<int64_t> head_size_of(const AxisValues& axes) {
  for (const char* const name : {"head_size", "head_dim"}) {
    if (const auto axis = axes.find(name); axis != axes.end()) return axis->second;
  }
  return std::nullopt;
}

class AxisScope : public Scope {
 public:
  explicit AxisScope(const AxisValues& axes) : axes_(axes) {}
  std::optional<Meaning> find(std::string_view name) const override {
    const auto axis = axes_.find(std::string(name));
    if (axis == axes_.end()) return std::nullopt;
    Source source;
    source.integer = axis->second;
    return Meaning{source, nullptr, nullptr};
  }
  std::vector<std::string_view> names() const override { return {}; }

 private:
  const AxisValues& axes_;
};

std::string quoted_name(const std::string& name) { return "\"" + name + "\""; }

}  // namespace

std::vector<Variant> find_variants(const FolderModel& model, uint32_t solution_index) {
  const SolutionSpec& solution = model.solutions[solution_index];
  std::vector<Variant> variants;
  std::set<std::string> known;
  for (const BindingSpec& binding : model.bindings) {
    if (binding.solution != solution_index || binding.state != BindingState::ready) continue;
    const PatternSpec& pattern = *model.patterns[binding.pattern];
    Variant variant{pattern.label, &pattern, {}};
    std::string signature;
    std::map<std::pair<uint16_t, uint32_t>, std::string> owners;
    for (const MarkedName& argument : solution.arguments) {
      const PatternValue* const value = pattern.find_value(argument.name);
      if (value == nullptr) continue;
      if (value->is_pointer && value->source.kind == Source::Kind::param) {
        const auto [owner, is_new] =
            owners.emplace(std::pair(value->source.index, value->source.offset), argument.name);
        if (is_new) continue;
        variant.aliases[argument.name] = owner->second;
        signature += argument.name + "~" + owner->second + ";";
      }
    }
    for (const PatternValue& value : pattern.values) {
      if (value.is_axis) continue;
      if (value.expression) {
        signature += value.name + "=" + value.expression->text.text + ";";
      } else if (value.source.is_constant()) {
        signature += value.name + "=" +
                     (value.source.is_floating() ? std::to_string(value.source.floating)
                                                 : std::to_string(value.source.integer)) +
                     ";";
      }
    }
    if (known.insert(signature).second) variants.push_back(std::move(variant));
  }
  if (variants.empty()) variants.emplace_back();
  return variants;
}

// The scope in which a solution's expressions are compiled: each name that is asked for becomes a
// cell, filled before the programs run.
class LaunchPlan::Values : public Scope {
 public:
  struct Cell {
    std::string name;
    ValueType type;
  };
  struct Argument {
    CompiledValue value;
    uint8_t size;
  };

  Values(Subject judged, Variant called) : subject(std::move(judged)), variant(std::move(called)) {}

  std::optional<Meaning> find(std::string_view name) const override {
    const Definition& definition = *subject.definition;
    if (const DefinitionAxis* const axis = definition.find_axis(name)) {
      if (!axis->is_const) return cell(name, ValueType::int64);
      Source source;
      source.integer = axis->value;
      return Meaning{source, nullptr, nullptr};
    }
    if (const DefinitionArgument* const argument = definition.find_argument(name)) {
      return cell(name, argument->is_scalar ? kDtypes[argument->dtype].scalar : ValueType::address);
    }
    const PatternValue* const given =
        variant.pattern == nullptr ? nullptr : variant.pattern->find_value(name);
    if (given != nullptr) {
      if (given->expression) return Meaning{{}, &given->expression->expression, this};
      if (given->source.is_constant()) return Meaning{given->source, nullptr, nullptr};
    }
    if (const VerifyArgument* const told = subject.verify->find_argument(name)) {
      if (told->kind == VerifyArgument::Kind::expression) {
        return Meaning{{}, &told->expression->expression, this};
      }
      if (told->kind == VerifyArgument::Kind::tensor) return cell(name, ValueType::address);
      return cell(name, told->type.value_or(type_by_size(name, given)));
    }
    if (is_extra_tensor(name, given)) return cell(name, ValueType::address);
    if (given != nullptr && given->reads_param && !given->is_pointer) {
      return cell(name, given->source.type);
    }
    return cell(name, type_by_size(name, given));
  }
  std::vector<std::string_view> names() const override { return {}; }

  bool is_extra_tensor(std::string_view name, const PatternValue* given) const {
    return find_extra_output(subject.op, name) != nullptr ||
           (given != nullptr && given->is_pointer);
  }

  Subject subject;
  Variant variant;
  std::vector<Argument> arguments;
  CompiledValue geometry[kGeometryCount];
  std::vector<Step> where;
  mutable std::vector<Cell> cells;

 private:
  Meaning cell(std::string_view name, ValueType type) const {
    size_t index = 0;
    while (index < cells.size() && cells[index].name != name) ++index;
    if (index == cells.size()) cells.push_back({std::string(name), type});
    Source source;
    source.kind = Source::Kind::param;
    source.type = cells[index].type;
    source.index = static_cast<uint16_t>(index);
    return Meaning{source, nullptr, nullptr};
  }

  // Where nothing states a type: as wide as the kernel's parameter.
  ValueType type_by_size(std::string_view name, const PatternValue* given) const {
    const SolutionSpec& solution = *subject.solution;
    const bool floats = is_floating_name(name) ||
                        (given != nullptr && given->reads_param && given->source.is_floating());
    for (size_t i = 0; i < solution.arguments.size() && i < solution.params.size(); ++i) {
      if (solution.arguments[i].name != name) continue;
      if (floats) return solution.params[i].size == 8 ? ValueType::float64 : ValueType::float32;
      switch (solution.params[i].size) {
        case 1: return ValueType::int8;
        case 2: return ValueType::int16;
        case 4: return ValueType::int32;
        default: return ValueType::int64;
      }
    }
    return floats ? ValueType::float32 : ValueType::int64;
  }
};

LaunchPlan::LaunchPlan() = default;
LaunchPlan::LaunchPlan(LaunchPlan&&) noexcept = default;
LaunchPlan& LaunchPlan::operator=(LaunchPlan&&) noexcept = default;
LaunchPlan::~LaunchPlan() = default;

Result<LaunchPlan> LaunchPlan::make(const Subject& subject, const Variant& variant) {
  LaunchPlan plan;
  plan.values_ = std::make_unique<Values>(subject, variant);
  Values& values = *plan.values_;
  const SolutionSpec& solution = *subject.solution;
  for (size_t i = 0; i < solution.arguments.size(); ++i) {
    const std::string& name = solution.arguments[i].name;
    const auto meaning = values.find(name);
    if (!meaning) return fail(ErrorCode::invalid_value, quoted_name(name) + " has no value");
    Values::Argument argument;
    if (meaning->expression != nullptr) {
      auto compiled = compile_value(*meaning->expression, *meaning->scope);
      if (!compiled) return fail(ErrorCode::invalid_value, compiled.error().message);
      argument.value = std::move(*compiled);
    } else {
      argument.value = compile_source(meaning->source);
    }
    const bool is_known = solution.has_params && i < solution.params.size();
    argument.size = static_cast<uint8_t>(is_known                     ? solution.params[i].size
                                         : argument.value.is_floating ? 4
                                                                      : 8);
    const bool fits = argument.value.is_floating ? argument.size == 4 || argument.size == 8
                                                 : argument.size == 1 || argument.size == 2 ||
                                                       argument.size == 4 || argument.size == 8;
    if (!fits) {
      return fail(ErrorCode::invalid_value, "the kernel takes " + std::to_string(argument.size) +
                                                " bytes for " + quoted_name(name) +
                                                ", which is a number");
    }
    values.arguments.push_back(std::move(argument));
  }
  for (uint32_t i = 0; i < kGeometryCount; ++i) {
    auto compiled = compile_value(solution.geometry[i].expression, values);
    if (!compiled) return fail(ErrorCode::invalid_value, compiled.error().message);
    values.geometry[i] = std::move(*compiled);
  }
  for (const MarkedExpression& clause : solution.where) {
    const auto compiled = compile_where(clause.expression, values, &values.where);
    if (!compiled) return fail(ErrorCode::invalid_value, compiled.error().message);
  }
  return plan;
}

bool LaunchPlan::takes(const std::string& name) const {
  const auto& arguments = values_->subject.solution->arguments;
  return std::any_of(arguments.begin(), arguments.end(),
                     [&](const MarkedName& argument) { return argument.name == name; });
}

bool LaunchPlan::is_pinned(const std::string& name) const {
  const PatternSpec* const pattern = values_->variant.pattern;
  return pattern != nullptr && pattern->pin_of(name).is_pinned;
}

Result<void> LaunchPlan::add_scalars(int run, CaseData* data) const {
  const Subject& subject = values_->subject;
  // Literals that the reference must know of, too (weight_bias, rounds_before_weight).
  if (values_->variant.pattern != nullptr) {
    for (const PatternValue& value : values_->variant.pattern->values) {
      if (value.is_axis || value.expression || !value.source.is_constant()) continue;
      data->scalars.emplace(value.name, value.source.is_floating()
                                            ? value.source.floating
                                            : static_cast<double>(value.source.integer));
    }
  }
  for (const VerifyArgument& argument : subject.verify->arguments) {
    if (argument.kind == VerifyArgument::Kind::value) {
      data->scalars.emplace(argument.name, argument.value);
    }
  }
  for (const Values::Cell& cell : values_->cells) {
    if (cell.type == ValueType::address || data->scalars.count(cell.name) != 0 ||
        subject.definition->find_axis(cell.name) != nullptr) {
      continue;
    }
    auto value = usual_value(cell.name, subject, data->axes, run);
    if (is_pinned(cell.name)) {
      const PatternSpec::Pin pin = values_->variant.pattern->pin_of(cell.name);
      if (pin.value) value = static_cast<double>(*pin.value);
    }
    if (!value) {
      return fail(ErrorCode::invalid_value,
                  quoted_name(cell.name) +
                      " is not in the definition, and what it should be is not known: give the "
                      "solution a \"verify\": {\"arguments\": {\"" +
                      cell.name + "\": {\"value\": ...}}}");
    }
    data->scalars[cell.name] = *value;
  }
  return {};
}

Result<std::vector<BufferSpec>> LaunchPlan::buffers(const AxisValues& axes) const {
  const Subject& subject = values_->subject;
  const Variant& variant = values_->variant;
  const Definition& definition = *subject.definition;
  std::vector<BufferSpec> buffers;
  const auto add = [&](BufferSpec buffer) -> Result<void> {
    if (buffer.type == nullptr) {
      return fail(ErrorCode::invalid_value,
                  quoted_name(buffer.name) + " has a dtype that cannot be made or compared");
    }
    buffers.push_back(std::move(buffer));
    return {};
  };
  for (const DefinitionArgument& argument : definition.arguments) {
    if (argument.is_scalar || argument.is_output) continue;
    auto added = add({argument.name, element_type_of(argument.dtype),
                      shape_of(argument.shape, axes), false, ""});
    if (!added) return tl::unexpected<Error>(added.error());
  }
  for (const DefinitionArgument& argument : definition.arguments) {
    if (!argument.is_output) continue;
    BufferSpec output{argument.name, element_type_of(argument.dtype),
                      shape_of(argument.shape, axes), true, ""};
    // In place: an output of an input's name, one that FlashInfer says is written into it, or one
    // that the pattern takes from the same parameter.
    const auto alias = variant.aliases.find(argument.name);
    if (find_input(definition, argument.name) != nullptr) {
      output.shares = argument.name;
    } else if (!takes(argument.name) && find_input(definition, argument.written_into) != nullptr) {
      output.shares = argument.written_into;
    } else if (!takes(argument.name)) {
      return fail(ErrorCode::invalid_value,
                  "the solution does not take the output " + quoted_name(argument.name));
    } else if (alias != variant.aliases.end()) {
      output.shares = alias->second;
    } else {
      for (const auto& [later, earlier] : variant.aliases) {
        if (earlier == argument.name) output.shares = later;
      }
    }
    if (!output.shares.empty() && find_input(definition, output.shares) == nullptr) {
      output.shares.clear();
    }
    auto added = add(std::move(output));
    if (!added) return tl::unexpected<Error>(added.error());
  }
  const DefinitionArgument* const first = first_tensor(definition, false);
  for (const Values::Cell& cell : values_->cells) {
    if (cell.type != ValueType::address || definition.find_argument(cell.name) != nullptr) continue;
    BufferSpec extra{cell.name, nullptr, {}, true, ""};
    if (const VerifyArgument* const told = subject.verify->find_argument(cell.name)) {
      extra.type = element_type_of(told->dtype);
      for (const std::string& axis : told->shape) {
        const auto value = axes.find(axis);
        if (value == axes.end()) {
          return fail(ErrorCode::invalid_value, "\"verify\" gives " + quoted_name(cell.name) +
                                                    " the axis " + quoted_name(axis) +
                                                    ", which the definition does not have");
        }
        extra.shape.push_back(value->second);
      }
    } else if (const ExtraOutput* const known = find_extra_output(subject.op, cell.name);
               known != nullptr && first != nullptr && !first->shape.empty()) {
      extra.type = find_element_type(known->dtype);
      extra.shape = {axes.at(first->shape[0])};
    } else {
      return fail(ErrorCode::invalid_value,
                  "the buffer " + quoted_name(cell.name) +
                      " is not in the definition, and its shape is not known: give the solution a "
                      "\"verify\": {\"arguments\": {\"" +
                      cell.name + "\": {\"shape\": [...], \"dtype\": ...}}}");
    }
    auto added = add(std::move(extra));
    if (!added) return tl::unexpected<Error>(added.error());
  }
  return buffers;
}

Result<std::optional<Launch>> LaunchPlan::resolve(
    const CaseData& data, const std::map<std::string, uint64_t>& addresses) const {
  std::vector<int64_t> cells(values_->cells.size());
  std::vector<void*> params;
  for (size_t i = 0; i < cells.size(); ++i) {
    const Values::Cell& cell = values_->cells[i];
    params.push_back(&cells[i]);
    if (cell.type == ValueType::address) {
      const auto address = addresses.find(cell.name);
      if (address == addresses.end()) {
        return fail(ErrorCode::invalid_value, quoted_name(cell.name) + " has no buffer");
      }
      memcpy(&cells[i], &address->second, sizeof address->second);
      continue;
    }
    const auto axis = data.axes.find(cell.name);
    const auto scalar = data.scalars.find(cell.name);
    if (axis == data.axes.end() && scalar == data.scalars.end()) {
      return fail(ErrorCode::invalid_value, quoted_name(cell.name) + " has no value");
    }
    const double number = axis != data.axes.end() ? 0 : scalar->second;
    if (cell.type == ValueType::float32) {
      const auto value = static_cast<float>(number);
      memcpy(&cells[i], &value, sizeof value);
    } else if (cell.type == ValueType::float64) {
      memcpy(&cells[i], &number, sizeof number);
    } else {
      cells[i] = axis != data.axes.end() ? axis->second : static_cast<int64_t>(number);
    }
  }
  LaunchView view{};
  view.params = params.data();
  const auto run = [&](const std::vector<Step>& steps, int64_t* result) {
    return run_program(steps.data(), static_cast<uint32_t>(steps.size()), view, result);
  };
  if (!run(values_->where, nullptr)) return std::optional<Launch>();
  Launch launch{};
  for (uint32_t i = 0; i < kGeometryCount; ++i) {
    int64_t value = 0;
    std::string why = std::string(kGeometry[i].name) + " cannot be computed";
    if (!run(values_->geometry[i].steps, &value) || !is_geometry_in_range(i, value, &why)) {
      // The shim runs the original then.
      if (value == 0) return std::optional<Launch>();
      return fail(ErrorCode::invalid_value, why);
    }
    launch.geometry[i] = static_cast<uint32_t>(value);
  }
  for (const Values::Argument& argument : values_->arguments) {
    int64_t value = 0;
    std::array<uint8_t, 8> bytes{};
    if (!run(argument.value.steps, &value)) return std::optional<Launch>();
    if (argument.value.is_floating) {
      const double number = program_detail::bits_double(value);
      const auto narrow = static_cast<float>(number);
      if (argument.size == 8) memcpy(bytes.data(), &number, 8);
      if (argument.size == 4) memcpy(bytes.data(), &narrow, 4);
    } else {
      if (!fits_in_bytes(value, argument.size)) return std::optional<Launch>();
      memcpy(bytes.data(), &value, argument.size);
    }
    launch.params.push_back(bytes);
  }
  return std::optional<Launch>(std::move(launch));
}

std::optional<double> usual_value(const std::string& name, const Subject& subject,
                                  const AxisValues& axes, int run) {
  const Definition& definition = *subject.definition;
  if (name == "eps" || name == "epsilon") return eps_of(definition);
  if (name == "weight_bias") return subject.op.find("gemma") != std::string::npos ? 1 : 0;
  if (name == "rounds_before_weight") return ends_with(subject.op, "_vllm") ? 1 : 0;
  if (name == "num_heads" || name == "heads") return 1;  // rows, each a token with one head
  if (name == "temperature" || name == "top_p") return 1;
  if (ends_with(name, "seed")) return 0x5eed + run;
  if (ends_with(name, "offset") || name == "philox_offset") return 4096.0 * run;
  const auto head_size = head_size_of(axes);
  if (ends_with(name, "_heads") && name.rfind("num_", 0) == 0 && head_size) {
    const std::string_view word = std::string_view(name).substr(4, name.size() - 10);
    const DefinitionArgument* const tensor = tensor_called(definition, word);
    if (tensor != nullptr) return static_cast<double>(width_of(*tensor, axes) / *head_size);
  }
  if (!ends_with(name, "stride")) return std::nullopt;
  std::string_view word = std::string_view(name).substr(0, name.size() - strlen("stride"));
  const auto cut = [&](std::string_view end) {
    if (!word.empty() && word.back() == '_') word.remove_suffix(1);
    if (!ends_with(word, end)) return false;
    word.remove_suffix(end.size());
    return true;
  };
  if (cut("head")) {
    cut("");
    return static_cast<double>(head_size.value_or(0));
  }
  if (!cut("token")) cut("row");
  cut("");
  const DefinitionArgument* const tensor = tensor_called(definition, word);
  if (tensor == nullptr) return std::nullopt;
  return static_cast<double>(width_of(*tensor, axes));
}

bool meets_constraints(const Definition& definition, const AxisValues& axes) {
  for (const std::string& constraint : definition.constraints) {
    const auto expression = Expression::parse(constraint);
    if (!expression) continue;  // Python beyond this language: for its own readers
    const auto value = evaluate(*expression, axes);
    if (value && *value == 0) return false;
  }
  return true;
}

Result<int64_t> evaluate(const Expression& expression, const AxisValues& axes) {
  const AxisScope scope(axes);
  const auto compiled = compile_value(expression, scope);
  if (!compiled) return fail(ErrorCode::invalid_value, compiled.error().message);
  if (!compiled->constant) return fail(ErrorCode::invalid_value, "not an integer of axes");
  return *compiled->constant;
}

}  // namespace fibshim::judge
