#include "loader/compile/marked_expression.h"

namespace fibshim {

ExpressionResult<Expression> KnownTexts::parse(const std::string& text) {
  const std::lock_guard lock(mutex_);
  const auto known = parsed_.find(text);
  if (known != parsed_.end()) return known->second;
  auto parsed = Expression::parse(text);
  if (parsed && parsed_.size() < kMost) parsed_.emplace(text, *parsed);
  return parsed;
}

Expression KnownTexts::constant(int64_t value) {
  const std::lock_guard lock(mutex_);
  const auto known = constants_.find(value);
  if (known != constants_.end()) return known->second;
  Expression made = Expression::constant(value);
  if (constants_.size() < kMost) constants_.emplace(value, made);
  return made;
}

// Compiling a regular expression takes long, so the others do not wait for it.
tl::expected<KnownTexts::Symbol, SymbolError> KnownTexts::symbol(const std::string& text) {
  {
    const std::lock_guard lock(mutex_);
    const auto known = symbols_.find(text);
    if (known != symbols_.end()) return known->second;
  }
  auto parsed = SymbolPattern::parse(text);
  if (!parsed) return tl::unexpected(std::move(parsed.error()));
  auto made = std::make_shared<const SymbolPattern>(std::move(*parsed));
  const std::lock_guard lock(mutex_);
  if (symbols_.size() == kMost) return made;
  return symbols_.emplace(text, std::move(made)).first->second;
}

std::optional<MarkedExpression> read_expression(JsonValue value, bool accepts_numbers,
                                                const What& what, Diagnostics* diagnostics,
                                                KnownTexts* known) {
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
                                           Diagnostics* diagnostics, KnownTexts* known) {
  std::vector<MarkedExpression> clauses;
  const What what("", key);
  if (!expect_kind(value, JsonKind::array, what, diagnostics) ||
      !check_entry_count(value, what, diagnostics)) {
    return clauses;
  }
  const What entry = "an entry of " + what;
  clauses.reserve(value.size());
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
