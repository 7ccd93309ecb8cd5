#include "loader/compile/marked_expression.h"

namespace fibshim {

ExpressionResult<Expression> KnownExpressions::parse(const std::string& text) {
  const std::lock_guard lock(mutex_);
  const auto known = parsed_.find(text);
  if (known != parsed_.end()) return known->second;
  auto parsed = Expression::parse(text);
  if (parsed && parsed_.size() < kMost) parsed_.emplace(text, *parsed);
  return parsed;
}

Expression KnownExpressions::constant(int64_t value) {
  const std::lock_guard lock(mutex_);
  const auto known = constants_.find(value);
  if (known != constants_.end()) return known->second;
  Expression made = Expression::constant(value);
  if (constants_.size() < kMost) constants_.emplace(value, made);
  return made;
}

std::optional<MarkedExpression> read_expression(JsonValue value, bool accepts_numbers,
                                                const std::string& what, Diagnostics* diagnostics,
                                                KnownExpressions* known) {
  if (!value) return std::nullopt;
  if (accepts_numbers && value.kind() == JsonKind::integer) {
    const int64_t integer = value.integer();
    return MarkedExpression{
        known == nullptr ? Expression::constant(integer) : known->constant(integer),
        {"", value.mark(), {}},
        true};
  }
  if (accepts_numbers && value.kind() != JsonKind::string) {
    diagnostics->add(
        Rule::wrong_type, value.mark(),
        what + " must be an integer or an expression, not " + json_kind_words(value.kind()));
    return std::nullopt;
  }
  if (!expect_kind(value, JsonKind::string, what, diagnostics)) return std::nullopt;
  MarkedExpression result{{}, value.marked_string(), false};
  const std::string& text = result.text.text;
  auto parsed = known == nullptr ? Expression::parse(text) : known->parse(text);
  if (!parsed) {
    report(parsed.error(), result, diagnostics);
    return std::nullopt;
  }
  result.expression = std::move(*parsed);
  return result;
}

std::vector<MarkedExpression> read_clauses(JsonValue value, const char* key,
                                           Diagnostics* diagnostics, KnownExpressions* known) {
  std::vector<MarkedExpression> clauses;
  const std::string what = in_quotes(key);
  if (!expect_kind(value, JsonKind::array, what, diagnostics) ||
      !check_entry_count(value, what, diagnostics)) {
    return clauses;
  }
  const std::string entry = "an entry of " + what;
  for (const JsonValue element : value.elements()) {
    auto clause = read_expression(element, false, entry, diagnostics, known);
    if (clause) clauses.push_back(std::move(*clause));
  }
  return clauses;
}

void report(const ExpressionError& error, const MarkedExpression& expression,
            Diagnostics* diagnostics) {
  diagnostics->add(error.rule, expression.at(error.offset), error.message, error.hint);
}

}  // namespace fibshim
