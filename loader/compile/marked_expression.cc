#include "loader/compile/marked_expression.h"

namespace fibshim {

std::optional<MarkedExpression> read_expression(JsonValue value, bool accepts_numbers,
                                                const std::string& what, Diagnostics* diagnostics) {
  if (!value) return std::nullopt;
  if (accepts_numbers && value.kind() == JsonKind::integer) {
    return MarkedExpression{Expression::constant(value.integer()), {"", value.mark(), {}}, true};
  }
  if (accepts_numbers && value.kind() != JsonKind::string) {
    diagnostics->add(
        Rule::wrong_type, value.mark(),
        what + " must be an integer or an expression, not " + json_kind_words(value.kind()));
    return std::nullopt;
  }
  if (!expect_kind(value, JsonKind::string, what, diagnostics)) return std::nullopt;
  MarkedExpression result{Expression::constant(0), value.marked_string(), false};
  auto parsed = Expression::parse(result.text.text);
  if (!parsed) {
    report(parsed.error(), result, diagnostics);
    return std::nullopt;
  }
  result.expression = std::move(*parsed);
  return result;
}

std::vector<MarkedExpression> read_clauses(JsonValue value, const char* key,
                                           Diagnostics* diagnostics) {
  std::vector<MarkedExpression> clauses;
  const std::string what = in_quotes(key);
  if (!expect_kind(value, JsonKind::array, what, diagnostics) ||
      !check_entry_count(value, what, diagnostics)) {
    return clauses;
  }
  for (const JsonValue element : value.elements()) {
    auto clause = read_expression(element, false, "an entry of " + what, diagnostics);
    if (clause) clauses.push_back(std::move(*clause));
  }
  return clauses;
}

void report(const ExpressionError& error, const MarkedExpression& expression,
            Diagnostics* diagnostics) {
  diagnostics->add(error.rule, expression.at(error.offset), error.message, error.hint);
}

}  // namespace fibshim
