#include "loader/compile/read_pointer.h"

namespace fibshim {
namespace {

void read_layout(JsonValue layout, const What& what, PatternValue* value, KnownTexts* known,
                 Diagnostics* diagnostics) {
  const What where = "\"layout\" of " + what;
  if (!layout || !expect_kind(layout, JsonKind::array, where, diagnostics)) return;
  if (layout.size() > kMaxTensorAxes) {
    return diagnostics->add(Rule::limit, layout.mark(),
                            where + " has more than " + std::to_string(kMaxTensorAxes) + " axes");
  }
  value->layout.emplace();
  for (const JsonValue axis : layout.elements()) {
    if (!expect_kind(axis, JsonKind::array, "an axis in " + where, diagnostics)) continue;
    const std::vector<JsonValue> pair = axis.elements();
    if (pair.size() != 2) {
      diagnostics->add(Rule::bad_value, axis.mark(),
                       "an axis in " + where + " is its length and its stride in elements",
                       "write [\"rows\", \"row_stride\"]");
      continue;
    }
    auto count = read_expression(pair[0], true, "a length in " + where, diagnostics, known);
    auto stride = read_expression(pair[1], true, "a stride in " + where, diagnostics, known);
    if (count && stride) value->layout->emplace_back(std::move(*count), std::move(*stride));
  }
}

std::vector<const MarkedExpression*> layout_expressions(const PatternValue& value) {
  std::vector<const MarkedExpression*> all;
  if (!value.layout) return all;
  for (const auto& [count, stride] : *value.layout) all.insert(all.end(), {&count, &stride});
  return all;
}

void check_expression(const MarkedExpression& expression, const std::string& whose,
                      const PatternSpec& pattern, Diagnostics* diagnostics) {
  const auto compiled = compile_value(expression.expression, pattern);
  if (!compiled) {
    report(compiled.error(), expression, diagnostics);
  } else if (compiled->is_floating) {
    diagnostics->add(Rule::expression_type, expression.text.mark,
                     whose + " has a floating-point value");
  }
}

}  // namespace

void read_pointer_keys(JsonValue object, const What& what, PatternValue* value, KnownTexts* known,
                       Diagnostics* diagnostics) {
  read_layout(object.find("layout"), what, value, known, diagnostics);
  value->shift = boxed(
      read_expression(object.find("shift"), true, "\"shift\" of " + what, diagnostics, known));
}

std::vector<const MarkedExpression*> pointer_expressions(const PatternValue& value) {
  std::vector<const MarkedExpression*> all = layout_expressions(value);
  if (value.shift) all.push_back(&*value.shift);
  return all;
}

void check_pointer(const PatternValue& value, const PatternSpec& pattern,
                   Diagnostics* diagnostics) {
  const auto check_key = [&](const char* key,
                             const std::vector<const MarkedExpression*>& expressions) {
    if (!value.is_pointer) {
      diagnostics->add(Rule::value_source, value.mark,
                       in_quotes(value.name) + ": " + in_quotes(key) + " goes with a pointer");
    }
    const std::string whose = in_quotes(key) + " of " + in_quotes(value.name);
    for (const MarkedExpression* const one : expressions) {
      check_expression(*one, whose, pattern, diagnostics);
    }
  };
  if (value.layout) check_key("layout", layout_expressions(value));
  if (value.shift) check_key("shift", {&*value.shift});
}

std::vector<Step> shift_steps(const PatternValue& value, const PatternSpec& pattern) {
  if (!value.shift) return {};
  auto compiled = compile_value(value.shift->expression, pattern);
  return compiled ? std::move(compiled->steps) : std::vector<Step>();
}

}  // namespace fibshim
