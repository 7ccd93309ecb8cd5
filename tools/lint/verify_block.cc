#include "tools/lint/verify_block.h"

#include <algorithm>

namespace fibshim {
namespace {

struct TypeName {
  const char* name;
  ValueType type;
};
constexpr TypeName kTypeNames[] = {
    {"int8", ValueType::int8},       {"uint8", ValueType::uint8},   {"int16", ValueType::int16},
    {"uint16", ValueType::uint16},   {"int32", ValueType::int32},   {"uint32", ValueType::uint32},
    {"int64", ValueType::int64},     {"uint64", ValueType::uint64}, {"float32", ValueType::float32},
    {"float64", ValueType::float64},
};

std::optional<double> read_number(JsonValue value, const std::string& what,
                                  Diagnostics* diagnostics) {
  if (!value) return std::nullopt;
  if (value.kind() == JsonKind::integer || value.kind() == JsonKind::floating) {
    return value.floating();
  }
  diagnostics->add(Rule::wrong_type, value.mark(), what + " must be a number");
  return std::nullopt;
}

std::optional<double> read_share(JsonValue value, double highest, const std::string& what,
                                 Diagnostics* diagnostics) {
  const auto number = read_number(value, what, diagnostics);
  if (number && (!(*number >= 0) || *number > highest)) {
    diagnostics->add(Rule::bad_value, value.mark(), what + " is out of range");
    return std::nullopt;
  }
  return number;
}

void read_axes(JsonValue axes, VerifyBlock* block, Diagnostics* diagnostics) {
  if (!expect_kind(axes, JsonKind::object, "\"axes\"", diagnostics) ||
      !check_entry_count(axes, "\"axes\"", diagnostics)) {
    return;
  }
  for (const JsonValue::Member& member : axes.members()) {
    const JsonValue values = axes.value_of(member);
    const std::string what = "axis " + in_quotes(member.key);
    if (!expect_kind(values, JsonKind::array, what, diagnostics) ||
        !check_entry_count(values, what, diagnostics)) {
      continue;
    }
    std::vector<int64_t> read;
    for (const JsonValue value : values.elements()) {
      if (const auto integer =
              read_integer(value, 0, int64_t{1} << 40, "a value of " + what, diagnostics)) {
        read.push_back(*integer);
      }
    }
    if (read.empty()) {
      diagnostics->add(Rule::bad_value, values.mark(), what + " has no values");
    }
    block->axes.emplace_back(member.key, std::move(read));
  }
}

void read_type(JsonValue value, const std::string& what, VerifyArgument* argument,
               Diagnostics* diagnostics) {
  if (!expect_kind(value, JsonKind::string, "\"type\" of " + what, diagnostics)) return;
  std::vector<std::string_view> names;
  for (const TypeName& type : kTypeNames) {
    if (value.string() == type.name) {
      argument->type = type.type;
      return;
    }
    names.emplace_back(type.name);
  }
  diagnostics->add(Rule::bad_value, value.mark(),
                   "\"type\" of " + what + " is " + in_quotes(value.string()) + "; accepted are " +
                       list_words(names));
}

std::optional<VerifyArgument> read_argument(JsonValue value, std::string_view name,
                                            Diagnostics* diagnostics) {
  VerifyArgument argument;
  argument.name = name;
  const std::string what = "argument " + in_quotes(name);
  if (!expect_kind(value, JsonKind::object, what, diagnostics)) return std::nullopt;
  accept_only(value, {"value", "expr", "type", "shape", "dtype", "low", "high", "elements"}, what,
              diagnostics);
  const JsonValue number = value.find("value"), expression = value.find("expr"),
                  shape = value.find("shape"), high = value.find("high"),
                  elements = value.find("elements");
  const int given = static_cast<bool>(number) + static_cast<bool>(expression) +
                    static_cast<bool>(shape || elements) + static_cast<bool>(high);
  if (given != 1) {
    diagnostics->add(Rule::value_source, value.mark(),
                     what +
                         " takes exactly one of \"value\", \"expr\", \"shape\", \"elements\" and "
                         "\"high\"; \"elements\" may stand beside \"shape\"");
    return std::nullopt;
  }
  if (elements) {
    argument.kind = VerifyArgument::Kind::elements;
    argument.elements = read_expression(elements, true, "\"elements\" of " + what, diagnostics);
    if (!argument.elements) return std::nullopt;
  }
  if (number) {
    const auto read = read_number(number, "\"value\" of " + what, diagnostics);
    if (!read) return std::nullopt;
    argument.value = *read;
  } else if (expression) {
    argument.kind = VerifyArgument::Kind::expression;
    argument.expression = read_expression(expression, true, "\"expr\" of " + what, diagnostics);
    if (!argument.expression) return std::nullopt;
  } else if (shape) {
    argument.kind = VerifyArgument::Kind::tensor;
    if (!expect_kind(shape, JsonKind::array, "\"shape\" of " + what, diagnostics) ||
        !check_rank(shape, "\"shape\" of " + what, diagnostics)) {
      return std::nullopt;
    }
    for (const JsonValue axis : shape.elements()) {
      auto extent = read_expression(axis, true, "an entry of \"shape\"", diagnostics);
      if (!extent) return std::nullopt;
      argument.shape.push_back(std::move(*extent));
    }
    const auto dtype = read_dtype(require_member(value, "dtype", what, diagnostics),
                                  "\"dtype\" of " + what, diagnostics);
    if (!dtype) return std::nullopt;
    argument.dtype = *dtype;
  } else if (high) {
    argument.kind = VerifyArgument::Kind::range;
    argument.expression = read_expression(require_member(value, "low", what, diagnostics), true,
                                          "\"low\" of " + what, diagnostics);
    argument.high = read_expression(high, true, "\"high\" of " + what, diagnostics);
    if (!argument.expression || !argument.high) return std::nullopt;
  }
  if (const JsonValue type = value.find("type")) read_type(type, what, &argument, diagnostics);
  return argument;
}

}  // namespace

const VerifyArgument* VerifyBlock::find_argument(std::string_view wanted) const {
  const auto at = std::ranges::find_if(
      arguments, [&](const VerifyArgument& argument) { return argument.name == wanted; });
  return at == arguments.end() ? nullptr : &*at;
}

VerifyBlock read_verify_block(JsonValue value, Diagnostics* diagnostics) {
  VerifyBlock block;
  const std::string what = "\"verify\"";
  if (!expect_kind(value, JsonKind::object, what, diagnostics)) return block;
  accept_only(value, {"op", "axes", "arguments", "atol", "rtol", "required_matched_ratio"}, what,
              diagnostics);
  if (const JsonValue op = value.find("op")) {
    if (const auto text = read_text(op, "\"op\"", diagnostics)) block.op = text->text;
  }
  if (const JsonValue axes = value.find("axes")) read_axes(axes, &block, diagnostics);
  const JsonValue arguments = value.find("arguments");
  if (arguments && expect_kind(arguments, JsonKind::object, "\"arguments\"", diagnostics) &&
      check_entry_count(arguments, "\"arguments\"", diagnostics)) {
    for (const JsonValue::Member& member : arguments.members()) {
      auto argument = read_argument(arguments.value_of(member), member.key, diagnostics);
      if (argument) block.arguments.push_back(std::move(*argument));
    }
  }
  block.atol = read_share(value.find("atol"), 1e9, "\"atol\"", diagnostics);
  block.rtol = read_share(value.find("rtol"), 1e9, "\"rtol\"", diagnostics);
  block.required_matched_ratio = read_share(value.find("required_matched_ratio"), 1,
                                            "\"required_matched_ratio\"", diagnostics);
  return block;
}

void VerifyBlocks::read_solution(JsonValue root, const SolutionSpec& solution,
                                 Diagnostics* diagnostics) {
  if (const JsonValue verify = root.find("verify")) {
    blocks_[solution.relative] = read_verify_block(verify, diagnostics);
  }
}

const VerifyBlock& VerifyBlocks::of(const SolutionSpec& solution) const {
  static const VerifyBlock* const none = new VerifyBlock;  // never freed: used until the end
  const auto found = blocks_.find(solution.relative);
  return found == blocks_.end() ? *none : found->second;
}

}  // namespace fibshim
