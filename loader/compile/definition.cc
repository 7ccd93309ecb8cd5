#include "loader/compile/definition.h"

#include <algorithm>

namespace fibshim {
namespace {

void read_axes(JsonValue axes, Definition* definition, Diagnostics* diagnostics) {
  if (!expect_kind(axes, JsonKind::object, "\"axes\"", diagnostics) ||
      !check_entry_count(axes, "\"axes\"", diagnostics)) {
    return;
  }
  definition->axes.reserve(axes.size());
  for (const JsonValue::Member& member : axes.members()) {
    const What what("axis ", member.key);
    const JsonValue value = axes.value_of(member);
    if (!check_name(member.key, member.key_mark, "an axis' name", diagnostics)) continue;
    // A faulty axis is declared, too, so that shapes with its name cause no second message.
    DefinitionAxis axis{std::string(member.key), false, 0};
    if (expect_kind(value, JsonKind::object, what, diagnostics)) {
      const JsonValue type = require_member(value, "type", what, diagnostics);
      if (expect_kind(type, JsonKind::string, "\"type\" of " + what, diagnostics)) {
        if (type.string() == "const") {
          const auto constant = read_integer(require_member(value, "value", what, diagnostics), 0,
                                             INT64_MAX, "\"value\" of " + what, diagnostics);
          // A faulty constant must not cause further messages about its value.
          axis.is_const = constant.has_value();
          axis.value = constant.value_or(0);
        } else if (type.string() != "var") {
          diagnostics->add(Rule::bad_value, type.mark(),
                           "\"type\" of " + what + " is " + in_quotes(type.string()) +
                               "; accepted are \"const\" and \"var\"");
        }
      }
    }
    definition->axes.push_back(std::move(axis));
  }
}

std::string text_of(JsonValue value) {
  return value && value.kind() == JsonKind::string ? std::string(value.string()) : std::string();
}

std::vector<std::string> texts_of(JsonValue array) {
  std::vector<std::string> out;
  if (!array || array.kind() != JsonKind::array) return out;
  for (const JsonValue element : array.elements()) {
    if (element.kind() == JsonKind::string) out.emplace_back(element.string());
  }
  return out;
}

// `has_axes`: false if "axes" is missing, which is reported; then unknown axes in shapes are not.
void read_arguments(JsonValue arguments, const char* key, bool has_axes, Definition* definition,
                    Diagnostics* diagnostics) {
  const bool is_output = std::string_view(key) == "outputs";
  if (!expect_kind(arguments, JsonKind::object, {"", key}, diagnostics) ||
      !check_entry_count(arguments, {"", key}, diagnostics)) {
    return;
  }
  definition->arguments.reserve(definition->arguments.size() + arguments.size());
  for (const JsonValue::Member& member : arguments.members()) {
    const What in(" in ", key), what("", member.key, &in);
    const JsonValue value = arguments.value_of(member);
    if (!check_name(member.key, member.key_mark, {"a name in ", key}, diagnostics)) continue;
    if (!expect_kind(value, JsonKind::object, what, diagnostics)) continue;

    const JsonValue shape = require_member(value, "shape", what, diagnostics);
    const bool is_scalar = shape.kind() == JsonKind::null;
    std::vector<std::string> axes;
    if (shape && !is_scalar &&
        expect_kind(shape, JsonKind::array, "\"shape\" of " + what, diagnostics) &&
        check_rank(shape, "\"shape\" of " + what, diagnostics)) {
      axes.reserve(shape.size());
      for (const JsonValue axis : shape.elements()) {
        if (!expect_kind(axis, JsonKind::string, "an entry of \"shape\"", diagnostics)) continue;
        axes.emplace_back(axis.string());
        if (!has_axes || definition->find_axis(axis.string()) != nullptr) continue;
        std::vector<std::string_view> known;
        for (const DefinitionAxis& declared : definition->axes) known.push_back(declared.name);
        diagnostics->add(Rule::unknown_axis, axis.mark(),
                         what + " has the axis " + in_quotes(axis.string()) +
                             ", which \"axes\" does not declare",
                         diagnostics->suggestion(axis.string(), known));
      }
    }
    const auto dtype = read_dtype(require_member(value, "dtype", what, diagnostics),
                                  "\"dtype\" of " + what, diagnostics);
    if (!dtype) continue;
    DefinitionArgument argument{
        std::string(member.key),     is_scalar, *dtype, is_output, std::move(axes),
        text_of(value.find("param"))};
    const JsonValue optional = value.find("optional");
    argument.is_optional = optional && optional.kind() == JsonKind::boolean && optional.boolean();
    definition->arguments.push_back(std::move(argument));
  }
}

}  // namespace

std::optional<uint8_t> read_dtype(JsonValue value, const What& what, Diagnostics* diagnostics) {
  if (!expect_kind(value, JsonKind::string, what, diagnostics)) return std::nullopt;
  const auto known = std::ranges::find(kDtypes, value.string(), &DtypeInfo::name);
  if (known != std::end(kDtypes)) return static_cast<uint8_t>(known - std::begin(kDtypes));
  std::vector<std::string_view> names;
  for (const DtypeInfo& dtype : kDtypes) names.emplace_back(dtype.name);
  diagnostics->add(
      Rule::unknown_dtype, value.mark(),
      what + " is " + in_quotes(value.string()) + "; accepted are " + list_words(names),
      diagnostics->suggestion(value.string(), names));
  return std::nullopt;
}

const DefinitionAxis* Definition::find_axis(std::string_view wanted) const {
  const auto at = std::ranges::find(axes, wanted, &DefinitionAxis::name);
  return at == axes.end() ? nullptr : &*at;
}

const DefinitionArgument* Definition::find_argument(std::string_view wanted) const {
  const auto at = std::ranges::find(arguments, wanted, &DefinitionArgument::name);
  return at == arguments.end() ? nullptr : &*at;
}

std::optional<Definition> read_definition(JsonValue root, Diagnostics* diagnostics) {
  if (!expect_kind(root, JsonKind::object, "a definition", diagnostics)) return std::nullopt;
  const What what = "the definition";
  Definition definition;
  const auto name =
      read_name(require_member(root, "name", what, diagnostics), "\"name\"", diagnostics);
  const JsonValue axes = require_member(root, "axes", what, diagnostics);
  read_axes(axes, &definition, diagnostics);
  for (const char* const key : {"inputs", "outputs"}) {
    read_arguments(require_member(root, key, what, diagnostics), key, static_cast<bool>(axes),
                   &definition, diagnostics);
  }
  if (!name) return std::nullopt;
  definition.name = *name;
  definition.op_type = text_of(root.find("op_type"));
  definition.reference = text_of(root.find("reference"));
  definition.tags = texts_of(root.find("tags"));
  definition.constraints = texts_of(root.find("constraints"));
  return definition;
}

}  // namespace fibshim
